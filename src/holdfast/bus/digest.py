"""What consumers know of a namespace, so that nobody reads history: a section per handler. Pure.

A section looks at events in the order of their names. Up to its ``cursor`` every name has been looked at: it is
``open`` (not settled, with what is needed to order and to time it) or ``folded`` into a count and an xor per ten
minutes of event time. After the cursor a known name is open or ``recent`` (settled).

The digest is advice: a claim decides. But a name may be settled here only by who has read a settled claim whose effects
are written, or an event of a type that the handler does not take; so no event is lost. Knowledge travels as a
``Change``. Changes of several workers may be applied in any order: what was settled stays settled, except that a
name may come up again, which costs a request. Wrong folds are found by the sweep, which rewrites them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.bus import layout
from holdfast.objects.register import Shape

FORMAT = "holdfast.bus.digest"
VERSION = 1
WINDOW = 500
"""So many known names may stand after the cursor: half a page of a listing."""
LAG_NS = 10 * 1_000_000_000
"""How far the cursor stays behind the present, if the window allows it."""

Fold = tuple[int, int]
"""How many settled names, and the xor of their hashes."""

EMPTY: Fold = (0, 0)


class Item(NamedTuple):
    """An open event: what ordering, timing and statistics need. In a document it is the list of its fields."""

    priority: int
    type: str
    due_ns: int = 0
    """Not to be tried before: a delay, a retry, or another worker's lease. 0 is at once."""
    order_key: str | None = None


@dataclass
class Change:
    """What one worker has learnt since it last wrote. The one mutable thing here: it grows with every event."""

    found: dict[str, Item] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    due: dict[str, int] = field(default_factory=dict)
    """New due times of open events."""
    cursor: str = ""
    """Every name up to here is known, to the digest or in this change."""
    refold: dict[str, tuple[Fold, Fold]] = field(default_factory=dict)
    """Per ten minutes: what was found folded, and what is right."""

    def copy(self) -> "Change":
        return Change(dict(self.found), set(self.settled), dict(self.due), self.cursor, dict(self.refold))

    def without(self, written: "Change") -> "Change":
        """What is left of it after an earlier copy was written."""
        return Change(
            found={name: item for name, item in self.found.items() if written.found.get(name) != item},
            settled=self.settled - written.settled,
            due={name: due for name, due in self.due.items() if written.due.get(name) != due},
            cursor="" if self.cursor == written.cursor else self.cursor,
            refold={key: value for key, value in self.refold.items() if written.refold.get(key) != value},
        )

    def __bool__(self) -> bool:
        return bool(self.found or self.settled or self.due or self.cursor or self.refold)


@dataclass(frozen=True)
class Section:
    types: tuple[str, ...] = ()
    cursor: str = ""
    recent: frozenset[str] = frozenset()
    open: Mapping[str, Item] = field(default_factory=dict)
    folded: Mapping[str, Fold] = field(default_factory=dict)
    seen_ns: int = 0
    """When a worker last had this handler."""

    def knows(self, name: str) -> bool:
        """Whether a name after the cursor needs no look."""
        return name in self.open or name in self.recent

    def in_order(self) -> list[str]:
        """Open events, due or not: highest priority first, then oldest."""
        return [name for _, name in sorted((-item.priority, name) for name, item in self.open.items())]

    def heads(self) -> dict[str, str]:
        """Of every ordering key the oldest open event."""
        heads: dict[str, str] = {}
        for name in sorted(self.open):
            key = self.open[name].order_key
            if key is not None:
                heads.setdefault(key, name)
        return heads


def hash_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def fold(names: Iterable[str], onto: Fold = EMPTY) -> Fold:
    count, mixed = onto
    for name in names:
        count, mixed = count + 1, mixed ^ hash_of(name)
    return count, mixed


