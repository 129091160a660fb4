"""Which accepted batches are new: the one answer, for the reconciler, live state, queries and Spark streams.

**References by time.** A collector writes ``accepted-by-time/.../{manifest_id}.json`` beside the bytes and before the
manifest, so whatever was accepted can be found by time, whichever process crashes. A reference alone proves nothing:

* Its manifest may not exist yet, or never. It is looked up again until ``HORIZON_NS`` has passed.
* It may belong to an attempt that another acceptance of the identity has preceded. It counts only if its key is that of
  the manifest's time of acceptance.
* It may be too old: a collector paused between the two writes, and readers may have stopped looking up the manifest. It
  counts only if it was written at most ``IN_TIME_NS`` before the manifest, by the store's own times of both. A
  collector makes sure of that before it acknowledges (``accept.references``); nothing else writes a reference that
  counts again.

So whether a reference counts follows from two immutable facts, and all readers come to the same result.

**Positions.** Keys of references are in the order of hours of acceptance, by the clocks of collectors; within an hour
they are in no order of time. A spool that lands after an outage adds references to hours long past. The store's own
time of a reference says when it was written. A position says of every reference whether it was delivered: if it was
written before the **floor** of its key, or if its id is among the **recent** ones. Floors are a step function over
keys. A scan lists keys from some key on, delivers what was not delivered and leads to a batch, and raises the floor of
the keys it has listed to the newest time that it has seen, less the horizon and the time that the listing took.
Assumption: a write is visible a horizon after the time that it has. Then, for every reference e that counts, and a scan
from P to Q that listed L:

    delivered(Q, e)  if and only if  delivered(P, e) or e was delivered by this scan

If e was in L and led to its batch, its floor or ``recent`` says so. If e was in L and its manifest was missing, it is
not in ``recent``; and if the floor has passed it, its manifest will be too late for it to count. If e was not in L, it
was written no longer than a horizon before its page was listed, so it is above every floor that the scan has raised.
Hence nothing is delivered twice and nothing is skipped, and the references between P and Q are the same at any later
time.

A **regular** scan lists the hours from where collectors' clocks can have been since the regular scan before it; a
**deep** one those of ``late`` (a day by default) before the deep scan before it, once for every hour by which the
newest time has moved, and when a stream begins or begins again. Of a backlog a scan delivers a limited number, the
oldest hours first, and the next scan continues there. What is later than ``late`` is found by a full scan of the
manifests.

Errors of ``resolve`` and ``follow``: ``NotFound`` for a reference that does not exist, ``Corrupt`` or ``Incompatible``
for a reference or a manifest that cannot be read.
"""

import base64
import hashlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, PlainSerializer

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.record import Record
from holdfast.objects.store import Object, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.references import HORIZON_NS, is_in_time, named_manifest

HOUR_NS = 3_600 * 1_000_000_000
LOOKBACK_NS = HOUR_NS
"""How far a collector's clock may be behind the store's for a regular scan to find its references."""
LATE_NS = 24 * HOUR_NS
"""How long after its hour a reference may be written to be found by a deep scan: a spool that lands after an outage."""
ID_BYTES = 12
CHECKPOINT_FORMAT = "holdfast.pipeline.reconcile"
CHECKPOINT_VERSION = 2
READS = 64
"""References that are read at a time."""
_SECOND = 1_000_000_000


class NoBatch(Enum):
    """Why a reference leads to no accepted batch."""

    NO_MANIFEST = "no manifest of its identity has been written"
    OTHER_ACCEPTANCE = "the manifest of its identity records another acceptance"
    TOO_LATE = "the manifest of its identity was written long after it"


@dataclass(frozen=True, slots=True)
class AcceptedBatch:
    manifest: AcceptedManifest
    written_ns: int
    """When the manifest was written, by the store's clock."""


async def follow(store: Store, key: str) -> AcceptedManifest | NoBatch:
    """The accepted batch that this reference leads to, in time or not. Two GETs."""
    found = await _read(store, key)
    return found if isinstance(found, NoBatch) else found[1].manifest


