"""Whose turn it is in a section with ordered delivery, wherever its events lie. Pure.

Events of one ordering key stand in a *line*, oldest first; an event without a key is a line of its own. Only the first
of a line may be tried, and of those the one with the highest priority goes first. A line may lie in piles, at hand, or
in both. So a worker keeps a few columns of every sheet in memory, some 150 bytes per event, and asks them: which events
at hand have somebody before them in a pile, and which is the best event in a pile that has nobody before it.

Lines are told apart by hashes. Two keys of one hash, which nobody will ever see, would wait for each other.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.bus.digest import line_of
from holdfast.bus.pile import READY, Pile, Rank, Row

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FOLLOWERS = 16
"""So many of a line come along with its first one, and more where there are few lines."""
_MOST = int(np.iinfo(np.int64).max)


class Columns(NamedTuple):
    """A sheet, as far as turns need it."""

    names: npt.NDArray[np.bytes_]
    lines: npt.NDArray[np.uint64]
    priorities: Ints
    dues: Ints

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Columns":
        given = list(rows)
        return cls(
            np.array([name.encode() for name, _ in given]),
            np.array([line_of(name, item) for name, item in given], dtype=np.uint64),
            _ints(item.priority for _, item in given),
            _ints(item.due_ns for _, item in given),
        )


class Backlog:
    """The rows of some sheets, line by line."""

    def __init__(self, sheets: Mapping[str, Columns]) -> None:
        self.sheets = dict(sheets)
        self.ids = list(sheets)
        every = list(sheets.values()) or [Columns.of(())]
        sizes = [len(each.lines) for each in every]
        names = np.concatenate([each.names for each in every])
        age = np.empty(len(names), dtype=np.int64)
        age[np.argsort(names, kind="stable")] = np.arange(len(names))
        lines = np.concatenate([each.lines for each in every])
        self.order = np.lexsort((age, lines))
        self.lines, self.age = lines[self.order], age[self.order]
        self.priorities = np.concatenate([each.priorities for each in every])[self.order]
        _, places = np.unique(-self.priorities, return_inverse=True)
        self.ranks: Ints = (places << 32) + self.age
        """Highest priority first, then the oldest."""
        self.dues = np.concatenate([each.dues for each in every])[self.order]
        self.sheet = np.repeat(np.arange(len(every)), sizes)[self.order]
        self.row = np.concatenate([np.arange(size) for size in sizes])[self.order]

    def name(self, at: int) -> str:
        found: bytes = self.sheets[self.ids[self.sheet[at]]].names[self.row[at]]
        return found.decode()


class Look(NamedTuple):
    """How those in piles stand to those at hand."""

    fence: Rank | None
    """The best event in a pile whose turn it is: what comes after it has to wait until it was fetched."""
    behind: frozenset[int]
    """Lines whose first one lies in a pile, though there are others of it at hand."""
    free: Bools
    """Of the lines in piles those whose turn it is."""


NOTHING_PILED = Look(None, frozenset(), np.zeros(0, dtype=np.bool_))


class Turns:
    """What is left in the piles of a section. ``backlog`` has at least the rows of their sheets."""

    def __init__(self, backlog: Backlog, piles: tuple[Pile, ...]) -> None:
        self.backlog = backlog
        self.piles = piles
        left = {sheet: np.zeros(len(columns.lines), dtype=np.bool_) for sheet, columns in backlog.sheets.items()}
        ready = dict.fromkeys(backlog.ids, False)
        for pile in piles:
            for number, sheet in enumerate(pile.sheets):
                left[sheet.id] = _left(sheet.taken, sheet.rows)
                left[sheet.id][: pile.start if number == 0 else 0] = False
                ready[sheet.id] = pile.kind == READY
        self._at = np.flatnonzero(np.concatenate([left[sheet] for sheet in backlog.ids])[backlog.order])
        """Where in the backlog the rows are that are left, line by line."""
        lines = backlog.lines[self._at]
        first = np.ones(len(lines), dtype=np.bool_)
        first[1:] = lines[1:] != lines[:-1]
        self._starts = np.flatnonzero(first)
        self._ends = np.append(self._starts[1:], len(lines))
        heads = self._at[self._starts]
        self._in_ready = np.array([ready[sheet] for sheet in backlog.ids])[backlog.sheet[self._at]]
        self._lines = backlog.lines[heads]
        self._dues = np.where(self._in_ready[self._starts], 0, backlog.dues[heads])
        self._names: dict[int, str] = {}
        self._ranks = backlog.ranks[heads]

    def look(self, heads: Mapping[int, str], now_ns: int) -> Look:
        """``heads`` are the lines at hand, each with its oldest."""
        free = self._dues <= now_ns
        behind: set[int] = set()
        wanted = np.fromiter(heads, dtype=np.uint64, count=len(heads))
        places = np.minimum(np.searchsorted(self._lines, wanted), len(self._lines) - 1)
        hits = self._lines[places] == wanted
        for line, place in zip(wanted[hits].tolist(), places[hits].tolist(), strict=True):
            if self._name(place) < heads[line]:
                behind.add(line)
            else:
                free[place] = False
        if not free.any():
            return Look(None, frozenset(behind), free)
        best = int(np.argmin(np.where(free, self._ranks, _MOST)))
        rank = -int(self.backlog.priorities[self._at[self._starts[best]]]), self._name(best)
        return Look(rank, frozenset(behind), free)

    def choose(self, look: Look, count: int) -> dict[str, list[int]]:
        """What to fetch, as rows of sheets: the best ``count`` whose turn it is, and about as many that come after them
        in their lines and will not have to wait for others then."""
        places = np.flatnonzero(look.free & self._in_ready[self._starts])
        if len(places) > count:
            places = places[np.argpartition(self._ranks[places], count)[:count]]
        chosen = [int(each) for each in self._starts[places]]
        worst = min((self._priority(each) for each in chosen), default=0)
        followers: list[tuple[int, int, int]] = []
        for start, end in zip(chosen, self._ends[places].tolist(), strict=True):
            floor = self._priority(start)
            for each in range(start + 1, min(end, start + 1 + FOLLOWERS + count // len(chosen))):
                floor = min(floor, self._priority(each))
                if floor < worst or not self._in_ready[each]:
                    break
                followers.append((-floor, int(self.backlog.age[self._at[each]]), each))
        found: dict[str, list[int]] = {}
        for each in [*chosen, *(place for _, _, place in sorted(followers)[:count])]:
            at = self._at[each]
            found.setdefault(self.backlog.ids[self.backlog.sheet[at]], []).append(int(self.backlog.row[at]))
        return found

    def _priority(self, each: int) -> int:
        return int(self.backlog.priorities[self._at[each]])

    def _name(self, place: int) -> str:
        found = self._names.get(place)
        if found is None:
            found = self._names[place] = self.backlog.name(self._at[self._starts[place]])
        return found


def _ints(numbers: Iterable[int]) -> Ints:
    """Others may have written larger ones than there is room for."""
    return np.array([max(-_MOST, min(number, _MOST)) for number in numbers], dtype=np.int64)


def _left(taken: int, rows: int) -> Bools:
    """Which rows are not taken."""
    bits = np.frombuffer(taken.to_bytes((rows + 7) // 8, "little"), dtype=np.uint8)
    left: Bools = np.unpackbits(bits, count=rows, bitorder="little") == 0
    return left
