"""Publishing once, cleaning up, handlers, sessions, and looking at it all."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.base.errors import Invalid, NotFound
from holdfast.bus import Bus, on
from holdfast.bus.errors import BadHandler
from holdfast.bus.sessions import Session, list_sessions, prune
from holdfast.bus.worker.digest import DigestShape
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, turn

DAY = 86_400


@on(OrderPlaced, id="bill")
async def bill(ctx: Any, event: OrderPlaced) -> None:
    if event.order_id.startswith("bad"):
        raise ValueError("no")


async def test_a_key_is_published_once_by_any_number_of_publishers() -> None:
    desk = Desk()
    buses = [desk.bus() for _ in range(5)]
    answer = await asyncio.gather(*(bus.publish(OrderPlaced(order_id="o1"), key="o1") for bus in buses))
    assert len({each.id for each in answer}) == 1
    assert sorted(each.duplicate for each in answer) == [False, True, True, True, True]
    assert len(desk.documents("events/")) == 1


async def test_a_publisher_that_finds_its_key_taken_writes_the_missing_event() -> None:
    desk = Desk()
    first = await desk.bus().publish(OrderPlaced(order_id="o1"), key="o1")
    desk.shelf.remove(first.envelope.key)  # as if it had died between the two writes
    again = await desk.bus().publish(OrderPlaced(order_id="o1"), key="o1")
    assert (again.duplicate, again.id) == (True, first.id)
    assert list(desk.documents("events/")) == [first.envelope.key]


def publish(**options: Any) -> Callable[[Any], Any]:
    return lambda bus: bus.publish(**{"event": OrderPlaced(order_id="o1"), **options})


MISTAKES: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    *((publish(delay=delay), Invalid, "delayed") for delay in (-1.0, math.nan, "5m", None)),
    *((publish(key=key), Invalid, "key") for key in (5, "\ud800", "x" * 2_000)),
    *((publish(order_key=key), Invalid, "key") for key in (5, "\ud800", b"k")),
    (publish(event={"order_id": "o1"}), Invalid, "a dict is not an event"),
    (publish(priority="high"), Invalid, "'high' is not a priority"),
    (lambda bus: bus.publish_raw("order.placed", [1]), Invalid, "list is not a payload"),
    (lambda bus: bus.run([print]), BadHandler, "is not a handler"),
    (lambda bus: bus.run(bill), BadHandler, "a list of handlers"),
    (lambda bus: bus.run([bill, bill]), BadHandler, "two handlers have the id bill"),
]


@pytest.mark.parametrize(("act", "kind", "words"), MISTAKES)
async def test_a_callers_mistake_is_named_and_writes_nothing(act: Any, kind: type[Exception], words: str) -> None:
    desk = Desk()
    with pytest.raises(kind, match=words):
        await act(desk.bus())
    assert desk.documents("") == {}


async def test_cleanup_removes_old_events_claims_and_keys_and_leaves_letters() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="o1"), key="o1")
    await bus.publish(OrderPlaced(order_id="bad"))
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=8 * DAY)
    kept = await bus.publish(OrderPlaced(order_id="o2"))
    await bus.run([bill], until_idle=True)
    dry = await bus.cleanup(dry_run=True)
    assert (dry.events, dry.keys) == (3, 1)
    assert len(desk.documents("events/")) == 4
    done = await bus.cleanup()
    assert (done.events, done.claims, done.keys) == (3, 2, 1)
    assert list(desk.documents("events/")) == [kept.envelope.key]
    assert len(desk.documents("claims/")) == 1
    assert len(desk.documents("dead_letters/")) == 1
    assert (await bus.cleanup()).events == 0
    assert (await bus.run([bill], until_idle=True)).handled == 0


async def test_cleanup_keeps_what_is_still_to_be_done_unless_forced() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.run([bill], until_idle=True)
    await bus.publish(OrderPlaced(order_id="o1"))
    desk.watch.advance(seconds=8 * DAY)
    assert (await bus.cleanup()).events == 0
    assert (await bus.run([bill], until_idle=True)).handled == 1
    await bus.publish(OrderPlaced(order_id="o2"))
    desk.watch.advance(seconds=8 * DAY)
    assert (await bus.cleanup(unsafe_unsettled=True)).events == 2
    assert (await bus.run([bill], until_idle=True)).handled == 0
    with pytest.raises(Invalid, match="future"):
        await bus.cleanup(before_ns=desk.watch.ns + DAY * 10**9)


@pytest.mark.parametrize("after_another", [False, True])
async def test_a_name_that_was_cleaned_up_is_not_handed_out_again(after_another: bool) -> None:
    """A worker has seen the event before it was acked and cleaned up, and claims it after: as the first to do so, or
    after another who created the claim anew and died before it could ask whether it might."""
    desk = Desk()
    seen: list[Any] = []

    @on(OrderPlaced, id="bill")
    async def record(ctx: Any, event: OrderPlaced) -> None:
        seen.append(event.order_id)

    await desk.bus().publish(OrderPlaced(order_id="o1"))
    slow = desk.bus().runner([record])
    await slow.feed.poll()
    (name,) = slow.feed.view("bill").open
    await slow.feed.envelope(name)
    await desk.bus().run([record], until_idle=True)
    desk.watch.advance(seconds=8 * DAY)
    assert (await desk.bus().cleanup()).claims == 1
    if after_another:
        await desk.bus().runner([record]).claims.take(name, "bill")
        desk.watch.advance(seconds=60)
    assert await slow._claim() == 0
    await slow.drain_flight()
    assert seen == ["o1"]


async def test_publishers_date_nothing_below_the_boundary() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="o1"))
    desk.watch.advance(seconds=8 * DAY)
    assert (await bus.cleanup()).events == 0  # no worker has ever looked at it
    assert (await bus.cleanup(unsafe_unsettled=True)).events == 1
    late = await desk.bus(skew_s=-9 * DAY).publish(OrderPlaced(order_id="late"))
    assert (await desk.bus().run([bill], until_idle=True)).handled == 1
    assert desk.claim(late.id, "bill")["ack_at"] is not None


@on(OrderPlaced, id="bill.v2")
async def renamed(ctx: Any, event: OrderPlaced) -> None:
    pass


async def test_a_renamed_handler_holds_events_until_it_is_retired() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.run([bill], until_idle=True)
    first = await bus.publish(OrderPlaced(order_id="o1"))
    await bus.publish(OrderPlaced(order_id="o2"))
    await bus.run([renamed], until_idle=True)
    desk.watch.advance(seconds=8 * DAY)
    await bus.run([renamed], until_idle=True)  # its sweep: cleanup removes no event that was stored after the last one
    old, new = await bus.stats()
    assert (old.handler_id, old.workers, old.oldest) == ("bill", 0, first.envelope.created_at)
    assert old.is_holding
    assert old.last_seen < new.last_seen
    assert (new.handler_id, new.oldest, new.is_holding) == ("bill.v2", None, False)
    kept = await bus.cleanup()
    assert (kept.events, kept.held, kept.held_by) == (0, 2, ("bill",))
    await bus.retire("bill")
    done = await bus.cleanup()
    assert (done.events, done.held, done.held_by) == (2, 0, ())
    with pytest.raises(NotFound, match="no handler bill"):
        await bus.retire("bill")


async def test_a_handler_of_a_living_worker_is_not_retired() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.run([bill], until_idle=True)
    session = Session(bus.store, "default", "s1", bus.ambient, {"handlers": ["bill"]})
    await session.register()
    (stats,) = await bus.stats()
    assert stats.workers == 1
    with pytest.raises(Invalid, match="worker s1 has it"):
        await bus.retire("bill")
    await session.end()
    await bus.retire("bill")
    assert await bus.stats() == []


async def test_a_retired_handler_that_comes_back_repeats_nothing() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="o1"))
    assert (await bus.run([bill], until_idle=True)).handled == 1
    await bus.publish(OrderPlaced(order_id="o2"))
    await bus.retire("bill")
    assert (await bus.run([bill], until_idle=True)).handled == 1


async def test_a_worker_that_runs_while_its_handler_is_retired_goes_on() -> None:
    """Its next flush begins the section anew, without the names that its cursor has passed."""
    desk = Desk()
    bus = desk.bus()
    runner = bus.runner([bill])
    await bus.publish(OrderPlaced(order_id="o1"))
    await turn(runner)
    await runner.step()
    await bus.publish(OrderPlaced(order_id="o2"))
    await bus.retire("bill")  # its session is not registered: as if it had been silent for a minute
    for _ in range(3):
        await turn(runner)
    await runner.feed.flush()
    claims = desk.documents("claims/").values()
    assert [claim["generation"] for claim in claims if claim["ack_at"]] == [1, 1]


async def test_sessions_beat_come_back_and_are_pruned() -> None:
    desk = Desk()
    bus = desk.bus()
    session = Session(bus.store, "default", "s1", bus.ambient, {"host": "a"})
    await session.register()
    started = (await bus.sessions())[0].started_at
    desk.watch.advance(seconds=5)
    await session.beat()
    assert desk.spent()["put"] == 2
    (info,) = await bus.sessions()
    assert (info.started_at, info.is_dead, info.metadata) == (started, False, {"host": "a"})
    desk.shelf.remove("sessions/default/s1.json")
    await session.beat()
    assert [each.session_id for each in await bus.sessions()] == ["s1"]
    desk.watch.advance(seconds=61)
    assert (await bus.sessions())[0].is_dead
    assert await prune(bus.store, "default", bus.ambient, session_ttl_ms=60_000) == ["s1"]  # the latest sign of life
    desk.watch.advance(seconds=600)
    assert await prune(bus.store, "default", bus.ambient, session_ttl_ms=60_000) == []
    assert await list_sessions(bus.store, "default", bus.ambient, session_ttl_ms=60_000) == []


async def filled() -> tuple[Desk, Bus]:
    desk = Desk()
    bus = desk.bus()
    for order in ("o1", "bad1", "o2"):
        await bus.publish(OrderPlaced(order_id=order))
    desk.watch.advance(seconds=1)
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=1)
    await bus.publish(OrderPlaced(order_id="o3"))
    return desk, bus


async def test_events_are_listed_with_their_status_newest_first() -> None:
    _, bus = await filled()
    listed = [(each.envelope.payload.get("order_id"), each.status) for each in await bus.events()]
    assert listed == [
        ("o3", "pending"), (None, "pending"), ("o2", "acked"), ("bad1", "dead_lettered"), ("o1", "acked"),
    ]  # fmt: skip
    assert len(await bus.events(limit=2)) == 2
    assert [each.envelope.payload["order_id"] for each in await bus.events(status="acked")] == ["o2", "o1"]
    assert [each.envelope.type for each in await bus.events(type_name="event.dead_letter")] == ["event.dead_letter"]
    runner = bus.runner([bill])
    await runner.feed.poll()
    (name,) = runner.feed.view("bill").open
    await runner.claims.take(name, "bill")
    assert (await bus.events(limit=1))[0].status == "claimed"


async def test_one_event_is_inspected_and_replayed_with_a_lineage_of_its_own() -> None:
    desk, bus = await filled()
    dead = (await bus.events(status="dead_lettered"))[0].envelope
    found = await bus.inspect(dead.id)
    assert found.status == "dead_lettered"
    assert found.claims == [desk.claim(dead.id, "bill")]
    again = (await bus.replay(dead.id)).envelope
    assert (again.type, again.payload, again.priority) == (dead.type, dead.payload, dead.priority)
    assert (again.root_event_id, again.chain_depth) == (again.id, 0)
    assert again.id != dead.id
    with pytest.raises(NotFound, match="no event missing"):
        await bus.inspect("missing")
    assert len(await bus.replay_many(status="acked")) == 2


async def test_dead_letters_are_listed_replayed_once_and_dropped() -> None:
    desk, bus = await filled()
    (letter,) = await bus.dead_letters()
    assert (letter["type"], letter["handler_id"]) == ("order.placed", "bill")
    first = await bus.replay_dead_letter(letter["event_id"], "bill")
    assert await bus.dead_letters() == []
    assert (await bus.replay_dead_letter(letter["event_id"], "bill")).id == first.id
    await bus.run([bill], until_idle=True)
    (again,) = await bus.dead_letters()
    assert again["event_id"] == first.id
    await bus.drop_dead_letter(first.id, "bill")
    assert desk.documents("dead_letters/") == {}
    with pytest.raises(NotFound):
        await bus.drop_dead_letter(first.id, "bill")


async def test_namespaces_and_statistics() -> None:
    desk, bus = await filled()
    await desk.bus("other").publish(OrderPlaced(order_id="o9"))
    await Session(bus.store, "quiet", "s", bus.ambient).register()
    counted = {each.namespace: (each.events, each.sessions, each.dead_letters) for each in await bus.namespaces()}
    assert counted == {"default": (5, 0, 1), "other": (1, 0, 0), "quiet": (0, 1, 0)}
    desk.spent()
    (stats,) = await bus.stats()
    assert desk.spent() == {"get": 1, "list": 2}
    assert (stats.handler_id, stats.open, stats.closed) == ("bill", 0, 4)


async def test_an_event_that_no_worker_has_read_is_not_believed_to_be_done() -> None:
    desk = Desk()
    bus = desk.bus()
    seen: list[str] = []

    @on(OrderPlaced, id="bill")
    async def bill(ctx: Any, event: OrderPlaced) -> None:
        seen.append(event.order_id)

    await bus.publish(OrderPlaced(order_id="old"))
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=60)
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=60)
    new = await bus.publish(OrderPlaced(order_id="new"))
    cleaned = await bus.cleanup(before_ns=desk.watch.ns)
    assert cleaned.events == 1
    document = desk.documents("bus/")["bus/default/digest.json"]
    section = DigestShape().read(document, "digest").sections["bill"]
    assert section.cursor < new.envelope.name
    await bus.run([bill], until_idle=True)
    assert seen == ["old", "new"]