def apply(section: Section, change: Change) -> Section:
    """The section with what the worker has learnt."""
    cursor = max(section.cursor, change.cursor)
    opened = {
        **section.open,
        **{name: item for name, item in change.found.items() if name not in section.recent},
    }
    for name, due_ns in change.due.items():
        if name in opened:
            opened[name] = opened[name]._replace(due_ns=due_ns)
    recent = set(section.recent)
    folded = dict(section.folded)
    for bucket, (seen, right) in change.refold.items():
        if folded.get(bucket, EMPTY) == seen:
            folded[bucket] = right
    spent: list[str] = []
    for name in change.settled:
        opened.pop(name, None)
        if name > section.cursor:
            recent.add(name)
        elif name in section.open:  # else somebody has folded it already
            spent.append(name)
    spent += [name for name in recent if name <= cursor]
    for name in spent:
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

    Half a page stays after it, or the lag, whichever is less; it never passes the present.
    """
    present = layout.time_name(now_ns)
    after = sorted(
        name
        for name in {*section.open, *section.recent, *change.found, *change.settled}
        if section.cursor < name <= min(seen_to, present)
    )
    overdue = layout.time_name(now_ns - LAG_NS)
    fit = after[: -WINDOW or None]
    aged = [name for name in after if name <= overdue]
    return max([*fit[-1:], *aged[-1:]], default="")


def forget_before(section: Section, name: str) -> Section:
    """The section after everything before ``name`` was cleaned up."""
    bucket = layout.bucket(name)
    return replace(
        section,
        open={each: item for each, item in section.open.items() if each >= name},
        recent=frozenset(each for each in section.recent if each >= name),
        folded={each: value for each, value in section.folded.items() if each >= bucket},
        cursor=max(section.cursor, name),
    )


@dataclass(frozen=True)
class Digest:
    sections: Mapping[str, Section] = field(default_factory=dict)
    swept_ns: int = 0
    swept_to: str = ""
    """Where the next sweep goes on."""
    workers: tuple[str, ...] = ()
    """The sessions that share the work, in order."""

    def owner(self, name: str, me: str) -> str:
        """Who should look at an event first, as far as ``me`` knows. Advice, as everything here.

        The worker with the highest hash: one that joins or leaves moves only its own share.
        """
        workers = self.workers if me in self.workers else (*self.workers, me)
        return max(workers, key=lambda worker: hash_of(f"{worker}{name}")) if len(workers) > 1 else me


class DigestShape(Shape[Digest]):
    """A digest as a document; open events are short lists, because there may be thousands."""

    def read(self, document: Document, key: str) -> Digest:
        codec.expect(document, format_name=FORMAT, newest=VERSION, key=key)
        try:
            sections = {name: _read_section(value) for name, value in document["handlers"].items()}
            workers = tuple(map(str, document.get("workers", ())))
            return Digest(sections, int(document["swept_ns"]), str(document["swept_to"]), workers)
        except codec.MALFORMED as error:
            raise Corrupt(f"{key}: not a digest ({error!r})", remedy="delete it: it is derived anew") from error

    def write(self, value: Digest, previous: Document | None) -> Document:
        return {
            **(previous or {}),
            "format": FORMAT,
            "version": VERSION,
            "handlers": {name: _write_section(section) for name, section in value.sections.items()},
            "swept_ns": value.swept_ns,
            "swept_to": value.swept_to,
            "workers": list(value.workers),
        }


def _read_section(value: Any) -> Section:
    if not all("_" in name for name in value["open"]):
        raise ValueError("among the open events is the name of none")  # it could never be claimed
    return Section(
        types=tuple(value["types"]),
        cursor=str(value["cursor"]),
        recent=frozenset(value["recent"]),
        open={name: _read_item(row) for name, row in value["open"].items()},
        folded={bucket: (int(count), int(mixed, 16)) for bucket, (count, mixed) in value["folded"].items()},
        seen_ns=int(value["seen_ns"]),
    )


def _read_item(row: Any) -> Item:
    item = Item._make(row)
    priority, kind, due_ns, key = item
    if not (type(priority) is int and type(kind) is str and type(due_ns) is int and (key is None or type(key) is str)):
        raise ValueError(f"{row!r} is no open event")
    return item


def _write_section(section: Section) -> Document:
    return {
        "types": list(section.types),
        "cursor": section.cursor,
        "recent": sorted(section.recent),
        "open": dict(section.open),
        "folded": {bucket: [count, f"{mixed:016x}"] for bucket, (count, mixed) in section.folded.items()},
        "seen_ns": section.seen_ns,
    }
