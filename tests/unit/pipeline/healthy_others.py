"""Runs, events and an ontology in a healthy store: everything that may be there while nothing is wrong."""

from typing import Any

from holdfast import runs
from holdfast.bus import Bus, Event, Options, Retry, on
from holdfast.ontology import Entity, Field
from holdfast.ontology.maintain import erase
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.drop import apply as apply_drop
from holdfast.ontology.maintain.drop import preview as preview_drop
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.typeinfo import type_info
from holdfast.runs import Context, workflow
from tests.unit.pipeline.audit_desk import MINUTE, Place

BIG = "x" * 40_000


@workflow(name="errand", version="1")
async def errand(ctx: Context, steps: int) -> str:
    """Long enough for segments, with one result that is large enough for a payload."""
    for number in range(steps):
        await ctx.step("leg", lambda: "y" * 900)
        if number == 5:
            await ctx.step("big", lambda: BIG)
    return "done"


@workflow(name="vigil", version="1")
async def vigil(ctx: Context) -> Any:
    await ctx.step("light", lambda: 1)
    return await ctx.suspend("dawn")


@workflow(name="rounds", version="1")
async def rounds(ctx: Context, left: int) -> int:
    await ctx.step("walk", lambda: left)
    if left:
        ctx.continue_as_new(left - 1)
    return left


async def durable_runs(here: Place) -> None:
    store = here.store
    for run_id, steps in (("long", 120), ("gone", 10), ("shared", 10)):
        assert (await errand.start(store, steps, run_id=run_id)).status == "success"
    await runs.fork(store, "shared", new_run_id="forked", after_step="big")
    await errand.proceed(store, "forked")
    await runs.delete(store, "gone")
    await vigil.start(store, run_id="waiting")
    await vigil.start(store, run_id="answered")
    await vigil.resume(store, "answered", "dawn", "light")
    await rounds.start(store, 2, run_id="around")
    await runs.fork(store, "around", new_run_id="around-again", from_offset=1)
    here.clock.pass_by(10 * MINUTE)


class AuditedOrder(Event):
    order_id: str


class AuditedInvoice(Event):
    order_id: str


@on(AuditedOrder, id="bill")
async def bill(ctx: Any, event: AuditedOrder) -> None:
    if event.order_id.startswith("bad"):
        raise ValueError("no such customer")
    ctx.emit(AuditedInvoice(order_id=event.order_id))


@on(AuditedInvoice, id="post")
async def post(ctx: Any, event: AuditedInvoice) -> None:
    if event.order_id == "o2" and ctx.attempt == 1:
        raise ValueError("once more")


async def events(here: Place) -> None:
    retry = Retry(attempts=2, base_ms=0, max_ms=0, jitter_ms=0)
    bus = Bus(here.store, here.store.ambient, "shop", Options(retry=retry, poll_ms=10))
    old = await bus.publish(AuditedOrder(order_id="o0"))
    await bus.run([bill, post], until_idle=True)
    here.clock.pass_by(10 * MINUTE)
    await bus.run([bill, post], until_idle=True)
    await bus.cleanup(before_ns=old.envelope.created_ns + MINUTE)
    for order in ("o1", "o2", "bad1", "bad2", "bad3"):
        await bus.publish(AuditedOrder(order_id=order), key=order)
    await bus.run([bill, post], until_idle=True)
    letters = await bus.dead_letters()
    assert len(letters) == 3
    await bus.drop_dead_letter(str(letters[0]["event_id"]), "bill")
    await bus.replay_dead_letter(str(letters[1]["event_id"]), "bill")
    await bus.run([bill, post], until_idle=True)
    here.clock.pass_by(10 * MINUTE)
    await bus.run([bill, post], until_idle=True)
    await bus.publish(AuditedOrder(order_id="still open"))


class AuditedPatient(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


class AuditedVisit(Entity):
    id: Field[str] = Field(primary_key=True)


async def things(here: Place) -> None:
    """Commits, a compaction, an erasure and a dropped type, beside what the feed has."""
    store, ambient = here.store, here.store.ambient
    async with Ontology(store, ambient, [AuditedPatient, AuditedVisit]) as onto:
        for number in range(6):
            onto.ensure([AuditedPatient(id="p1", name=f"n{number}"), AuditedPatient(id=f"q{number}", name="Bo")])
            onto.ensure(AuditedVisit(id=f"v{number}"))
            await onto.commit()
    await Compactor(store, ambient, fan=2).compact(type_info(AuditedPatient).type_id)
    found = await erase.preview(store, "AuditedPatient", "p1")
    await erase.apply(store, ambient, found, found.token, by="dpo", why="asked for")
    drop = await preview_drop(store, "AuditedVisit", purge=False)
    await apply_drop(store, ambient, drop, drop.token, by="ops", why="over")
