"""Which accepted batches are new: the one answer, for the reconciler, live state, queries and Spark streams.

**References by time.** A collector writes ``accepted-by-time/.../{manifest_id}.json`` beside the bytes and before the
manifest, so whatever was accepted can be found by time, whichever process crashes. A reference alone proves nothing:

* Its manifest may not exist yet, or never. It is looked for again until ``HORIZON_NS`` has passed.
* It may belong to an attempt that another acceptance of the identity has preceded. It counts only if it lies where the
  manifest's time of acceptance puts it.
* It may be too old: a collector paused between the two writes, and everyone who looks may have given the reference up.
  It counts only if it was written at most ``IN_TIME_NS`` before the manifest, by the store's own times of both. A
  collector makes sure of that before it acknowledges (``accept.references``); nothing else writes a reference that
  counts again.

So whether a reference counts is decided by two immutable facts, and everyone who looks comes to the same answer.

**Positions.** References stand in the order of hours of acceptance, by the clocks of collectors; within an hour in no
order of time. A spool that lands after an outage adds to hours long past. The store's own time of a reference says when
it was written. A position says of every reference whether it was given out: if it was written before the **floor** of
its place, or if its id is among the **recent** ones. Floors are a step function over keys. A look lists keys from some
place on, gives out what was not given out and leads to a batch, and raises the floor of what it has listed to the
newest time that it has seen, less the horizon and the time that the listing took. Assumption: a write is visible a
horizon after the time that it has. Then, for every reference e that counts, and a look from P to Q that listed L:

    given(Q, e)  if and only if  given(P, e) or e was given out by this look

If e was in L and led to its batch, its floor or ``recent`` says so. If e was in L and its manifest was missing, it is
not in ``recent``; and if the floor has passed it, its manifest will be too late for it to count. If e was not in L, it
was written no longer than a horizon before its page was listed, so it is above every floor that the look has raised.
Hence nothing is given twice and nothing is skipped, and what lies between P and Q is found again at any later time.

A **regular** look lists the hours from where collectors' clocks can have been since the regular look before it; a
**deep** one those of ``late`` (a day by default) before the deep look before it, once for every hour by which the
newest time has moved, and when a stream begins or begins again. Of a backlog a look takes a limited number, the oldest
hours first, and the next look continues there. What is later than ``late`` is found by a full scan of the manifests.

Errors of ``resolve`` and ``follow``: ``NotFound`` for a reference that is gone, ``Corrupt`` or ``Incompatible`` for a
reference or a manifest that cannot be read.
"""

import base64
import hashlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.clock import Clock
from holdfast.base.codec import MALFORMED
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.objects.store import Object, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.references import HORIZON_NS, is_in_time, named_manifest

HOUR_NS = 3_600 * 1_000_000_000
LOOKBACK_NS = HOUR_NS
"""How far a collector's clock may be behind the store's for a regular look to find its references."""
LATE_NS = 24 * HOUR_NS
"""How long after its hour a reference may be written to be found by a deep look: a spool that lands after an outage."""
SHORT = 12
"""Bytes of an id."""
CHECKPOINT_FORMAT = "holdfast.pipeline.reconcile"
CHECKPOINT_VERSION = 2
ALL = 0
"""The floor of keys that no look has listed."""
READS = 64
"""References that are read at a time."""
_SECOND = 1_000_000_000


class Stray(Enum):
    """A reference that leads to no accepted batch."""

    NO_MANIFEST = "no manifest of its identity has been written"
    OTHER_ACCEPTANCE = "the manifest of its identity records another acceptance"
    TOO_LATE = "the manifest of its identity was written long after it"


async def follow(store: Store, key: str) -> AcceptedManifest | Stray:
    """The accepted batch that lies where this reference says, in time or not. Two GETs."""
    found = await _read(store, key)
    return found if isinstance(found, Stray) else found[1].manifest


@dataclass(frozen=True, slots=True)
class Batch:
    """An accepted batch, and when its manifest was written by the store's clock."""

    manifest: AcceptedManifest
    written_ns: int


async def resolve(store: Store, key: str, listed_ns: int | None = None) -> Batch | Stray:
    """The accepted batch that a reference leads to, if the reference counts. Two GETs. ``listed_ns`` is its time in a
    listing: one that was written again since belongs to a later look.
    """
    found = await _read(store, key)
    if isinstance(found, Stray):
        return found
    reference, batch = found
    rewritten = listed_ns is not None and abs(reference.modified_ns - listed_ns) >= _SECOND
    return batch if is_in_time(reference, batch.written_ns) and not rewritten else Stray.TOO_LATE


