"""The digest: what the workers of a namespace know of its events, so that no poll reads history. Pure.

One object per namespace, with a section per handler. A section covers events in the order of their names, which is the
order of their times. Every name up to its ``cursor`` is either ``open`` (not settled) or ``folded`` into a count and an
xor of hashes per ten minutes of event time. A name after the cursor that some worker has read is open or ``recent``
(settled).

The window: at most about ``WINDOW`` open events of a section are due. When there are that many, workers read no further
until some are settled, so the cursor waits and nothing is skipped. Open events that wait for a delay, a retry or
the end of a lease take no place in the window.

The digest is advice: a claim decides. A name may be settled here only by a worker that has read a settled claim whose
effects are written, or an event of a type that the handler does not take; so no event is lost. A worker's news travel
as a ``Change``. Changes of several workers may be applied in any order: a settled name stays settled, except that it
may be opened again, which costs a request. The sweep finds wrong folds and corrects them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.base.record import UNLESS_EMPTY, Record
from holdfast.bus import layout
from holdfast.objects.register import Shape

FORMAT = "holdfast.bus.digest"
VERSION = 1
WINDOW = 2_048
"""Due events per handler at which workers stop reading."""
TAIL = 500
"""Known names that may come after the cursor: half a page of a listing."""
LAG_NS = 10 * 1_000_000_000
"""How far the cursor stays behind the present while there are at most ``TAIL`` names after it."""

LONG_WAIT_NS = 60 * 1_000_000_000
"""Events behind one of their ordering key that waits for longer take no place in the window."""

Hex = Annotated[int, BeforeValidator(lambda text: int(text, 16)), PlainSerializer(lambda value: f"{value:016x}")]
Fold = tuple[int, Hex]
"""A count of settled names, and the xor of their hashes."""

EMPTY: Fold = (0, 0)


class Item(NamedTuple):
    """An open event: what ordering, timing and statistics need. In a document it is the list of its fields."""

    priority: Annotated[int, Strict()]
    type: Annotated[str, Strict()]
    due_ns: Annotated[int, Strict()] = 0
    """The earliest time of the next try: a delay, a retry, or the end of a worker's lease. 0 is at once."""
    order_key: Annotated[str | None, Strict()] = None


def _event_name(name: str) -> str:
    if "_" not in name:
        raise ValueError("not the name of an event")  # it could not be claimed
    return name


EventName = Annotated[str, AfterValidator(_event_name)]


@dataclass
class Change:
    """What one worker has learned since it last wrote the digest. Mutable: it grows with every event."""

    found: dict[str, Item] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    due: dict[str, int] = field(default_factory=dict)
    """New due times of open events."""
    cursor: str = ""
    """Every name up to here is in the digest or in this change."""
    refold: dict[str, tuple[Fold, Fold]] = field(default_factory=dict)
    """Per ten minutes: the fold that the sweep has seen, and the right one."""
    late: set[str] = field(default_factory=set)
    """Found names that the sweep has found before the cursor."""

    def copy(self) -> "Change":
        return Change(
            dict(self.found), set(self.settled), dict(self.due), self.cursor, dict(self.refold), set(self.late)
        )

    def without(self, written: "Change") -> "Change":
        """What is left of it after ``written``, an earlier copy, has been written."""
        return Change(
            found={name: item for name, item in self.found.items() if written.found.get(name) != item},
            settled=self.settled - written.settled,
            due={name: due for name, due in self.due.items() if written.due.get(name) != due},
            cursor="" if self.cursor == written.cursor else self.cursor,
            refold={key: value for key, value in self.refold.items() if written.refold.get(key) != value},
            late=self.late - written.late,
        )

    def __bool__(self) -> bool:
        return bool(self.found or self.settled or self.due or self.cursor or self.refold)


@dataclass(frozen=True)
class Section(Record):
    types: tuple[str, ...] = ()
    cursor: str = ""
    recent: Annotated[frozenset[str], PlainSerializer(sorted)] = frozenset()
    open: Mapping[EventName, Item] = field(default_factory=dict)
    folded: Mapping[str, Fold] = field(default_factory=dict)
    seen_ns: int = 0
    """When a worker with this handler last wrote the section."""
    workers: Annotated[tuple[str, ...], UNLESS_EMPTY] = ()
    """The sessions that share the handler's events, in order."""

    def needs(self, name: str) -> bool:
        """Whether no worker has read this event yet, as far as the section says."""
        return name > self.cursor and name not in self.open and name not in self.recent

    def due(self, now_ns: int) -> int:
        """How many open events may be tried now."""
        return sum(item.due_ns <= now_ns for item in self.open.values())

    def places(self, now_ns: int, *, ordered: bool) -> int:
        """How many places of the window are taken: one per event that is due.

        With ordered delivery an event whose ordering key waits for a long delay takes none either. One whose key waits
        for a short time does: its oldest event is being handled, or is about to be tried again.
        """
        if not ordered:
            return self.due(now_ns)
        oldest: dict[str, str] = {}
        for name, item in self.open.items():
            key = item.order_key
            if key is not None and (key not in oldest or name < oldest[key]):
                oldest[key] = name
        blocked = {key for key, name in oldest.items() if self.open[name].due_ns > now_ns + LONG_WAIT_NS}
        return sum(item.due_ns <= now_ns and item.order_key not in blocked for item in self.open.values())

    @property
    def settled(self) -> int:
        """How many names the section counts as settled, those of types that the handler does not take included."""
        return len(self.recent) + sum(count for count, _ in self.folded.values())


