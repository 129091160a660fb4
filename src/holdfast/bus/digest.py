"""What consumers know of a namespace, so that nobody reads history: a section per handler. Pure.

A section looks at events in the order of their names. Up to its ``cursor`` every name has been looked at: it is
``open`` (not settled, with what is needed to order and to time it), in a pile (open too, see ``pile``) or ``folded``
into a count and an xor per ten minutes of event time. After the cursor a known name is open or ``recent`` (settled).

The digest is advice: a claim decides. But a name may be settled here only by who has read a settled claim whose effects
are written, or an event of a type that the handler does not take; so no event is lost. Knowledge travels as a
``Change``. Changes of several workers may be applied in any order: what was settled stays settled, except that a
name may come up again, which costs a request. Wrong folds are found by the sweep, which rewrites them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.bus import layout
from holdfast.bus.pile import READY, Item, Move, Pile, Rank, Row, best, rank, read_item
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
    repile: dict[str, tuple[Fold, Fold]] = field(default_factory=dict)
    """The same of what lies in piles."""
    late: set[str] = field(default_factory=set)
    """Of the found ones those that came to light before the cursor."""

    def copy(self) -> "Change":
        return Change(
            dict(self.found),
            set(self.settled),
            dict(self.due),
            self.cursor,
            dict(self.refold),
            dict(self.repile),
            set(self.late),
        )

    def without(self, written: "Change") -> "Change":
        """What is left of it after an earlier copy was written."""
        return Change(
            found={name: item for name, item in self.found.items() if written.found.get(name) != item},
            settled=self.settled - written.settled,
            due={name: due for name, due in self.due.items() if written.due.get(name) != due},
            cursor="" if self.cursor == written.cursor else self.cursor,
            refold={key: value for key, value in self.refold.items() if written.refold.get(key) != value},
            repile={key: value for key, value in self.repile.items() if written.repile.get(key) != value},
            late=self.late - written.late,
        )

    def __bool__(self) -> bool:
        return bool(self.found or self.settled or self.due or self.cursor or self.refold or self.repile)


@dataclass(frozen=True)
class Section:
    types: tuple[str, ...] = ()
    cursor: str = ""
    recent: frozenset[str] = frozenset()
    open: Mapping[str, Item] = field(default_factory=dict)
    folded: Mapping[str, Fold] = field(default_factory=dict)
    seen_ns: int = 0
    """When a worker last had this handler."""
    ordered: bool = False
    """The handler takes events of one ordering key one after the other."""
    piles: tuple[Pile, ...] = ()
    piled: Mapping[str, Fold] = field(default_factory=dict)
    """The names that lie in piles, as ``folded``."""

    @property
    def count(self) -> int:
        """Open events, in piles too."""
        return len(self.open) + sum(pile.count for pile in self.piles)

    def fence(self) -> Rank | None:
        """Nothing that stands behind this may be tried before the piles have been asked."""
        return best(self.piles, READY)

    def stands(self, name: str, item: Item) -> Rank:
        return rank((name, item), READY)

    def knows(self, name: str) -> bool:
        """Whether a name after the cursor needs no look."""
        return name in self.open or name in self.recent

    def in_order(self) -> list[str]:
        """Open events, due or not: highest priority first, then oldest."""
        return [name for _, name in sorted((-item.priority, name) for name, item in self.open.items())]

    def heads(self) -> dict[int, str]:
        """Of every line the oldest event that is at hand."""
        heads: dict[int, str] = {}
        for name in sorted(self.open):
            heads.setdefault(line_of(name, self.open[name]), name)
        return heads

    def in_turn(self, rows: Iterable[Row]) -> list[Row]:
        """Rows that are at hand: the first of their lines, then those that follow, which come up when all before them
        are done."""
        heads, floors = self.heads(), dict[int, int]()
        places: dict[str, tuple[bool, int, str]] = {}
        for name in sorted(self.open):
            line, priority = line_of(name, self.open[name]), self.open[name].priority
            floors[line] = min(floors.get(line, priority), priority)
            places[name] = heads[line] != name, -floors[line], name
        return sorted(rows, key=lambda row: places[row[0]])


def hash_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


_line = lru_cache(maxsize=32_768)(hash_of)


def line_of(name: str, item: Item) -> int:
    """In which line the event stands: that of its ordering key, or one of its own."""
    return _line(name if item.order_key is None else f"/{item.order_key}")


def fold(names: Iterable[str], onto: Fold = EMPTY) -> Fold:
    count, mixed = onto
    for name in names:
        count, mixed = count + 1, mixed ^ hash_of(name)
    return count, mixed


def join(one: Fold, other: Fold) -> Fold:
    """Of names that are in one or in the other."""
    return one[0] + other[0], one[1] ^ other[1]


def apply(section: Section, change: Change) -> Section:
    """The section with what the worker has learnt.

    Up to the cursor every name is known. Who says that it has found one there, and not by a sweep, tells what others
    have known for long: it may be settled and folded, or lie in a pile, and must not be at hand as well.
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
    piled = dict(section.piled)
    for bucket, (seen, right) in change.repile.items():
        if piled.get(bucket, EMPTY) == seen:
            piled[bucket] = right
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
        piled={bucket: value for bucket, value in piled.items() if value != EMPTY},
    )