async def _read(store: Store, key: str) -> tuple[Object, Batch] | Stray:
    reference = await store.get(key)
    found = await store.find(named_manifest(reference))
    if found is None:
        return Stray.NO_MANIFEST
    manifest = AcceptedManifest.read(found)
    return (reference, Batch(manifest, found.modified_ns)) if _stands_at(key, manifest) else Stray.OTHER_ACCEPTANCE


def _stands_at(key: str, manifest: AcceptedManifest) -> bool:
    try:
        return key == layout.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity)
    except (ValueError, OverflowError):  # another writer's manifest may hold any number for its time
        return False


def reference_id(key: str) -> bytes:
    """What positions hold of a reference. One batch may have several, in different hours."""
    return hashlib.sha256(key.removeprefix(layout.ACCEPTED_BY_TIME).encode()).digest()[:SHORT]


@dataclass(frozen=True, slots=True)
class Seen:
    """A reference as a listing has it: its key below the prefix, and when it was written by the store's clock."""

    key: str
    modified_ns: int

    @property
    def id(self) -> bytes:
        return reference_id(self.reference)

    @property
    def reference(self) -> str:
        """The whole key."""
        return f"{layout.ACCEPTED_BY_TIME}{self.key}"


@dataclass(frozen=True, slots=True)
class Position:
    steps: tuple[tuple[str, int], ...] = (("", ALL),)
    """From which key on which floor holds; the first from the very beginning."""
    recent: frozenset[bytes] = frozenset()
    newest_ns: int = 0
    """The latest time of a reference that was seen."""
    regular_ns: int = 0
    """What was written before this time, by collectors without delay, lies where looks have been."""
    deep_ns: int = 0
    """The same of what was written with a delay."""
    pending_ns: int = 0
    """What these become once the look that had to stop has come to the end."""
    pending_deep: bool = False
    begin: str = ""
    """The first key that the look which led here has listed."""
    more: str = ""
    """Where a look had to stop; empty if it went to the end."""

    def floor(self, key: str) -> int:
        return self.steps[bisect_right(self.steps, (key, float("inf"))) - 1][1]

    def has(self, seen: Seen) -> bool:
        """Whether it was given out."""
        return seen.modified_ns < self.floor(seen.key) or seen.id in self.recent

    def without(self, ids: Iterable[bytes]) -> "Position":
        """The same, where these were not given out: they led to no batch yet."""
        return replace(self, recent=self.recent.difference(ids))

    @classmethod
    def at(cls, time_ns: int, recent: Iterable[bytes] = ()) -> "Position":
        """Where everything was given out that was written before, by the store's clock."""
        return cls((("", time_ns),), frozenset(recent), regular_ns=time_ns, deep_ns=time_ns)

    def document(self) -> dict[str, Any]:
        return {
            "floors": dict(self.steps),
            "recent": base64.b64encode(b"".join(sorted(self.recent))).decode(),
            "newest_ns": self.newest_ns,
            "regular_ns": self.regular_ns,
            "deep_ns": self.deep_ns,
            "pending_ns": self.pending_ns,
            "pending_deep": self.pending_deep,
            "begin": self.begin,
            "more": self.more,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Position":
        try:
            ids = base64.b64decode(document["recent"], validate=True)
            return cls(
                tuple(sorted((str(key), int(floor)) for key, floor in document["floors"].items())),
                frozenset(ids[at : at + SHORT] for at in range(0, len(ids), SHORT)),
                int(document["newest_ns"]),
                int(document["regular_ns"]),
                int(document["deep_ns"]),
                int(document["pending_ns"]),
                bool(document["pending_deep"]),
                str(document["begin"]),
                str(document["more"]),
            )
        except MALFORMED as error:
            raise Invalid(
                f"not an offset of accepted batches ({error!r})", remedy="use a checkpoint of its own"
            ) from error


@dataclass(frozen=True, slots=True)
class Rule:
    """How looks are made."""

    horizon_ns: int = HORIZON_NS
    late_ns: int = LATE_NS
    lookback_ns: int = LOOKBACK_NS

    def deep(self, position: Position) -> bool:
        """Whether it is time for a deep look."""
        return not position.more and position.newest_ns - position.deep_ns >= HOUR_NS

    def begin(self, position: Position, *, deep: bool) -> str:
        """Where a look begins to list."""
        if position.more:
            return position.more
        since = (position.deep_ns - self.late_ns if deep else position.regular_ns) - self.horizon_ns - self.lookback_ns
        return layout.hour_path(since) if since > 0 else ""


@dataclass(slots=True)
class Look:
    """One look, reference by reference, in the order of keys."""

    rule: Rule
    start: Position
    deep: bool
    limit: int | None = None
    within: Position | None = None
    """What was not given out there is left for another time."""
    fresh: list[Seen] = field(default_factory=list)
    _listed: list[Seen] = field(default_factory=list)
    """Those that may have to stay in ``recent``."""
    _ids: set[bytes] = field(default_factory=set)
    _newest_ns: int = 0
    _stopped: str = ""

    @property
    def begin(self) -> str:
        return self.rule.begin(self.start, deep=self.deep)

    def take(self, seen: Seen) -> bool:
        """Note one reference; False if no more are wanted."""
        if self.within is not None and not self.within.has(seen):
            return True
        if self.start.has(seen):
            if seen.id in self.start.recent:
                self._listed.append(seen)
                self._ids.add(seen.id)
        elif self.limit is not None and len(self.fresh) >= self.limit:
            self._stopped = seen.key
            return False
        else:
            self.fresh.append(seen)
            self._listed.append(seen)
        self._newest_ns = max(self._newest_ns, seen.modified_ns)
        return True

    def end(self, took_ns: int = 0) -> Position:
        """Where the stream stands when all that is fresh has been given out. ``took_ns`` is how long listing took."""
        start = self.start
        newest_ns = max(start.newest_ns, self._newest_ns)
        # Of a look in several goes, what counts is when the first one was.
        pending_ns = start.pending_ns if start.more else newest_ns - took_ns
        deep = start.pending_deep if start.more else self.deep or not self.begin
        ended = not self._stopped
        floor = max(0, self._newest_ns - self.rule.horizon_ns - took_ns)
        if self.within is not None:
            floor = min(floor, max(each for _, each in self.within.steps))
        steps = _raised(start.steps, self.begin, self._stopped, floor)
        reached = Position(steps)
        kept = {each.id for each in self._listed if each.modified_ns >= reached.floor(each.key)}
        return Position(
            steps,
            frozenset((start.recent - self._ids) | kept),
            newest_ns,
            max(start.regular_ns, pending_ns) if ended else start.regular_ns,
            max(start.deep_ns, pending_ns) if ended and deep else start.deep_ns,
            0 if ended else pending_ns,
            deep and not ended,
            self.begin,
            self._stopped,
        )


def _raised(steps: Sequence[tuple[str, int]], begin: str, end: str, floor: int) -> tuple[tuple[str, int], ...]:
    """The floors, where those of the keys from ``begin`` on, before ``end`` (empty: all), are at least ``floor``."""
    known = Position(tuple(steps))
    places = sorted({key for key, _ in steps} | {begin} | ({end} if end else set()))
    found: list[tuple[str, int]] = []
    for place in places:
        inside = place >= begin and (not end or place < end)
        value = max(known.floor(place), floor) if inside else known.floor(place)
        if not found or found[-1][1] != value:
            found.append((place, value))
    return tuple(found)


def between(start: Position, end: Position, listed: Iterable[Seen]) -> list[Seen]:
    """What was given out from ``start`` to ``end``, of a listing that holds the keys from ``end.begin`` on."""
    return [each for each in listed if end.has(each) and not start.has(each)]


async def listed(store: Store, begin: str = "") -> AsyncIterator[Seen]:
    """References from this key on, which is one below the prefix; foreign objects are left out."""
    after = f"{layout.ACCEPTED_BY_TIME}{begin[:-1]}" if begin else None
    async for page in store.list(layout.ACCEPTED_BY_TIME, after=after):
        for entry in page.entries:
            key = entry.key.removeprefix(layout.ACCEPTED_BY_TIME)
            if layout.is_by_time(entry.key):
                yield Seen(key, entry.modified_ns)


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look has found, before any reference was read."""

    end: Position
    """Where it leads if each of ``fresh`` leads to a batch; those that do not are taken out (``Position.without``)."""
    fresh: list[Seen]
    """In the order of keys."""
    count: int
    """References that were listed."""


async def look(
    store: Store,
    clock: Clock,
    rule: Rule,
    start: Position,
    *,
    deep: bool,
    limit: int | None = None,
    within: Position | None = None,
) -> Looked:
    """The references that are new since ``start``. One LIST per thousand references of the hours that it lists."""
    found = Look(rule, start, deep, limit, within)
    began_ns, count = clock.monotonic_ns(), 0
    async for each in listed(store, found.begin):
        count += 1
        if not found.take(each):
            break
    return Looked(found.end(clock.monotonic_ns() - began_ns), found.fresh, count)


@dataclass(frozen=True, slots=True)
class New:
    """What is new since a position."""

    batches: list[tuple[Seen, AcceptedManifest]]
    end: Position
    unreadable: list[tuple[str, HoldfastError]]
    """References whose manifest cannot be read; they count as given out."""


async def new_since(
    store: Store,
    clock: Clock,
    rule: Rule,
    start: Position,
    *,
    deep: bool,
    limit: int | None = None,
    within: Position | None = None,
) -> New:
    """The accepted batches that are new since ``start``. Two GETs for each, beside the look."""
    found = await look(store, clock, rule, start, deep=deep, limit=limit, within=within)
    batches, waiting, unreadable = await resolved(store, found.fresh)
    return New(batches, found.end.without(each.id for each in waiting), unreadable)


async def latest(store: Store, clock: Clock, rule: Rule) -> Position:
    """Where everything counts as given out that is there now. Only references of the last horizon are read."""
    found = await look(store, clock, rule, Position(), deep=True)
    young = [each for each in found.fresh if each.id in found.end.recent]
    _, waiting, _ = await resolved(store, young)
    return found.end.without(each.id for each in waiting)


async def resolved(
    store: Store, seen: Sequence[Seen], *, limit: int = READS
) -> tuple[list[tuple[Seen, AcceptedManifest]], list[Seen], list[tuple[str, HoldfastError]]]:
    """The batches that these lead to; those that lead to none, yet or for ever; and those that cannot be read."""

    async def one(each: Seen) -> Batch | Stray | HoldfastError:
        try:
            return await resolve(store, each.reference, each.modified_ns)
        except NotFound:
            return Stray.NO_MANIFEST
        except (Corrupt, Incompatible, Invalid) as error:
            return error

    batches: list[tuple[Seen, AcceptedManifest]] = []
    waiting: list[Seen] = []
    unreadable: list[tuple[str, HoldfastError]] = []
    for each, found in zip(seen, await map_bounded(seen, one, limit=limit), strict=True):
        match found:
            case Batch():
                batches.append((each, found.manifest))
            case Stray():
                waiting.append(each)
            case error:
                unreadable.append((each.reference, error))
    return batches, waiting, unreadable


async def reconciled(store: Store) -> Position | None:
    """Where the reconciler stands; None before it has one (``pipeline.checkpoint``)."""
    found = await store.find(layout.RECONCILED)
    if found is None:
        return None
    document = codec.decode(found.body, key=found.key)
    codec.expect(document, format_name=CHECKPOINT_FORMAT, newest=CHECKPOINT_VERSION, key=found.key)
    return await position_in(store, document)


async def position_in(store: Store, checkpoint: Mapping[str, Any]) -> Position | None:
    """The position in a checkpoint, whose ids are in an object of their own. ``Corrupt`` if it cannot be read."""
    document, recent = checkpoint.get("position"), checkpoint.get("recent")
    if document is None:
        return None
    try:
        position = Position.of({**document, "recent": ""})
    except (Invalid, *MALFORMED) as error:
        raise Corrupt(f"{layout.RECONCILED}: not the checkpoint of a reconciler ({error})") from error
    return replace(position, recent=await read_ids(store, recent))


async def read_ids(store: Store, key: str | None) -> frozenset[bytes]:
    """The ids of a position. If they are gone, a later checkpoint has replaced them, and none is known."""
    found = await store.find(key) if key is not None else None
    body = b"" if found is None else found.body
    return frozenset(body[at : at + SHORT] for at in range(0, len(body), SHORT))


async def given_between(store: Store, start: Position, end: Position) -> list[Seen]:
    """The references that were given out between two positions; some of them lead to no batch."""
    return between(start, end, [each async for each in listed(store, end.begin)])


async def not_given(store: Store, position: Position | None, since_ns: int) -> list[Seen]:
    """What was not given out at a position, of hours from ``since_ns`` on; without a position, all of those hours."""
    begin = layout.hour_path(max(0, since_ns))
    if position is not None:
        begin = max(begin, Rule().begin(position, deep=False))
    return [each async for each in listed(store, begin) if position is None or not position.has(each)]