async def resolve(store: Store, key: str, listed_ns: int | None = None) -> AcceptedBatch | NoBatch:
    """The accepted batch that a reference leads to, if the reference counts. Two GETs. ``listed_ns`` is its time in a
    listing: a reference that was written again since belongs to a later scan.
    """
    found = await _read(store, key)
    if isinstance(found, NoBatch):
        return found
    reference, batch = found
    rewritten = listed_ns is not None and abs(reference.modified_ns - listed_ns) >= _SECOND
    return batch if is_in_time(reference, batch.written_ns) and not rewritten else NoBatch.TOO_LATE


async def _read(store: Store, key: str) -> tuple[Object, AcceptedBatch] | NoBatch:
    reference = await store.get(key)
    found = await store.find(named_manifest(reference))
    if found is None:
        return NoBatch.NO_MANIFEST
    manifest = AcceptedManifest.read(found)
    try:
        own = layout.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity)
    except (ValueError, OverflowError):  # another writer's manifest may hold any number for its time
        return NoBatch.OTHER_ACCEPTANCE
    return (reference, AcceptedBatch(manifest, found.modified_ns)) if key == own else NoBatch.OTHER_ACCEPTANCE


def reference_id(key: str) -> bytes:
    """The id by which positions name a reference. One batch may have several, in different hours."""
    return hashlib.sha256(key.removeprefix(layout.ACCEPTED_BY_TIME).encode()).digest()[:ID_BYTES]


@dataclass(frozen=True, slots=True)
class ListedReference:
    key: str
    """Below the prefix of all references."""
    modified_ns: int
    """When it was written, by the store's clock."""

    @property
    def id(self) -> bytes:
        return reference_id(self.full_key)

    @property
    def full_key(self) -> str:
        return f"{layout.ACCEPTED_BY_TIME}{self.key}"


def _ids(joined: bytes) -> frozenset[bytes]:
    return frozenset(joined[at : at + ID_BYTES] for at in range(0, len(joined), ID_BYTES))


Floors = Annotated[
    tuple[tuple[str, int], ...],
    BeforeValidator(lambda floors: sorted(dict(floors).items())),
    PlainSerializer(dict),
]
Ids = Annotated[
    frozenset[bytes],
    BeforeValidator(lambda text: _ids(base64.b64decode(text, validate=True))),
    PlainSerializer(lambda ids: base64.b64encode(b"".join(sorted(ids))).decode()),
]


@dataclass(frozen=True)
class Position(Record):
    WHAT: ClassVar[str] = "a position among accepted batches"

    floors: Floors = (("", 0),)
    """From which key on which floor holds; the first from the very beginning."""
    recent: Ids = frozenset()
    newest_ns: int = 0
    """The latest time of a reference that was listed."""
    regular_ns: int = 0
    """Regular scans have listed all hours in which collectors without delay wrote before this time."""
    deep_ns: int = 0
    """Deep scans have listed all hours in which collectors with a delay wrote before this time."""
    pending_ns: int = 0
    """What these become once the scan that had to stop has come to the end."""
    pending_deep: bool = False
    begin: str = ""
    """The first key that the scan which led here has listed."""
    more: str = ""
    """Where a scan had to stop; empty if it went to the end."""

    def floor(self, key: str) -> int:
        return self.floors[bisect_right(self.floors, (key, float("inf"))) - 1][1]

    def delivered(self, reference: ListedReference) -> bool:
        return reference.modified_ns < self.floor(reference.key) or reference.id in self.recent

    def without(self, ids: Iterable[bytes]) -> "Position":
        """The same, where these were not delivered: they led to no batch yet."""
        return replace(self, recent=self.recent.difference(ids))

    @classmethod
    def at(cls, time_ns: int, recent: Iterable[bytes] = ()) -> "Position":
        """Where everything was delivered that was written before, by the store's clock."""
        return cls((("", time_ns),), frozenset(recent), regular_ns=time_ns, deep_ns=time_ns)

    @classmethod
    def parse(cls, document: Mapping[str, Any], *, key: str) -> "Position":
        """No field may be missing: a document of another kind is not the position at the beginning."""
        missing = [each.name for each in fields(cls) if each.name not in document and each.name != "extra"]
        if missing:
            raise Corrupt(f"{key}: not {cls.WHAT} ({missing[0]} is missing)")
        return super().parse(document, key=key)

    @classmethod
    def of_offset(cls, document: Mapping[str, Any]) -> "Position":
        """``Invalid`` for the offset of another stream."""
        try:
            return cls.parse(document, key="the offset")
        except Corrupt as error:
            raise Invalid(str(error), remedy="use a checkpoint of its own") from error


