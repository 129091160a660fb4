"""Tools for columns: orders, groups of equal neighbours, lists of different lengths. Nothing loops over elements."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

NO_INTS: Ints = np.zeros(0, np.int64)
NO_FLOATS: Floats = np.zeros(0, np.float64)


def order_by_time(series_id: Ints, time_ns: Ints, seq: Ints, series: int) -> Ints | None:
    """The order by series, time and sequence number; None if everything is in that order. ``series`` is how many there
    are.
    """
    if _in_order(series_id, time_ns, seq):
        return None
    # Batches are usually in the order of time already. Numbers of 16 bits are sorted several times as fast as others.
    order: Ints = np.argsort(series_id.astype(np.min_scalar_type(series)), kind="stable")
    if not _in_order(series_id[order], time_ns[order], seq[order]):
        order = np.lexsort((seq, time_ns, series_id))
    return order


def _in_order(series_id: Ints, time_ns: Ints, seq: Ints) -> bool:
    same, equal = series_id[1:] == series_id[:-1], time_ns[1:] == time_ns[:-1]
    later = (time_ns[1:] > time_ns[:-1]) | (equal & (seq[1:] > seq[:-1]))
    return bool(((series_id[1:] > series_id[:-1]) | (same & later)).all())


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
    return np.diff(starts, append=total)


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """A list of pairs of whole numbers for each row: keys that grow, and how often each occurs."""

    offsets: Ints
    """Where the list of each row begins, and the end of the last one."""
    keys: Ints
    counts: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def take(self, rows: Ints | slice) -> "Lists":
        """The lists of some rows; a slice of neighbours has no step."""
        if isinstance(rows, slice):
            offsets = self.offsets[rows.start : rows.stop + 1]
            inside = slice(int(offsets[0]), int(offsets[-1]))
            return Lists(offsets - offsets[0], self.keys[inside], self.counts[inside])
        offsets = offsets_of(self.lengths[rows])
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], np.diff(offsets))
        return Lists(offsets, self.keys[places], self.counts[places])

    @classmethod
    def empty(cls, rows: int) -> "Lists":
        return cls(np.zeros(rows + 1, np.int64), NO_INTS, NO_INTS)

    @classmethod
    def joined(cls, parts: Sequence["Lists"]) -> "Lists":
        return cls(
            offsets_of(np.concatenate([NO_INTS, *(each.lengths for each in parts)])),
            np.concatenate([NO_INTS, *(each.keys for each in parts)]),
            np.concatenate([NO_INTS, *(each.counts for each in parts)]),
        )


def offsets_of(lengths: Ints) -> Ints:
    """Where lists of these lengths begin, and the end of the last one."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets
