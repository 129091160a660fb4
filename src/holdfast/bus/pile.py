"""Piles: the open events that do not fit into a digest, in the order in which they will be wanted. Pure.

A section keeps a bounded number of open events at hand. The others lie in *piles*: a pile is a sorted sequence of rows
in immutable objects (*sheets*), and the section refers to what is left of it. A name is in a pile or at hand, never in
both: a ``Move`` takes rows from one to the other within one edit of the digest, or changes nothing. The next to come is
the best of the piles' heads; what is at hand and comes after it must wait until that has been fetched.

Kinds of order: ``ready`` piles hold events that are due, by priority, then age. ``later`` piles are sorted by due time.
In a section with ordered delivery the next to come may lie anywhere in its piles (see ``turns``): its sheets note which
rows are taken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

READY = "ready"
LATER = "later"

FAN = 8
"""So many piles of one level are merged into one of the next: their number grows with the logarithm of the backlog."""

Rank = tuple[int, str]


class Item(NamedTuple):
    """An open event: what ordering, timing and statistics need. In a document it is the list of its fields."""

    priority: int
    type: str
    due_ns: int = 0
    """Not to be tried before: a delay, a retry, or another worker's lease. 0 is at once."""
    order_key: str | None = None


Row = tuple[str, Item]


def read_item(row: Any) -> Item:
    item = Item._make(row)
    priority, kind, due_ns, key = item
    if not (type(priority) is int and type(kind) is str and type(due_ns) is int and (key is None or type(key) is str)):
        raise ValueError(f"{row!r} is no open event")
    return item


def rank(row: Row, kind: str) -> Rank:
    """Where the row stands in a pile of this kind."""
    name, item = row
    return (item.due_ns if kind == LATER else -item.priority), name


def in_rank(rows: Iterable[Row], kind: str) -> list[Row]:
    return sorted(rows, key=lambda row: rank(row, kind))


class Sheet(NamedTuple):
    """An object of sorted rows."""

    id: str
    rows: int
    head: Rank
    taken: int = 0
    """Rows that are not in it any more, a bit each."""

    @property
    def left(self) -> int:
        return self.rows - self.taken.bit_count()

    def document(self) -> list[Any]:
        return [self.id, self.rows, list(self.head), *([f"{self.taken:x}"] if self.taken else [])]

    @classmethod
    def parse(cls, value: Any) -> "Sheet":
        sheet, rows, head, *taken = value
        read = cls(str(sheet), int(rows), _rank(head), int(taken[0], 16) if taken else 0)
        if read.taken < 0 or read.taken.bit_length() > read.rows or read.left < 1:
            raise ValueError(f"{value!r} is no sheet")
        return read


@dataclass(frozen=True, slots=True)
class Pile:
    """What is left of a sorted sequence: all rows of its sheets but the ``start`` first ones of the first sheet."""

    kind: str
    level: int
    start: int
    head: Rank
    sheets: tuple[Sheet, ...]

    @property
    def id(self) -> str:
        return self.sheets[-1].id

    @property
    def count(self) -> int:
        return sum(sheet.left for sheet in self.sheets) - self.start

    def document(self) -> list[Any]:
        return [
            self.kind,
            self.level,
            self.start,
            list(self.head),
            [sheet.document() for sheet in self.sheets],
        ]

    @classmethod
    def parse(cls, value: Any) -> "Pile":
        kind, level, start, head, sheets = value
        if kind not in (READY, LATER) or not sheets:
            raise ValueError(f"{value!r} is no pile")
        return cls(kind, int(level), int(start), _rank(head), tuple(map(Sheet.parse, sheets)))


def _rank(value: Any) -> Rank:
    number, name = value
    return int(number), str(name)


def best(piles: Iterable[Pile], kind: str) -> Rank | None:
    return min((pile.head for pile in piles if pile.kind == kind), default=None)


@dataclass(frozen=True)
class Move:
    """Rows change their place: ``taken`` go into piles, ``fetched`` come out, or piles are merged. ``before`` become
    ``after``, if nobody has changed them; else, or if a taken name is not at hand any more, nothing happens.
    """

    before: tuple[Pile, ...] = ()
    after: tuple[Pile, ...] = ()
    taken: Sequence[str] = ()
    fetched: Sequence[Row] = ()
