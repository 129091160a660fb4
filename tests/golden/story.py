"""What the frozen stores are about: the types, workflows, events and records that tests read.

Names here are part of stored bytes (type names, step names, the class of a recorded value): they never change.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from pydantic import BaseModel

from holdfast import runs
from holdfast.base.clock import iso
from holdfast.base.ids import Ambient
from holdfast.bus import DeadLetter, Event, Retry, on
from holdfast.ontology import Entity, Field, Relation
from tests.fakes.orders import OrderPlaced

SECOND = 1_000_000_000
BEGAN_NS = 1_790_000_000 * SECOND
"""2026-09-21 14:13:20 UTC, when the clock of the stories starts."""


class Watch:
    """A clock that the test moves, and that moves by 20 ms whenever it is read, so that no wait on it is for ever."""

    def __init__(self, ns: int = BEGAN_NS) -> None:
        self.ns = ns

    def wall_ns(self) -> int:
        self.ns += 20_000_000
        return self.ns

    def monotonic_ns(self) -> int:
        return self.wall_ns()

    def advance(self, *, seconds: float) -> None:
        self.ns += int(seconds * SECOND)


def ambient(seed: int, ns: int = BEGAN_NS) -> tuple[Ambient, Watch]:
    watch = Watch(ns)
    return Ambient(watch, random.Random(seed)), watch


# --- ontology ---


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str | None] = Field(default=None, index=True)


class CustomerV2(Entity, name="Customer"):
    id: Field[str] = Field(primary_key=True)
    first: Field[str]
    last: Field[str]
    tier: Field[str | None] = Field(default=None, index=True)


class Product(Entity):
    id: Field[str] = Field(primary_key=True)
    price: Field[Decimal]
    made: Field[datetime | None] = Field(default=None)
    sizes: Field[list[int]] = Field(default_factory=list)
    weight: Field[float] = Field(default=0.0)
    photo: Field[bytes | None] = Field(default=None)


class Subscription(Relation[Customer, Product]):
    seats: Field[int] = Field(default=1)


class Rumour(Entity):
    """Is dropped, with its rows purged."""

    id: Field[str] = Field(primary_key=True)
    text: Field[str]


class Memo(Entity):
    """Is dropped, and its history stays."""

    id: Field[str] = Field(primary_key=True)
    text: Field[str]


def split_name(fields: dict[str, Any]) -> dict[str, Any]:
    first, _, last = fields["name"].partition(" ")
    return {"id": fields["id"], "first": first, "last": last, "tier": fields.get("tier")}


class CustomerWon(Event):
    customer: str


# --- runs ---


@dataclass
class Receipt:
    number: int
    paid: Decimal


class Address(BaseModel):
    street: str
    zip: str = "?"


class Colour(Enum):
    RED = "r"


calls: list[str] = []
"""Every step that was really run."""


def did(what: str) -> str:
    calls.append(what)
    return what


def values() -> dict[str, Any]:
    calls.append("values")
    return {
        "plain": [1, 2.5, None, True, "é😀", {"k": "v"}],
        "receipt": Receipt(7, Decimal("19.90")),
        "address": Address(street="Main"),
        "colour": Colour.RED,
        "when": datetime(2026, 9, 21, 12, 30, tzinfo=UTC),
        "bytes": b"\x00\xff",
        "pair": (1, "two"),
        "set": {1, 2},
        "odd": {1: "one", "$type": "mine"},
    }


def large() -> str:
    calls.append("large")
    return "x" * 40_000


def chatter(number: int) -> str:
    calls.append(f"chatter {number}")
    return f"{number} " * 400


def fail() -> None:
    calls.append("fail")
    raise ValueError("no such order")


@runs.workflow(version="1")
async def completed(ctx: Any, order: str) -> dict[str, Any]:
    found = await ctx.step("values", values)
    both = await ctx.parallel("ask", {"a": (did, "a"), "b": (did, "b")})
    await ctx.step("large", large)
    return {"order": order, "asked": both, "receipt": found["receipt"], "at": await ctx.now(), "id": await ctx.unique()}


@runs.workflow(version="1")
async def waiting(ctx: Any, order: str) -> dict[str, Any]:
    await ctx.step("ask", did, "ask")
    approval = await ctx.suspend("approval", order=order)
    return {"approved": approval, "sent": await ctx.step("send", did, "send")}


@runs.workflow(version="1")
async def failing(ctx: Any) -> None:
    await ctx.step("before", did, "before")
    await ctx.step("fail", fail)


@runs.workflow(version="1")
async def sleeping(ctx: Any) -> str:
    await ctx.step("before", did, "before")
    await ctx.sleep(seconds=3600)
    return str(await ctx.step("after", did, "after"))


@runs.workflow(version="1")
async def sealed(ctx: Any, steps: int) -> str:
    for number in range(steps):
        await ctx.step(f"s{number}", chatter, number)
    return str(await ctx.suspend("more"))


@runs.workflow(version="1")
async def child(ctx: Any, number: int) -> int:
    await ctx.step("double", did, f"double {number}")
    return number * 2


@runs.workflow(version="1")
async def parent(ctx: Any) -> dict[str, Any]:
    doubled = await ctx.run(child, 21, key="one")
    await ctx.suspend("go")
    return {"doubled": doubled}


WORKFLOWS = [completed, waiting, failing, sleeping, sealed, child, parent]


# --- bus ---


class OrderBilled(Event):
    order_id: str


handled: list[tuple[str, str, int]] = []
"""Handler, order, attempt, whenever one was really called."""


@on(OrderPlaced, id="bill", retry=Retry(attempts=2, base_ms=30_000, jitter_ms=0))
async def bill(ctx: Any, event: OrderPlaced) -> None:
    handled.append(("bill", event.order_id, ctx.attempt))
    if event.order_id == "bad":
        raise DeadLetter("no such order")
    if event.order_id == "later":
        raise RuntimeError("the bank is closed")
    ctx.emit(OrderBilled(order_id=event.order_id))


@on(OrderBilled, id="thank")
async def thank(ctx: Any, event: OrderBilled) -> None:
    handled.append(("thank", event.order_id, ctx.attempt))


HANDLERS = [bill, thank]


# --- telemetry ---


async def telemetry_answers(hf: Any) -> dict[str, Any]:
    """Metrics and logs of the two hours of the story, as plain documents."""
    span: dict[str, Any] = {"since": iso(BEGAN_NS - 3600 * SECOND), "until": iso(BEGAN_NS + 4 * 3600 * SECOND)}
    asked = {
        "load": await hf.metrics().query("load", step="1h", aggregate="avg", **span),
        "load_1m": await hf.metrics().query("load", step="1m", aggregate="max", agent="web-1", **span),
        "requests": await hf.metrics().query("requests", step="1h", aggregate="increase", by=[], **span),
        "latency": await hf.metrics().query("latency", step="1h", aggregate="count", **span),
    }
    logs = await hf.logs().search("refused", severity="error", **span)
    listed = await hf.metrics().list(**span)
    return {
        "metrics": {name: sorted(answer.rows(), key=str) for name, answer in asked.items()},
        "listed": sorted(str(row["metric"]) for row in listed.rows),
        "logs": sorted([str(row["message"]), str(row["agent"]), int(row["time_ns"])] for row in logs.rows),
    }


async def manifests_by_scan(store: Any) -> dict[str, str]:
    """Every accepted batch with the hash of its frame, by a full scan that trusts no derived object."""
    found = {}
    async for key in store.keys("accepted/v1/"):
        fields = json.loads((await store.get(key)).body)
        body = (await store.get(fields["raw_blob_key"])).body
        digest = hashlib.sha256(body).hexdigest()
        if digest != fields["frame_sha256"]:
            raise AssertionError(f"{key}: its frame has the hash {digest}")
        name = f"{fields['agent_id']}/{fields['boot_id']}/{fields['seq_start']}-{fields['seq_end']}"
        found[name] = digest
    return found
