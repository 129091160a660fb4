"""Batches: accepted ones, one row each, conflicts that are in quarantine, and what hours list.

Without a condition on the time of acceptance the manifests themselves are listed: nothing is missed. With one, the
references by time of those hours are.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.base.aio import blocking, stream_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.objects import Span, entries, past
from holdfast.pipeline.tables.table import LAST_NS, TIMESTAMP, RowsTable, Tables, TimeSpan, Wanted, microseconds
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.discover import NoBatch, resolve
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup import listing
from holdfast.telemetry.rollup.manifest import slot_of

UNREADABLE = "unreadable"
"""The option that says what becomes of objects that cannot be read: ``fail`` or ``skip``."""
_log = logger("pipeline")

_IDENTITY = [
    ("manifest_id", pa.string()),
    ("agent", pa.string()),
    ("boot", pa.string()),
    ("seq_start", pa.int64()),
    ("seq_end", pa.int64()),
]
ACCEPTED = pa.schema(
    [
        *_IDENTITY,
        ("frame_sha256", pa.string()),
        ("blob_key", pa.string()),
        ("frame_bytes", pa.int64()),
        ("accepted_at", TIMESTAMP),
        ("accepted_at_ns", pa.int64()),
        ("collector_id", pa.string()),
        ("records", pa.map_(pa.string(), pa.int64())),
    ]
)
QUARANTINE = pa.schema(
    [
        *_IDENTITY,
        ("accepted_sha256", pa.string()),
        ("submitted_sha256", pa.string()),
        ("submitted_blob_key", pa.string()),
        ("observed_at", TIMESTAMP),
        ("observed_at_ns", pa.int64()),
        ("collector_id", pa.string()),
    ]
)


@dataclass(frozen=True)
class Unreadable:
    """What becomes of an object that cannot be read."""

    skip: bool = False

    @classmethod
    def of(cls, given: Given) -> "Unreadable":
        text = given.text(UNREADABLE) or "fail"
        if text not in ("fail", "skip"):
            raise Invalid(f"option {UNREADABLE}: {text!r} is neither fail nor skip")
        return cls(skip=text == "skip")

    def handle(self, key: str, error: HoldfastError) -> None:
        """Raise it, or pass over it with a warning."""
        if not self.skip:
            raise Corrupt(
                f"{key}: it cannot be read ({error})",
                remedy='.option("unreadable", "skip") leaves such objects out; '
                "holdfast pipeline run reconcile --full says what is wrong",
            ) from error
        _log.warning("%s: left out: %s", key, error)


def referred(since_ns: int, until_ns: int) -> Span:
    """Where the references by time of these hours are."""
    begin = f"{layout.ACCEPTED_BY_TIME}{layout.hour_path(since_ns)}".rstrip("/")
    return Span(layout.ACCEPTED_BY_TIME, begin, past(f"{layout.ACCEPTED_BY_TIME}{layout.hour_path(until_ns - 1)}"))


async def _listed_batches(store: Store, wanted: Wanted) -> list[str]:
    span = TimeSpan().within(wanted.conditions, "accepted_at_ns", "accepted_at")
    if span == TimeSpan():
        return await accepted_keys(store, wanted)
    since, until = max(0, span.since_ns or 0), LAST_NS if span.until_ns is None else span.until_ns
    if until <= since:
        return []
    pages = entries(store, referred(since, until))
    return [each.key async for page in pages for each in page if layout.is_by_time(each.key)]


async def _read_batch(store: Store, key: str, _: Wanted, *, unreadable: Unreadable) -> list[dict[str, Any]]:
    found = await read_manifest(store, key, unreadable)
    return [] if found is None else [_accepted(found)]


async def _listed_conflicts(store: Store, wanted: Wanted) -> list[str]:
    return [key for key in await _below(store, layout.CONFLICTS, wanted) if layout.identity_in(key) is not None]


async def _read_conflict(store: Store, key: str, _: Wanted, *, unreadable: Unreadable) -> list[dict[str, Any]]:
    try:
        return [_conflict(ConflictManifest.read(await store.get(key)))]
    except (Corrupt, Incompatible, Invalid, NotFound) as error:
        unreadable.handle(key, error)
        return []


async def accepted_keys(store: Store, wanted: Wanted) -> list[str]:
    """The manifests of all accepted batches that may be meant, by agent, boot and sequence number."""
    found = []
    for key in await _below(store, layout.ACCEPTED, wanted):
        identity = layout.identity_in(key)
        if identity is not None and key == layout.accepted_key(identity):
            found.append(key)
    return found


async def _below(store: Store, prefix: str, wanted: Wanted) -> list[str]:
    """Keys of the agents that may be meant."""
    agents, boots = wanted.conditions.values("agent"), wanted.conditions.allows("boot")
    folders = [prefix]
    if agents is not None:
        folders = [f"{prefix}agent={each.encode().hex()}/" for each in sorted(agents) if isinstance(each, str) and each]
    fits = wanted.conditions.allows("agent")
    found: list[str] = []
    for folder in folders:
        async for key in store.keys(folder):
            identity = layout.identity_in(key)
            if identity is not None and fits(identity.agent_id) and boots(identity.boot_id):
                found.append(key)
    return found


async def read_manifest(store: Store, key: str, unreadable: Unreadable) -> AcceptedManifest | None:
    """By its own key, or by that of a reference. None for a reference that leads to no batch, and for what cannot be
    read and is skipped."""
    try:
        if not key.startswith(layout.ACCEPTED_BY_TIME):
            return AcceptedManifest.read(await store.get(key))
        found = await resolve(store, key)
        return None if isinstance(found, NoBatch) else found.manifest
    except (Corrupt, Incompatible, Invalid, NotFound) as error:
        unreadable.handle(key, error)
        return None


def _accepted(manifest: AcceptedManifest) -> dict[str, Any]:
    identity = manifest.identity
    return {
        "manifest_id": identity.manifest_id,
        "agent": identity.agent_id,
        "boot": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
        "frame_sha256": manifest.frame_sha256,
        "blob_key": manifest.raw_blob_key,
        "frame_bytes": manifest.frame_bytes,
        "accepted_at": microseconds(manifest.accepted_at_unix_ns),
        "accepted_at_ns": manifest.accepted_at_unix_ns,
        "collector_id": manifest.collector_id,
        "records": sorted(manifest.records.items()),
    }


def _conflict(manifest: ConflictManifest) -> dict[str, Any]:
    identity = manifest.identity
    return {
        "manifest_id": identity.manifest_id,
        "agent": identity.agent_id,
        "boot": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
        "accepted_sha256": manifest.accepted_frame_sha256,
        "submitted_sha256": manifest.submitted_frame_sha256,
        "submitted_blob_key": manifest.submitted_raw_blob_key,
        "observed_at": microseconds(manifest.observed_at_unix_ns),
        "observed_at_ns": manifest.observed_at_unix_ns,
        "collector_id": manifest.collector_id,
    }


async def _make_accepted(store: Store, given: Given) -> RowsTable:
    return RowsTable("accepted", ACCEPTED, _listed_batches, partial(_read_batch, unreadable=Unreadable.of(given)))


async def _make_quarantine(store: Store, given: Given) -> RowsTable:
    return RowsTable(
        "quarantine", QUARANTINE, _listed_conflicts, partial(_read_conflict, unreadable=Unreadable.of(given))
    )


TABLES: Tables = {
    "accepted": (_make_accepted, (UNREADABLE, "start", "late", "max_batches_per_trigger")),
    "quarantine": (_make_quarantine, (UNREADABLE,)),
}


# --- batches as the hours list them ---

LISTED = pa.schema(
    [
        ("hour", pa.int64()),
        ("listing", pa.string()),
        ("error", pa.string()),
        ("slot", pa.int64()),
        *((field.name, field.type) for field in listing.SCHEMA),
    ]
)
LISTINGS_AT_ONCE = 8
FEW_HOURS = 8
DIGITS = "0123456789abcdef"


@dataclass(frozen=True)
class ListedTable:
    """Batches as the hours that they have records in list them (``batches-by-hour``), hour by hour.

    A task lists a part of an hour itself, so no list of keys travels. A listing that cannot be read gives one row with
    an ``error`` and no batch: its hour stays as it is.
    """

    hours: tuple[int, ...]
    name: str = "listed"
    schema: pa.Schema = LISTED

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[int, str]]:
        """Hours, and the first digit of the listings of a part; of many hours, or with few listings, each is one
        part."""
        found: list[tuple[int, str]] = []
        for hour in self.hours:
            digits: Iterable[str] = ("",)
            if len(self.hours) <= FEW_HOURS:
                listings = [key async for key in store.keys(derived.batches_folder(hour))]
                digits = DIGITS if len(listings) > len(DIGITS) else digits
            found += [(hour, digit) for digit in digits]
        return found

    async def read(self, store: Store, part: tuple[int, str], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        hour, digit = part
        first = f"{derived.batches_folder(hour)}{digit}"
        keys: list[str] = []
        async for key in store.keys(derived.batches_folder(hour), after=first if digit else None):
            if not key.startswith(first):
                break
            keys.append(key)

        async def one(key: str) -> pa.Table:
            body = (await store.get(key)).body
            return await blocking(_rows, hour, key, body)

        async for rows in stream_bounded(
            [key for key in keys if derived.listing_in(key) is not None], one, limit=LISTINGS_AT_ONCE
        ):
            for batch in rows.select(list(wanted.columns)).to_batches():
                yield batch


def _rows(hour: int, key: str, body: bytes) -> pa.Table:
    ident = derived.listing_in(key)
    try:
        rows = listing.table(body, key)
    except Corrupt as error:
        failed = {"hour": hour, "listing": ident, "error": str(error)}
        return pa.Table.from_pylist([failed], LISTED)
    encoded = rows.column("agent").combine_chunks().dictionary_encode()
    slots = np.array([slot_of(agent) for agent in encoded.dictionary.to_pylist()], np.int64)
    own = {
        "hour": pa.array(np.full(rows.num_rows, hour)),
        "listing": pa.repeat(pa.scalar(ident), rows.num_rows),
        "error": pa.repeat(pa.scalar(""), rows.num_rows),
        "slot": pa.array(slots[encoded.indices.to_numpy()] if rows.num_rows else slots),
    }
    return pa.table({**own, **{name: rows.column(name) for name in rows.column_names}}, schema=LISTED)
