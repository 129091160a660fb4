"""Derived references: what lets others find accepted batches by time, and who refers to a blob.

None of them decides anything, so they are written after the answer (correction 13), and whatever a crash leaves out the
reconciler writes. A reference's bytes follow from its manifest, so writing it again changes nothing.

A collector writes those that somebody waits for: by time for what it accepted, since query collectors and the
reconciler look there; by time for bytes that were left behind, which no manifest leads to; by blob for conflicts. Who
refers to an accepted blob, and when it came, follow from the manifest and are asked for by audits alone: these two the
reconciler writes, in bulk (``of_accepted`` gives all three).

``References`` is a collector's list of what it still owes. It is bounded: what does not fit is dropped and counted.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.errors import HoldfastError
from holdfast.base.telemetry import logger
from holdfast.ingest import layout
from holdfast.ingest.manifest import AcceptedManifest, ConflictManifest
from holdfast.objects.store import ADDRESSED, Store

ACCEPTED_BY_TIME_SCHEMA = "holdfast.accepted_by_time.v1"
ACCEPTED_BY_BLOB_SCHEMA = "holdfast.accepted_by_blob.v1"
CONFLICT_BY_BLOB_SCHEMA = "holdfast.conflict_by_blob.v1"
BLOB_BY_TIME_SCHEMA = "holdfast.raw_blob_by_time.v1"

MOST_AT_ONCE = 64
"""Writes under way at a time, at the most."""
PER_WRITER = 128
"""Sources owed for each further write at a time: the path of acceptance has the better right to the store, so one
writer does while little is owed; but what is owed does not grow without end."""
QUIET_S = 0.02
PATIENCE = 50
"""Looks, ``QUIET_S`` apart, for which a burst of acceptances is given way: agents send all at once, then for seconds
not at all. Query collectors look every second, and should not wait much longer."""
MUCH = 4_096
"""Sources owed beyond which nobody is given way."""

_log = logger("ingest")


@dataclass(frozen=True, slots=True)
class Reference:
    key: str
    body: bytes


def of_accepted(manifest: AcceptedManifest) -> Iterator[Reference]:
    """All that is derived from one accepted manifest."""
    yield by_time(manifest)
    yield Reference(
        layout.accepted_by_blob_key(manifest.frame_sha256, manifest.identity),
        codec.encode(
            {
                "schema": ACCEPTED_BY_BLOB_SCHEMA,
                "accepted_manifest_key": manifest.key,
                "raw_blob_key": manifest.raw_blob_key,
            }
        ),
    )
    yield of_blob(manifest.frame_sha256, manifest.frame_bytes, manifest.accepted_at_unix_ns)


def by_time(manifest: AcceptedManifest) -> Reference:
    """It holds the manifest: its reader needs no other."""
    return Reference(
        layout.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity),
        codec.encode(
            {
                "schema": ACCEPTED_BY_TIME_SCHEMA,
                "accepted_manifest_key": manifest.key,
                "accepted_manifest": manifest.document(),
            }
        ),
    )


def of_conflict(manifest: ConflictManifest) -> Iterator[Reference]:
    yield Reference(
        layout.conflict_by_blob_key(manifest.submitted_frame_sha256, manifest.identity),
        codec.encode(
            {
                "schema": CONFLICT_BY_BLOB_SCHEMA,
                "quarantine_manifest_key": manifest.key,
                "raw_blob_key": manifest.submitted_raw_blob_key,
            }
        ),
    )


def of_blob(sha256: str, size: int, time_ns: int) -> Reference:
    """Where to look for a blob by time; also for one whose manifest was not created."""
    return Reference(
        layout.blob_by_time_key(time_ns, sha256),
        codec.encode(
            {
                "schema": BLOB_BY_TIME_SCHEMA,
                "raw_blob_key": layout.blob_key(sha256),
                "frame_sha256": sha256,
                "frame_bytes": size,
            }
        ),
    )


async def write(store: Store, reference: Reference) -> None:
    """Finding it there is as good as writing it."""
    await store.put(reference.key, reference.body, ADDRESSED)


Source = AcceptedManifest | ConflictManifest | Reference
"""What references are made from; they are made when they are written, not on the path of an answer."""


def made_from(source: Source) -> Iterator[Reference]:
    """What a collector writes of it."""
    match source:
        case AcceptedManifest():
            yield by_time(source)
        case ConflictManifest():
            yield from of_conflict(source)
        case Reference():
            yield source


class References:
    def __init__(self, store: Store, *, most: int = 10_000) -> None:
        self._store = store
        self._most = most
        self._owed: deque[Source] = deque()
        self._news = asyncio.Event()
        self.dropped = 0
        """Sources left to the reconciler, because the list was full or the store did not take what they gave."""

    def __len__(self) -> int:
        return len(self._owed)

    def owe(self, source: Source) -> None:
        """Write what follows from ``source`` some time."""
        if len(self._owed) >= self._most:
            self.dropped += 1
            return
        self._owed.append(source)
        self._news.set()

    async def flush(self) -> None:
        """Write what is owed now. Whoever is cancelled in the middle still owes the rest."""
        self._news.clear()
        left = len(self._owed)
        while left and self._owed:
            writers = min(MOST_AT_ONCE, 1 + len(self._owed) // PER_WRITER)
            group = [self._owed.popleft() for _ in range(min(left, len(self._owed), 4 * writers))]
            left -= len(group)
            await self._write_all(group, writers)

    async def _write_all(self, group: list[Source], writers: int) -> None:
        taken = dict(enumerate(group))

        async def settle(number: int) -> None:
            await self._write(taken[number])
            del taken[number]

        try:
            await map_bounded(list(taken), settle, limit=writers)
        finally:
            self._owed.extendleft(reversed(taken.values()))

    async def run(self) -> None:
        """Write references as they come, until cancelled."""
        while True:
            await self._news.wait()
            await self._give_way()
            await self.flush()

    async def _give_way(self) -> None:
        """Until nothing more has come to be owed for a moment, or it has waited long enough."""
        for _ in range(PATIENCE):
            before = len(self._owed)
            await asyncio.sleep(QUIET_S)
            if len(self._owed) == before or before >= MUCH:
                return

    async def _write(self, source: Source) -> None:
        for reference in made_from(source):
            try:
                await write(self._store, reference)
            except HoldfastError as error:
                self.dropped += 1
                _log.warning("%s: left to the reconciler: %s", reference.key, error)
                return
