"""Small tools for columns: stable orders, groups of equal neighbours, ragged lists. No loop over elements."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NO_INTS: Ints = np.zeros(0, np.int64)
NO_FLOATS: Floats = np.zeros(0, np.float64)
_RADIX_BITS = 16


def stable_order(numbers: Ints, below: int) -> Ints:
    """The order that sorts numbers from 0 to ``below``; equal ones stay as they stand.

    Sixteen bits at a time: numpy sorts those by radix, several times as fast as whole numbers."""
    order: Ints = np.argsort(numbers.astype(np.uint16), kind="stable")
    shift = _RADIX_BITS
    while below >> shift:
        order = order[np.argsort((numbers[order] >> shift).astype(np.uint16), kind="stable")]
        shift += _RADIX_BITS
    return order


def order_by_time(series_id: Ints, time_ns: Ints, series: int) -> Ints | None:
    """The order by series, time and place; None if everything stands in it already."""
    if _in_order(series_id, time_ns):
        return None
    order = stable_order(series_id, series)
    if _in_order(series_id[order], time_ns[order]):
        return order
    by_both: Ints = np.lexsort((time_ns, series_id))
    return by_both


def _in_order(series_id: Ints, time_ns: Ints) -> bool:
    before, after = series_id[:-1], series_id[1:]
    if not (after >= before).all():
        return False
    return bool(((time_ns[1:] >= time_ns[:-1]) | (after > before)).all())


def starts_of_groups(*columns: Ints) -> Ints:
    """Where a row differs from the one before it in any of these columns."""
    count = len(columns[0])
    if not count:
        return NO_INTS
    differs = np.empty(count, np.bool_)
    differs[0] = True
    np.not_equal(columns[0][1:], columns[0][:-1], out=differs[1:])
    for column in columns[1:]:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def lengths_of(starts: Ints, total: int) -> Ints:
    """How long each group is, by where it starts."""
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = total - starts[-1:]
    return lengths


def spans(starts: Ints, lengths: Ints) -> Ints:
    """The places of some pieces of a column, one piece after the other."""
    total = int(lengths.sum())
    if not total:
        return NO_INTS
    ends = lengths.cumsum()
    return np.arange(total) + np.repeat(starts - (ends - lengths), lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """A list of pairs of whole numbers for each row: keys that grow, and how often each is there."""

    lengths: Ints
    keys: Ints
    counts: Ints

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def offsets(self) -> Ints:
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        self.lengths.cumsum(out=offsets[1:])
        return offsets

    def take(self, rows: Ints) -> "Lists":
        places = spans(self.offsets[:-1][rows], self.lengths[rows])
        return Lists(self.lengths[rows], self.keys[places], self.counts[places])

    def cut(self, begin: int, end: int, offsets: Ints) -> "Lists":
        """The lists of some neighbours; ``offsets`` are those of all."""
        inside = slice(int(offsets[begin]), int(offsets[end]))
        return Lists(self.lengths[begin:end], self.keys[inside], self.counts[inside])

    @classmethod
    def empty(cls, rows: int) -> "Lists":
        return cls(np.zeros(rows, np.int64), NO_INTS, NO_INTS)

    @classmethod
    def joined(cls, parts: Sequence["Lists"]) -> "Lists":
        if not parts:
            return cls.empty(0)
        return cls(
            np.concatenate([each.lengths for each in parts]),
            np.concatenate([each.keys for each in parts]),
            np.concatenate([each.counts for each in parts]),
        )
