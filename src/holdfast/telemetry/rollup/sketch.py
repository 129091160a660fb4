"""Sketches of distributions, in logarithmic buckets: quantiles with an error of less than 1 % of the value.

Each power of two is divided into 64 buckets of equal width, so that the middle of a bucket is at most 0.8 % away from
the values in it. The key of a bucket is the upper part of the bits of its floats; without logarithms, every machine
computes the same keys. Keys grow with values: 0 is zero (of either sign), negative values have the negated keys of
positive ones, infinities have buckets of their own. Values below the smallest normal float (2.2e-308) have an error of
up to that float. NaN is not a value and has no key.

Sketches are merged by adding counts; the result does not depend on the order.

A **plain** row of a rollup has no sketch, because ``min`` and ``max`` determine it: all of its samples are equal, or it
has at most two (``is_plain``, ``of_plain``).
"""

import math

import numpy as np

from holdfast.telemetry.rollup.columns import Flags, Floats, Ints, Lists, lengths_of, offsets_of, starts_of_groups

BITS = 6
"""64 buckets in each power of two."""
_SHIFT = 52 - BITS
_HALF = 1 << (_SHIFT - 1)
HIGHEST = (0x7FF << BITS) + 1
"""The key of infinity."""
_SPREAD = 1 << 19
"""More than there are keys."""
_OFFSET = 1 << 18
_MAGNITUDE = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def keys_of(values: Floats) -> Ints:
    bits = values.view(np.int64)
    magnitude = bits & _MAGNITUDE
    keys = (magnitude >> _SHIFT) + 1
    keys[magnitude == 0] = 0
    negative = bits < 0
    if negative.any():
        keys[negative] = -keys[negative]
    return keys


def value_of(key: int) -> float:
    """The middle of a bucket."""
    if key == 0:
        return 0.0
    magnitude = abs(key)
    if magnitude >= HIGHEST:
        return math.copysign(math.inf, key)
    bits = ((magnitude - 1) << _SHIFT) + _HALF
    return math.copysign(float(np.int64(bits).view(np.float64)), key)


def is_plain(count: Ints, low: Floats, high: Floats) -> Flags:
    """Which rows are plain."""
    plain: Flags = (count <= 2) | (low == high)
    return plain


def of_values(group: Ints, values: Floats, groups: int) -> Lists:
    """The sketch of each group of values; groups are numbers that do not shrink from value to value."""
    codes = group * _SPREAD + (keys_of(values) + _OFFSET)
    codes.sort(kind="stable")  # several times as fast as others, because the groups are in order already
    starts = starts_of_groups(codes)
    counts = lengths_of(starts, len(codes))
    return _lists(codes[starts], counts, groups)


def merged(group: Ints, lists: Lists, groups: int) -> Lists:
    """The sketch of each group of sketches; ``group`` has the group of each list."""
    codes = np.repeat(group, lists.lengths) * _SPREAD + (lists.keys + _OFFSET)
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = starts_of_groups(codes)
    counts = np.add.reduceat(lists.counts[order], starts) if len(starts) else lists.counts
    return _lists(codes[starts], counts, groups)


def of_plain(count: Ints, low: Floats, high: Floats) -> Lists:
    """The sketches of plain rows; an empty one for a row without values."""
    first, last = keys_of(np.where(count > 0, low, 0.0)), keys_of(np.where(count > 0, high, 0.0))
    both = (count == 2) & (first != last)
    lengths = np.where(both, 2, np.where(count > 0, 1, 0))
    keys = np.stack([first, last], axis=1)
    counts = np.stack([np.where(both, 1, count), np.ones(len(count), np.int64)], axis=1)
    present = np.stack([count > 0, both], axis=1)
    return Lists(offsets_of(lengths), keys[present], counts[present])


def quantile(keys: Ints, counts: Ints, q: float, low: float, high: float) -> float:
    """The value of nearest rank: the smallest one such that at least the part ``q`` of all values does not exceed it.
    The least and the greatest value are exact. NaN without values.
    """
    total = int(counts.sum())
    if not total:
        return math.nan
    rank = min(max(math.ceil(q * total), 1), total)
    if rank == 1:
        return low
    if rank == total:
        return high
    key = int(keys[int(np.searchsorted(counts.cumsum(), rank))])
    return min(max(value_of(key), low), high)


def _lists(codes: Ints, counts: Ints, groups: int) -> Lists:
    of = codes // _SPREAD
    keys = codes - of * _SPREAD - _OFFSET
    return Lists(offsets_of(np.bincount(of, minlength=groups)), keys, counts)