@dataclass(frozen=True, slots=True)
class Rule:
    """Which hours scans list."""

    horizon_ns: int = HORIZON_NS
    late_ns: int = LATE_NS
    lookback_ns: int = LOOKBACK_NS

    def deep(self, position: Position) -> bool:
        """Whether it is time for a deep scan."""
        return not position.more and position.newest_ns - position.deep_ns >= HOUR_NS

    def begin(self, position: Position, *, deep: bool) -> str:
        """The first key that a scan lists."""
        if position.more:
            return position.more
        since = (position.deep_ns - self.late_ns if deep else position.regular_ns) - self.horizon_ns - self.lookback_ns
        return layout.hour_path(since) if since > 0 else ""


@dataclass(slots=True)
class Scan:
    """One scan, reference by reference, in the order of keys. Pure."""

    rule: Rule
    start: Position
    deep: bool
    limit: int | None = None
    within: Position | None = None
    """What was not delivered there is left for another scan."""
    new: list[ListedReference] = field(default_factory=list)
    _listed: list[ListedReference] = field(default_factory=list)
    """Those that may have to stay in ``recent``."""
    _ids: set[bytes] = field(default_factory=set)
    _newest_ns: int = 0
    _stopped: str = ""

    @property
    def begin(self) -> str:
        return self.rule.begin(self.start, deep=self.deep)

    def add(self, reference: ListedReference) -> bool:
        """False if no more are wanted."""
        if self.within is not None and not self.within.delivered(reference):
            return True
        if self.start.delivered(reference):
            if reference.id in self.start.recent:
                self._listed.append(reference)
                self._ids.add(reference.id)
        elif self.limit is not None and len(self.new) >= self.limit:
            self._stopped = reference.key
            return False
        else:
            self.new.append(reference)
            self._listed.append(reference)
        self._newest_ns = max(self._newest_ns, reference.modified_ns)
        return True

    def end(self, took_ns: int = 0) -> Position:
        """The position once all of ``new`` is delivered. ``took_ns`` is how long listing took."""
        start = self.start
        newest_ns = max(start.newest_ns, self._newest_ns)
        # For a scan in several parts, the time of the first part counts.
        pending_ns = start.pending_ns if start.more else newest_ns - took_ns
        deep = start.pending_deep if start.more else self.deep or not self.begin
        ended = not self._stopped
        floor = max(0, self._newest_ns - self.rule.horizon_ns - took_ns)
        if self.within is not None:
            floor = min(floor, max(each for _, each in self.within.floors))
        floors = _raised(start, self.begin, self._stopped, floor)
        reached = Position(floors)
        kept = {each.id for each in self._listed if each.modified_ns >= reached.floor(each.key)}
        return Position(
            floors,
            frozenset((start.recent - self._ids) | kept),
            newest_ns,
            max(start.regular_ns, pending_ns) if ended else start.regular_ns,
            max(start.deep_ns, pending_ns) if ended and deep else start.deep_ns,
            0 if ended else pending_ns,
            deep and not ended,
            self.begin,
            self._stopped,
        )


def _raised(position: Position, begin: str, end: str, floor: int) -> tuple[tuple[str, int], ...]:
    """The floors, where those of the keys from ``begin`` on, before ``end`` (empty: all), are at least ``floor``."""
    keys = sorted({key for key, _ in position.floors} | {begin} | ({end} if end else set()))
    found: list[tuple[str, int]] = []
    for key in keys:
        inside = key >= begin and (not end or key < end)
        value = max(position.floor(key), floor) if inside else position.floor(key)
        if not found or found[-1][1] != value:
            found.append((key, value))
    return tuple(found)


def delivered_between(start: Position, end: Position, references: Iterable[ListedReference]) -> list[ListedReference]:
    """What was delivered from ``start`` to ``end``, of a listing that has the keys from ``end.begin`` on."""
    return [each for each in references if end.delivered(each) and not start.delivered(each)]