def heads(names: Iterable[str], items: Mapping[str, Item]) -> list[str]:
    """Of ``names``, which are in order of age, those that are the oldest of their ordering key, or have none."""
    found: list[str] = []
    keys: set[str] = set()
    for name in names:
        key = items[name].order_key
        if key is None or key not in keys:
            found.append(name)
        if key is not None:
            keys.add(key)
    return found


def hash_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def fold(names: Iterable[str], onto: Fold = EMPTY) -> Fold:
    count, mixed = onto
    for name in names:
        count, mixed = count + 1, mixed ^ hash_of(name)
    return count, mixed


def apply(section: Section, change: Change) -> Section:
    """The section with the change.

    A found name that is not after the cursor is ignored, unless the sweep has found it (``late``): another worker has
    written it before, and it may be settled by now.
    """
    cursor = max(section.cursor, change.cursor)
    opened = {
        **section.open,
        **{
            name: item
            for name, item in change.found.items()
            if name not in section.recent and (name > section.cursor or name in change.late)
        },
    }
    for name, due_ns in change.due.items():
        if name in opened:
            opened[name] = opened[name]._replace(due_ns=due_ns)
    recent = set(section.recent)
    folded = dict(section.folded)
    for bucket, (seen, right) in change.refold.items():
        if folded.get(bucket, EMPTY) == seen:
            folded[bucket] = right
    passed: list[str] = []
    for name in change.settled:
        opened.pop(name, None)
        if name > section.cursor:
            recent.add(name)
        elif name in section.open:  # else another worker has folded it already
            passed.append(name)
    passed += [name for name in recent if name <= cursor]
    for name in passed:
        bucket = layout.bucket(name)
        folded[bucket] = fold((name,), folded.get(bucket, EMPTY))
    return replace(
        section,
        cursor=cursor,
        recent=frozenset(name for name in recent if name > cursor),
        open=opened,
        folded={bucket: value for bucket, value in folded.items() if value != EMPTY},
    )


def next_cursor(section: Section, change: Change, seen_to: str, now_ns: int) -> str:
    """How far the cursor may move when all names up to ``seen_to`` are known; empty if nowhere.

    ``TAIL`` names stay after it, or those younger than the lag, whichever is less; it never passes the present.
    """
    present = layout.time_name(now_ns)
    after = sorted(
        name
        for name in {*section.open, *section.recent, *change.found, *change.settled}
        if section.cursor < name <= min(seen_to, present)
    )
    overdue = layout.time_name(now_ns - LAG_NS)
    fit = after[: -TAIL or None]
    aged = [name for name in after if name <= overdue]
    return max([*fit[-1:], *aged[-1:]], default="")


def forget_before(section: Section, name: str) -> Section:
    """The section after everything before ``name`` was cleaned up.

    No worker may have read ``name`` itself yet, so the cursor stays before it, at its time.
    """
    bucket = layout.bucket(name)
    return replace(
        section,
        open={each: item for each, item in section.open.items() if each >= name},
        recent=frozenset(each for each in section.recent if each >= name),
        folded={each: value for each, value in section.folded.items() if each >= bucket},
        cursor=max(section.cursor, name.partition("_")[0]),
    )


def is_settled(section: Section, name: str) -> bool:
    """Whether the handler is known to be done with the event."""
    return name not in section.open and (name <= section.cursor or name in section.recent)


@dataclass(frozen=True)
class Digest(Record):
    WHAT = "a digest"

    sections: Annotated[Mapping[str, Section], Field(alias="handlers")] = field(default_factory=dict)
    swept_ns: int = 0
    swept_to: str = ""
    """Where the next sweep continues."""


@lru_cache(maxsize=2**16)
def ranked(workers: tuple[str, ...], share: str) -> tuple[str, ...]:
    """The workers in the order in which they should read and claim an event; the first is its owner.

    They are ordered by a hash of worker and share (rendezvous hashing): a worker that joins or leaves moves only its
    own share.
    """
    return tuple(sorted(workers, key=lambda worker: hash_of(f"{worker}{share}")))


class DigestShape(Shape[Digest]):
    def read(self, document: Document, key: str) -> Digest:
        codec.expect(document, format_name=FORMAT, newest=VERSION, key=key)
        try:
            return Digest.parse(document, key=key)
        except Corrupt as error:
            raise Corrupt(str(error), remedy="delete it: the next worker derives it again") from error

    def write(self, value: Digest, previous: Document | None) -> Document:
        return {**(previous or {}), **value.document(format=FORMAT, version=VERSION)}
