"""Histograms in columns: each has one of a few layouts of bounds, and a row of counts in the table of its layout.

Histograms are added by adding counts. Histograms of different bounds are added on the bounds that all of them have:
neighbouring buckets become one, and nothing is estimated, so the sum does not depend on order or grouping. Without a
common bound, one bucket is left, which counts everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.telemetry.rollup.columns import NO_INTS, Floats, Ints, lengths_of

Table = npt.NDArray[np.int64]
"""One row per histogram, one column per bucket."""


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    layouts: tuple[Floats, ...]
    layout: Ints
    """For each histogram, the number of its layout."""
    row: Ints
    """For each histogram, its row in the table of its layout."""
    tables: tuple[Table, ...]

    def __len__(self) -> int:
        return len(self.layout)

    def take(self, places: Ints | slice) -> "Buckets":
        return Buckets(self.layouts, self.layout[places], self.row[places], self.tables)

    def totals(self) -> Ints:
        """The number of observations of each histogram."""
        found = np.zeros(len(self), np.int64)
        for number, table in enumerate(self.tables):
            chosen = self.layout == number
            found[chosen] = table.sum(axis=1)[self.row[chosen]]
        return found

    def at(self, place: int) -> tuple[list[float], list[int]]:
        """Bounds and counts of one histogram."""
        layout = int(self.layout[place])
        return self.layouts[layout].tolist(), self.tables[layout][int(self.row[place])].tolist()

    @classmethod
    def empty(cls) -> "Buckets":
        return cls((), NO_INTS, NO_INTS, ())

    @classmethod
    def joined(cls, parts: Sequence["Buckets"]) -> "Buckets":
        """Concatenate; equal layouts become one."""
        numbers: dict[bytes, int] = {}
        layouts: list[Floats] = []
        pieces: list[list[Table]] = []
        heights: list[int] = []
        layout, row = [NO_INTS], [NO_INTS]
        for part in parts:
            if not len(part):
                continue
            renumbered, shift = np.zeros(len(part.layouts), np.int64), np.zeros(len(part.layouts), np.int64)
            for old, bounds in enumerate(part.layouts):
                new = numbers.setdefault(bounds.tobytes(), len(layouts))
                if new == len(layouts):
                    layouts.append(bounds)
                    pieces.append([])
                    heights.append(0)
                renumbered[old], shift[old] = new, heights[new]
                pieces[new].append(part.tables[old])
                heights[new] += len(part.tables[old])
            layout.append(renumbered[part.layout])
            row.append(part.row + shift[part.layout])
        tables = tuple(np.concatenate(each) for each in pieces)
        return cls(tuple(layouts), np.concatenate(layout), np.concatenate(row), tables)

    def added(self, starts: Ints) -> "Buckets":
        """The sum of each group of neighbours; ``starts`` is where the groups begin."""
        if not len(starts):
            return Buckets.empty()
        lowest = np.minimum.reduceat(self.layout, starts)
        mixed = lowest != np.maximum.reduceat(self.layout, starts)
        layout, row = lowest.copy(), np.zeros(len(starts), np.int64)
        group = np.repeat(np.arange(len(starts)), lengths_of(starts, len(self)))
        tables: list[Table] = []
        for number, table in enumerate(self.tables):
            chosen = np.flatnonzero((self.layout == number) & ~mixed[group])
            groups, begins = np.unique(group[chosen], return_index=True)
            rows = table[self.row[chosen]]
            tables.append(np.add.reduceat(rows, begins, axis=0) if len(groups) else rows)
            row[groups] = np.arange(len(groups))
        parts = [Buckets(self.layouts, layout, row, tuple(tables))]
        where = np.flatnonzero(mixed)
        if not len(where):
            return parts[0]
        for number in where.tolist():
            end = int(starts[number + 1]) if number + 1 < len(starts) else len(self)
            parts.append(self._onto_common(int(starts[number]), end))
        together = Buckets.joined(parts)
        places = np.arange(len(starts))
        places[where] = len(starts) + np.arange(len(where))
        return together.take(places)

    def _onto_common(self, begin: int, end: int) -> "Buckets":
        """The sum of these as one histogram. Only needed for a series whose bounds have changed."""
        used = np.unique(self.layout[begin:end]).tolist()
        common = self.layouts[used[0]]
        for number in used[1:]:
            common = np.intersect1d(common, self.layouts[number], assume_unique=True)
        total = np.zeros(len(common) + 1, np.int64)
        for number in used:
            rows = self.row[begin:end][self.layout[begin:end] == number]
            counts = self.tables[number][rows].sum(axis=0)
            ends = np.searchsorted(self.layouts[number], common) + 1
            total += np.diff(np.concatenate([[0], counts.cumsum()[ends - 1], [counts.sum()]]))
        return Buckets((common,), np.zeros(1, np.int64), np.zeros(1, np.int64), (total.reshape(1, -1),))
