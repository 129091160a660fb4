"""Accepted batches, one row each, and conflicts that are in quarantine.

Without a condition on the time of acceptance the manifests themselves are listed: nothing is missed. With one, the
references by time of those hours are.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.base.aio import stream_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.objects import Span, entries, past
from holdfast.pipeline.tables.table import TIMESTAMP, Tables, Wanted, batch_of, groups, microseconds
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.discover import Stray, resolve

KEYS_AT_ONCE = 2_000
ROWS_AT_ONCE = 1_000
READS = 32
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
_LAST_NS = 253_370_764_800 * 1_000_000_000
"""The year 9999, in which hours still have names."""


class Unreadable:
    """What becomes of an object that cannot be read."""

    def __init__(self, *, skip: bool) -> None:
        self._skip = skip

    @classmethod
    def of(cls, given: Given) -> bool:
        """Whether to pass over them."""
        text = given.text(UNREADABLE) or "fail"
        if text not in ("fail", "skip"):
            raise Invalid(f"option {UNREADABLE}: {text!r} is neither fail nor skip")
        return text == "skip"

    def met(self, key: str, error: HoldfastError) -> None:
        """Raise it, or pass over it with a warning."""
        if not self._skip:
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


@dataclass(frozen=True)
class AcceptedTable:
    skip: bool = False
    name: str = "accepted"
    schema: pa.Schema = ACCEPTED

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[str, ...]]:
        low, high = wanted.conditions.times("accepted_at_ns", "accepted_at")
        if low is None and high is None:
            keys = await accepted_keys(store, wanted)
        else:
            since = max(0, low or 0)
            until = _LAST_NS if high is None else high + 1
            pages = entries(store, referred(since, until))
            listed = [each.key async for page in pages for each in page] if until > since else []
            keys = [key for key in listed if layout.is_by_time(key)]
        return groups(keys, worth=KEYS_AT_ONCE, most=wanted.partitions)

    async def read(self, store: Store, part: tuple[str, ...], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        unreadable = Unreadable(skip=self.skip)

        async def one(key: str) -> dict[str, Any] | None:
            found = await read_manifest(store, key, unreadable)
            return None if found is None else _accepted(found)

        async for batch in _in_batches(part, one, ACCEPTED, wanted):
            yield batch


@dataclass(frozen=True)
class QuarantineTable:
    skip: bool = False
    name: str = "quarantine"
    schema: pa.Schema = QUARANTINE

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[str, ...]]:
        keys = [key for key in await _below(store, layout.CONFLICTS, wanted) if layout.identity_in(key) is not None]
        return groups(keys, worth=KEYS_AT_ONCE, most=wanted.partitions)

    async def read(self, store: Store, part: tuple[str, ...], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        unreadable = Unreadable(skip=self.skip)

        async def one(key: str) -> dict[str, Any] | None:
            try:
                return _conflict(ConflictManifest.read(await store.get(key)))
            except (Corrupt, Incompatible, Invalid, NotFound) as error:
                unreadable.met(key, error)
                return None

        async for batch in _in_batches(part, one, QUARANTINE, wanted):
            yield batch


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
        return None if isinstance(found, Stray) else found.manifest
    except (Corrupt, Incompatible, Invalid, NotFound) as error:
        unreadable.met(key, error)
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


async def _in_batches(
    keys: Sequence[str], one: Any, schema: pa.Schema, wanted: Wanted
) -> AsyncIterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    async for row in stream_bounded(keys, one, limit=READS):
        if row is not None:
            rows.append(row)
        if len(rows) >= ROWS_AT_ONCE:
            yield batch_of(schema, wanted.columns, rows)
            rows = []
    if rows:
        yield batch_of(schema, wanted.columns, rows)


async def _make_accepted(store: Store, given: Given) -> AcceptedTable:
    return AcceptedTable(Unreadable.of(given))


async def _make_quarantine(store: Store, given: Given) -> QuarantineTable:
    return QuarantineTable(Unreadable.of(given))


TABLES: Tables = {
    "accepted": (_make_accepted, (UNREADABLE, "start", "late", "max_batches_per_trigger")),
    "quarantine": (_make_quarantine, (UNREADABLE,)),
}
