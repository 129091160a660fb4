"""The bus: events, claims of handlers, dead letters; of one namespace (``namespace``) or of all.

``status`` of an event costs a look at its claims: leave it out of ``columns`` if you do not need it.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.base.clock import Clock, SystemClock, parse_iso
from holdfast.base.codec import Document
from holdfast.bus import browse, layout
from holdfast.objects.store import Store
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import TIMESTAMP, Tables, Wanted, groups, microseconds, rows_read, text_or_none

NAMES_AT_ONCE = 2_000
EVENTS = pa.schema(
    [
        ("namespace", pa.string()),
        ("id", pa.string()),
        ("type", pa.string()),
        ("payload", pa.string()),
        ("created_at", TIMESTAMP),
        ("priority", pa.int64()),
        ("available_at", TIMESTAMP),
        ("order_key", pa.string()),
        ("root_event_id", pa.string()),
        ("parent_event_id", pa.string()),
        ("chain_depth", pa.int64()),
        ("status", pa.string()),
    ]
)
CLAIMS = pa.schema(
    [
        ("namespace", pa.string()),
        ("event_id", pa.string()),
        ("handler_id", pa.string()),
        ("session_id", pa.string()),
        ("attempts", pa.int64()),
        ("claimed_at", TIMESTAMP),
        ("lease_until", TIMESTAMP),
        ("ack_at", TIMESTAMP),
        ("available_at", TIMESTAMP),
        ("dead_lettered_at", TIMESTAMP),
        ("last_error", pa.string()),
    ]
)
DEAD_LETTERS = pa.schema(
    [
        ("namespace", pa.string()),
        ("event_id", pa.string()),
        ("handler_id", pa.string()),
        ("type", pa.string()),
        ("attempts", pa.int64()),
        ("failed_at", TIMESTAMP),
        ("last_error", pa.string()),
        ("event", pa.string()),
    ]
)


@dataclass(frozen=True)
class EventsTable:
    namespace: str | None
    name: str = "events"
    schema: pa.Schema = EVENTS
    clock: Clock = field(default_factory=SystemClock)

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[str, tuple[str, ...]]]:
        low, high = wanted.conditions.times("", "created_at")
        parts: list[tuple[str, tuple[str, ...]]] = []
        for namespace in await _namespaces(store, layout.EVENTS, self.namespace, wanted):
            names = [each for each in await browse.names(store, namespace) if _within(each, low, high)]
            parts += [(namespace, each) for each in groups(names, worth=NAMES_AT_ONCE, most=wanted.partitions)]
        return parts

    async def read(
        self, store: Store, part: tuple[str, tuple[str, ...]], wanted: Wanted
    ) -> AsyncIterator[pa.RecordBatch]:
        namespace, names = part
        now_ns = self.clock.wall_ns()

        async def one(name: str) -> dict[str, Any] | None:
            envelope = await browse.read(store, namespace, name)
            if envelope is None:
                return None
            row = {
                **envelope.document(),
                "payload": json.dumps(envelope.payload, ensure_ascii=False, sort_keys=True),
                "created_at": microseconds(envelope.created_ns),
                "available_at": microseconds(envelope.available_ns),
            }
            if "status" in wanted.columns:
                row["status"] = browse.status_of(await browse.claims_of(store, namespace, envelope.id), now_ns)
            return row

        async for batch in rows_read(names, one, EVENTS, wanted):
            yield batch


@dataclass(frozen=True)
class KeyedTable:
    """Objects under a prefix that has a folder for each namespace, one row each."""

    name: str
    schema: pa.Schema
    prefix: str
    read_one: "Callable[[Store, str], Any]"
    namespace: str | None

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[str, ...]]:
        parts: list[tuple[str, ...]] = []
        for namespace in await _namespaces(store, self.prefix, self.namespace, wanted):
            keys = [key async for key in store.keys(f"{self.prefix}{namespace}/")]
            parts += groups(keys, worth=NAMES_AT_ONCE, most=wanted.partitions)
        return parts

    async def read(self, store: Store, part: tuple[str, ...], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        async def one(key: str) -> dict[str, Any] | None:
            found: Document | None = await self.read_one(store, key)
            return None if found is None else _row(self.schema, key, found)

        async for batch in rows_read(part, one, self.schema, wanted):
            yield batch


def _row(schema: pa.Schema, key: str, found: Document) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column in schema:
        value = found.get(column.name)
        if column.type == TIMESTAMP:
            value = None if value is None else microseconds(parse_iso(str(value)))
        elif column.name == "event":
            value = text_or_none(value, lambda each: json.dumps(each, ensure_ascii=False, sort_keys=True))
        row[column.name] = value
    row["namespace"] = key.split("/")[1]
    return row


async def _namespaces(store: Store, prefix: str, only: str | None, wanted: Wanted) -> list[str]:
    fits = wanted.conditions.allows("namespace")
    found = [only] if only is not None else await browse.folders(store, prefix)
    return [each for each in found if fits(each)]


def _within(name: str, low: int | None, high: int | None) -> bool:
    created_ns = layout.created_ns(name)
    return (low is None or created_ns >= low) and (high is None or created_ns <= high)


async def _events(store: Store, given: Given) -> EventsTable:
    return EventsTable(given.text("namespace"))


async def _claims(store: Store, given: Given) -> KeyedTable:
    return KeyedTable("claims", CLAIMS, layout.CLAIMS, browse.read_claim, given.text("namespace"))


async def _dead_letters(store: Store, given: Given) -> KeyedTable:
    return KeyedTable("dead_letters", DEAD_LETTERS, layout.DEAD_LETTERS, browse.read_letter, given.text("namespace"))


TABLES: Tables = {
    "events": (_events, ("namespace",)),
    "claims": (_claims, ("namespace",)),
    "dead_letters": (_dead_letters, ("namespace",)),
}
