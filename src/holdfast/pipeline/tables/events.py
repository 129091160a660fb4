"""The bus: events, claims of handlers, dead letters; of one namespace (``namespace``) or of all.

``status`` of an event costs a look at its claims: leave it out of ``columns`` if you do not need it.
"""

import json
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.base.clock import SystemClock, parse_iso
from holdfast.base.codec import Document
from holdfast.bus import browse, layout
from holdfast.objects.store import Store
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import TIMESTAMP, RowsTable, Tables, Wanted, microseconds, text_or_none

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


async def _listed_events(store: Store, wanted: Wanted, *, only: str | None) -> list[tuple[str, str]]:
    """Namespaces and names."""
    low, high = wanted.conditions.times("", "created_at")
    namespaces = await _namespaces(store, layout.EVENTS, only, wanted)
    found = [(namespace, name) for namespace in namespaces for name in await browse.names(store, namespace)]
    return [each for each in found if _within(each[1], low, high)]


async def _read_event(store: Store, event: tuple[str, str], wanted: Wanted) -> list[dict[str, Any]]:
    namespace, name = event
    envelope = await browse.read(store, namespace, name)
    if envelope is None:
        return []
    row = {
        **envelope.document(),
        "payload": json.dumps(envelope.payload, ensure_ascii=False, sort_keys=True),
        "created_at": microseconds(envelope.created_ns),
        "available_at": microseconds(envelope.available_ns),
    }
    if "status" in wanted.columns:
        claims = await browse.claims_of(store, namespace, envelope.id)
        row["status"] = browse.status_of(claims, SystemClock().wall_ns())
    return [row]


async def _listed_keys(store: Store, wanted: Wanted, *, prefix: str, only: str | None) -> list[str]:
    """Objects under a prefix that has a folder for each namespace."""
    namespaces = await _namespaces(store, prefix, only, wanted)
    return [key for namespace in namespaces async for key in store.keys(f"{prefix}{namespace}/")]


async def _read_claim(store: Store, key: str, _: Wanted) -> list[dict[str, Any]]:
    found = await browse.read_claim(store, key)
    return [] if found is None else [_row(CLAIMS, key, found)]


async def _read_letter(store: Store, key: str, _: Wanted) -> list[dict[str, Any]]:
    found = await browse.read_letter(store, key)
    return [] if found is None else [_row(DEAD_LETTERS, key, found)]


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


async def _events(store: Store, given: Given) -> RowsTable:
    return RowsTable("events", EVENTS, partial(_listed_events, only=given.text("namespace")), _read_event)


async def _claims(store: Store, given: Given) -> RowsTable:
    listed = partial(_listed_keys, prefix=layout.CLAIMS, only=given.text("namespace"))
    return RowsTable("claims", CLAIMS, listed, _read_claim)


async def _dead_letters(store: Store, given: Given) -> RowsTable:
    listed = partial(_listed_keys, prefix=layout.DEAD_LETTERS, only=given.text("namespace"))
    return RowsTable("dead_letters", DEAD_LETTERS, listed, _read_letter)


TABLES: Tables = {
    "events": (_events, ("namespace",)),
    "claims": (_claims, ("namespace",)),
    "dead_letters": (_dead_letters, ("namespace",)),
}
