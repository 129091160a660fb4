"""How values are distributed, in logarithmic buckets: quantiles with an error of less than 1 % of the value.

Each power of two is divided into 64 buckets of equal width, so that the middle of a bucket is at most 0.8 % away from
whatever is in it. The bucket of a float is the upper part of its bits: no logarithm is taken, so that every machine
finds the same. Keys grow with values: 0 is zero (of either sign), positive and negative values mirror each other,
infinities have buckets of their own. Values below the smallest normal float (2.2e-308) are known to within that float.
NaN is no value and never gets here.

Sketches merge by adding counts, in any order and any division, to the same sketch.

A row of a rollup whose samples are all equal, or that has two of them at most, keeps no sketch: ``min`` and ``max`` say
all there is (``is_plain``), and ``of_plain`` gives the sketch that it would have.
"""

import math

import numpy as np

from holdfast.telemetry.rollup.columns import Flags, Floats, Ints, Lists, lengths_of, starts_of_groups

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
    """Of which rows ``min`` and ``max`` say all."""
    plain: Flags = (count <= 2) | (low == high)
    return plain


def of_values(group: Ints, values: Floats, groups: int) -> Lists:
    """The sketch of each group of values; groups are numbers that do not shrink from value to value."""
    codes = group * _SPREAD + (keys_of(values) + _OFFSET)
    codes.sort(kind="stable")  # groups are in order already, which this sort takes up: several times as fast
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
    """The sketches of rows of which ``min`` and ``max`` say all; of a row without values, an empty one."""
    first, last = keys_of(np.where(count > 0, low, 0.0)), keys_of(np.where(count > 0, high, 0.0))
    both = (count == 2) & (first != last)
    lengths = np.where(both, 2, np.where(count > 0, 1, 0))
    keys = np.stack([first, last], axis=1)
    counts = np.stack([np.where(both, 1, count), np.ones(len(count), np.int64)], axis=1)
    present = np.stack([count > 0, both], axis=1)
    return Lists(lengths, keys[present], counts[present])


def quantile(keys: Ints, counts: Ints, q: float, low: float, high: float) -> float:
    """The value of nearest rank: the smallest that at least the part ``q`` of all values does not exceed. The least and
    the greatest value are exact. NaN if there is none."""
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
    return Lists(np.bincount(of, minlength=groups).astype(np.int64), keys, counts)
