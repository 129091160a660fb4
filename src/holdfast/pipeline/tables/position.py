"""Where a stream of accepted batches stands, among references that may be written late. Pure.

References by time stand in the order of hours of acceptance, by the clocks of collectors; within an hour in no order of
time. A spool that lands after an outage adds to hours long past. What says when a reference came is the store's own
time of its object, which nobody else's clock can spoil.

A position says of every reference whether it was given out: if it was written before the **floor** of its place, or if
its id is among the **recent** ones. Floors are a step function over keys. A look lists keys from some place on, gives
out what was not given out, and raises the floor of what it has listed to the newest time that it has seen, less an
overlap and the time that the listing took. The one assumption is the reconciler's: a write is visible an overlap after
the time that it has. Then, for every reference e, and a look from P to Q that listed L:

    given(Q, e)  if and only if  given(P, e) or e was fresh in L

If e was in L, its floor or ``recent`` says so. If it was not, it was written no longer than an overlap before its page
was listed, and so no earlier than the newest that was seen, less the length of the listing and an overlap: it is above
every floor that the look has raised, and no look has seen its id. Hence nothing is given twice and nothing is passed
over; and what lies between P and Q is found again, at any later time, as what Q has given and P has not.

A **regular** look lists the hours from where collectors' clocks can have been since the regular look before it; a
**deep** one those of ``late`` (a day, unless told otherwise) before the deep look before it, once for every hour by
which the newest time has moved, and when a stream begins or begins again. Of a backlog a look takes so many, the oldest
hours first, and the next goes on there. Whatever is later than ``late`` is left to readers of the whole table.
"""

import base64
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.codec import MALFORMED
from holdfast.base.errors import Invalid
from holdfast.telemetry.accept import layout

HOUR_NS = 3_600 * 1_000_000_000
LOOKBACK_NS = HOUR_NS
"""How far behind the store's a collector's clock may be, so that a regular look finds its references."""
SHORT = 12
"""Bytes of an id that tell it from others."""
ALL = 0
"""The floor of what nobody has looked at."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A reference as a listing has it: its key below the prefix, and when it was written by the store's clock."""

    key: str
    modified_ns: int

    @property
    def id(self) -> bytes:
        return bytes.fromhex(self.key.rpartition("/")[2].removesuffix(".json")[: 2 * SHORT])


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

    overlap_ns: int = 600 * 1_000_000_000
    late_ns: int = 24 * HOUR_NS

    def deep(self, position: Position) -> bool:
        """Whether it is time for a deep look."""
        return not position.more and position.newest_ns - position.deep_ns >= HOUR_NS

    def begin(self, position: Position, *, deep: bool) -> str:
        """Where a look begins to list."""
        if position.more:
            return position.more
        since = position.deep_ns - self.late_ns if deep else position.regular_ns
        return layout.hour_path(since - self.overlap_ns - LOOKBACK_NS) if since > self.overlap_ns + LOOKBACK_NS else ""


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
        floor = max(0, self._newest_ns - self.rule.overlap_ns - took_ns)
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