def moved(section: Section, move: Move) -> Section:
    """The section after the move, or as it is if the move comes too late."""
    if not set(move.before) <= set(section.piles):
        return section
    if not all(name in section.open and name <= section.cursor for name in move.taken):
        return section
    taken = set(move.taken)
    opened = {name: item for name, item in section.open.items() if name not in taken}
    piles = (*(pile for pile in section.piles if pile not in move.before), *move.after)
    piled = dict(section.piled)
    for name in move.taken:
        bucket = layout.bucket(name)
        piled[bucket] = fold((name,), piled.get(bucket, EMPTY))
    for name, item in move.fetched:
        opened.setdefault(name, item)
        count, mixed = piled.get(layout.bucket(name), EMPTY)
        piled[layout.bucket(name)] = count - 1, mixed ^ hash_of(name)
    kept = {bucket: value for bucket, value in piled.items() if value != EMPTY}
    return replace(section, open=opened, piles=piles, piled=kept if piles else {})


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
    """The section after everything before ``name`` was cleaned up.

    Nobody may have looked at ``name`` itself yet, so the cursor stays before it, at its moment.
    """
    bucket = layout.bucket(name)
    return replace(
        section,
        open={each: item for each, item in section.open.items() if each >= name},
        recent=frozenset(each for each in section.recent if each >= name),
        folded={each: value for each, value in section.folded.items() if each >= bucket},
        cursor=max(section.cursor, name.partition("_")[0]),
    )


@dataclass(frozen=True)
class Digest:
    sections: Mapping[str, Section] = field(default_factory=dict)
    swept_ns: int = 0
    swept_to: str = ""
    """Where the next sweep goes on."""
    workers: tuple[str, ...] = ()
    """The sessions that share the work, in order."""
    ranked: bool = False
    """Some event has had another priority than the usual one."""

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
            ranked = bool(document.get("ranked", False))
            return Digest(sections, int(document["swept_ns"]), str(document["swept_to"]), workers, ranked)
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
            **({"ranked": True} if value.ranked else {}),
        }


def _read_section(value: Any) -> Section:
    if not all("_" in name for name in value["open"]):
        raise ValueError("among the open events is the name of none")  # it could never be claimed
    return Section(
        types=tuple(value["types"]),
        cursor=str(value["cursor"]),
        recent=frozenset(value["recent"]),
        open={name: read_item(row) for name, row in value["open"].items()},
        folded=_read_folds(value["folded"]),
        seen_ns=int(value["seen_ns"]),
        ordered=bool(value.get("ordered", False)),
        piles=tuple(Pile.parse(each) for each in value.get("piles", ())),
        piled=_read_folds(value.get("piled", {})),
    )


def _read_folds(value: Any) -> dict[str, Fold]:
    return {bucket: (int(count), int(mixed, 16)) for bucket, (count, mixed) in value.items()}


def _write_folds(value: Mapping[str, Fold]) -> Document:
    return {bucket: [count, f"{mixed:016x}"] for bucket, (count, mixed) in value.items()}


def _write_section(section: Section) -> Document:
    seldom = {
        "ordered": section.ordered,
        "piles": [pile.document() for pile in section.piles],
        "piled": _write_folds(section.piled),
    }
    return {
        "types": list(section.types),
        "cursor": section.cursor,
        "recent": sorted(section.recent),
        "open": dict(section.open),
        "folded": _write_folds(section.folded),
        "seen_ns": section.seen_ns,
        **{name: value for name, value in seldom.items() if value},
    }