async def listed_references(store: Store, begin: str = "") -> AsyncIterator[ListedReference]:
    """References from this key on, which is one below the prefix; foreign objects are left out."""
    after = f"{layout.ACCEPTED_BY_TIME}{begin[:-1]}" if begin else None
    async for page in store.list(layout.ACCEPTED_BY_TIME, after=after):
        for entry in page.entries:
            if layout.is_by_time(entry.key):
                yield ListedReference(entry.key.removeprefix(layout.ACCEPTED_BY_TIME), entry.modified_ns)


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of a scan, before any reference was read."""

    end: Position
    """The position if each of ``new`` leads to a batch; those that do not are removed by ``Position.without``."""
    new: list[ListedReference]
    """In the order of keys."""
    count: int
    """Number of references that were listed."""


async def scan(
    store: Store,
    clock: Clock,
    rule: Rule,
    start: Position,
    *,
    deep: bool,
    limit: int | None = None,
    within: Position | None = None,
) -> Scanned:
    """The references that are new since ``start``. One LIST per thousand references of the hours that it lists."""
    found = Scan(rule, start, deep, limit, within)
    began_ns, count = clock.monotonic_ns(), 0
    async for each in listed_references(store, found.begin):
        count += 1
        if not found.add(each):
            break
    return Scanned(found.end(clock.monotonic_ns() - began_ns), found.new, count)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What references lead to."""

    batches: list[tuple[ListedReference, AcceptedManifest]]
    waiting: list[ListedReference]
    """Those that lead to no batch, yet or for ever."""
    unreadable: list[tuple[str, HoldfastError]]
    """Keys of references that cannot be read, or whose manifest cannot; these count as delivered."""


async def resolve_all(store: Store, references: Sequence[ListedReference], *, limit: int = READS) -> Resolved:
    """Two GETs for each."""

    async def one(each: ListedReference) -> AcceptedBatch | NoBatch | HoldfastError:
        try:
            return await resolve(store, each.full_key, each.modified_ns)
        except NotFound:
            return NoBatch.NO_MANIFEST
        except (Corrupt, Incompatible, Invalid) as error:
            return error

    resolved = Resolved([], [], [])
    for each, found in zip(references, await map_bounded(references, one, limit=limit), strict=True):
        match found:
            case AcceptedBatch():
                resolved.batches.append((each, found.manifest))
            case NoBatch():
                resolved.waiting.append(each)
            case error:
                resolved.unreadable.append((each.full_key, error))
    return resolved


async def position_now(store: Store, clock: Clock, rule: Rule) -> Position:
    """Where everything counts as delivered that exists now. Only references of the last horizon are read."""
    found = await scan(store, clock, rule, Position(), deep=True)
    young = [each for each in found.new if each.id in found.end.recent]
    return found.end.without(each.id for each in (await resolve_all(store, young)).waiting)


async def reconciled_position(store: Store) -> Position | None:
    """The reconciler's position; None before it has one (``pipeline.checkpoint``)."""
    found = await store.find(layout.RECONCILED)
    if found is None:
        return None
    document = codec.decode(found.body, key=found.key)
    codec.expect(document, format_name=CHECKPOINT_FORMAT, newest=CHECKPOINT_VERSION, key=found.key)
    return await position_in(store, document)


async def position_in(store: Store, checkpoint: Mapping[str, Any]) -> Position | None:
    """The position in a checkpoint, whose ids are in an object of their own. ``Corrupt`` if it cannot be read."""
    document = checkpoint.get("position")
    if document is None:
        return None
    position = Position.parse({**document, "recent": ""}, key=layout.RECONCILED)
    return replace(position, recent=await read_ids(store, checkpoint.get("recent")))


async def read_ids(store: Store, key: str | None) -> frozenset[bytes]:
    """The ids of a position. If the object is gone, a later checkpoint has replaced it, and no id counts."""
    found = await store.find(key) if key is not None else None
    return _ids(b"" if found is None else found.body)


async def undelivered(store: Store, position: Position | None, since_ns: int) -> list[ListedReference]:
    """References of the hours from ``since_ns`` on that were not delivered; without a position, all of them."""
    begin = layout.hour_path(max(0, since_ns))
    if position is not None:
        begin = max(begin, Rule().begin(position, deep=False))
    return [each async for each in listed_references(store, begin) if position is None or not position.delivered(each)]
