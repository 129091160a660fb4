"""Derived references: what lets others find accepted batches by time, and who refers to a blob.

None of them decides anything, so they are written after the answer (correction 13), and whatever a crash leaves out the
reconciler writes. A reference's bytes follow from its manifest, so writing it again changes nothing.

A collector writes what somebody waits for: when it accepted what, since query collectors and the reconciler look there;
by time for bytes that were left behind, which no manifest leads to; by blob for conflicts. Batches that were accepted
within a moment it gathers into one object (``gathering``), so that a steady load costs no request per batch; a batch
alone gets its reference by time. All others follow from the manifest, and the reconciler writes them, in bulk
(``of_accepted``).

``References`` is a collector's list of what it still owes. It is bounded: what does not fit is dropped and counted. It
knows the latest batches that it told of, so that one which is sent again and again is told of once.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError
from holdfast.base.telemetry import logger
from holdfast.objects.store import ADDRESSED, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.gathering import gather
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.identity import BatchIdentity

ACCEPTED_BY_TIME_SCHEMA = "holdfast.accepted_by_time.v1"
ACCEPTED_BY_BLOB_SCHEMA = "holdfast.accepted_by_blob.v1"
CONFLICT_BY_BLOB_SCHEMA = "holdfast.conflict_by_blob.v1"
BLOB_BY_TIME_SCHEMA = "holdfast.raw_blob_by_time.v1"

MOST_AT_ONCE = 64
"""Writes under way at a time, at the most."""
PER_WRITER = 128
"""Objects owed for each further write at a time: the path of acceptance has the better right to the store, so one
writer does while little is owed; but what is owed does not grow without end."""
QUIET_S = 0.1
PATIENCE = 10
"""Looks, ``QUIET_S`` apart, for which a burst of acceptances is given way, and a steady load gathered: agents send all
at once, then for seconds not at all. Query collectors look every second, and should not wait much longer."""
MOST_GATHERED = 500
"""Batches in one object: some hundred kilobytes, made in some milliseconds."""

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


async def list_accepted(store: Store, manifests: Iterable[AcceptedManifest], written_at_ns: int) -> None:
    """Let these be found by time, for certain: whatever the store raises is the caller's. Somebody else's manifest may
    hold any number for its time: one that is no time has no place in a list."""
    for piece in pieces(each for each in manifests if _has_hour(each)):
        for reference in made_from(piece, written_at_ns):
            await write(store, reference)


def _has_hour(manifest: AcceptedManifest) -> bool:
    try:
        layout.hour_path(manifest.accepted_at_unix_ns)
    except (ValueError, OverflowError) as error:
        _log.error("%s: is found by no list: its time is none (%s)", manifest.key, error)
        return False
    return True


Source = AcceptedManifest | ConflictManifest | Reference
"""What references are made from; they are made when they are written, not on the path of an answer."""


def pieces(sources: Iterable[Source]) -> Iterator[list[Source]]:
    """What is written together: batches that were accepted in one hour; all others alone."""
    hours: dict[str, list[Source]] = {}
    for source in sources:
        if isinstance(source, AcceptedManifest):
            hours.setdefault(layout.hour_path(source.accepted_at_unix_ns), []).append(source)
        else:
            yield [source]
    for hour in hours.values():
        for start in range(0, len(hour), MOST_GATHERED):
            yield hour[start : start + MOST_GATHERED]


def made_from(piece: Sequence[Source], written_at_ns: int) -> Iterator[Reference]:
    """What a collector writes of it."""
    accepted = [each for each in piece if isinstance(each, AcceptedManifest)]
    if len(accepted) > 1:
        yield Reference(*gather(accepted, written_at_ns))
    elif accepted:
        yield by_time(accepted[0])
    for source in piece:
        match source:
            case ConflictManifest():
                yield from of_conflict(source)
            case Reference():
                yield source
            case AcceptedManifest():
                pass


class References:
    def __init__(self, store: Store, clock: Clock, *, most: int = 10_000) -> None:
        self._store = store
        self._clock = clock
        self._most = most
        self._owed: deque[Source] = deque()
        self._told: dict[BatchIdentity, None] = {}
        """Of the latest ``most`` accepted batches that were to be told of, oldest first."""
        self._writing = 0
        self._flushing = asyncio.Lock()
        self._through_ns = clock.wall_ns()
        self._news = asyncio.Event()
        self.dropped = 0
        """Sources left to the reconciler, because the list was full or the store did not take what they gave."""
        self.doubted = 0
        """Manifests that may have landed or not: nobody is told of them here."""

    def __len__(self) -> int:
        return len(self._owed) + self._writing

    def owe(self, source: Source) -> None:
        """Write what follows from ``source`` some time."""
        if isinstance(source, AcceptedManifest):
            self._note(source.identity)
        if len(self) >= self._most:
            self.dropped += 1
            return
        if not len(self):
            self._through_ns = self._clock.wall_ns()
        self._owed.append(source)
        self._news.set()

    def _note(self, identity: BatchIdentity) -> None:
        self._told[identity] = None
        if len(self._told) > self._most:
            del self._told[next(iter(self._told))]

    def has_told(self, identity: BatchIdentity) -> bool:
        """Whether others hear of this batch from here, or hear that they do not."""
        return identity in self._told

    @property
    def unlisted(self) -> int:
        """How many of what may have been accepted here are told nowhere."""
        return self.dropped + self.doubted

    def through_ns(self) -> int:
        """Whatever came to be owed before is written, or counted as unlisted."""
        return self._through_ns if len(self) else self._clock.wall_ns()

    async def flush(self) -> None:
        """Write what is owed now. Whoever is cancelled in the middle still owes the rest."""
        async with self._flushing:
            began_ns = self._clock.wall_ns()
            await self._flush()
            self._through_ns = began_ns

    async def _flush(self) -> None:
        self._news.clear()
        owed = dict(enumerate(pieces(self._owed)))
        self._owed.clear()
        self._writing += sum(map(len, owed.values()))

        async def settle(number: int) -> None:
            await self._write(owed[number])
            self._writing -= len(owed.pop(number))

        try:
            await map_bounded(list(owed), settle, limit=min(MOST_AT_ONCE, 1 + len(owed) // PER_WRITER))
        finally:
            rest = [source for piece in owed.values() for source in piece]
            self._writing -= len(rest)
            self._owed.extendleft(reversed(rest))

    async def run(self) -> None:
        """Write references as they come, until cancelled."""
        while True:
            await self._news.wait()
            await self._give_way()
            await self.flush()

    async def _give_way(self) -> None:
        """Until nothing more has come to be owed for a moment, an object is full, or it has waited long enough."""
        for _ in range(PATIENCE):
            before = len(self._owed)
            await asyncio.sleep(QUIET_S)
            if len(self._owed) == before or len(self._owed) >= MOST_GATHERED:
                return

    async def _write(self, piece: Sequence[Source]) -> None:
        for reference in made_from(piece, self._clock.wall_ns()):
            try:
                await write(self._store, reference)
            except HoldfastError as error:
                self.dropped += len(piece)
                _log.warning("%s: left to the reconciler: %s", reference.key, error)
                return
