"""Encode columns of int64 as bytes and decode them, with numpy and without a Python loop over elements.

A column is written as byte planes: values are zigzag encoded, then all lowest bytes are written, then all second bytes
and so on. Planes of zeros are left out; a mask in the first byte says which planes follow. A grouped column (one group
per series) is written as the first value of each group, followed by the differences within the groups. Arithmetic wraps
around, so that every int64 is restored.

The reader checks each length against the bytes that are left and raises ``FrameInvalid``. The number of elements of a
column is known before it is read and must be limited by ``Counts``, because a column of zeros takes a single byte.

Values of series are converted to whole numbers without loss. Most floats that hosts report are short decimals; as whole
numbers their differences are small and compress well. Each series has one scale:

* ``WHOLE``: its values are of type ``int``.
* a divisor: each value equals a whole number below 2**53 divided by the divisor, in every bit. IEEE 754 division is
  correctly rounded on every machine, so decoding gives the same bits.
* ``BITS``: anything else (NaN with its payload, -0.0, infinities). The 64 bits of each float are taken as an integer.
"""

import struct
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from holdfast.telemetry.frame.envelope import FrameInvalid, Limits, Reason

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

NONE: Ints = np.zeros(0, np.int64)
NONE.flags.writeable = False
WIDTH = 8

_PLANES = [[plane for plane in range(WIDTH) if mask >> plane & 1] for mask in range(256)]
"""The planes of each mask."""
_ONE = np.uint64(1)
_FEW = 256
"""Up to this many elements, copying all planes in one call is faster than copying them one by one."""
_byte = np.arange(256, dtype=np.int64)
_UNZIGZAG_BYTE: Ints = (_byte >> 1) ^ -(_byte & 1)


class Groups:
    """How a column is divided into groups of neighbouring elements."""

    def __init__(self, lengths: Ints, total: int) -> None:
        """``lengths`` are at least one each and add up to ``total``."""
        self.lengths = lengths
        self.total = total

    @cached_property
    def each(self) -> int:
        """The length of every group if all are equally long, otherwise 0."""
        each = self.total // max(len(self.lengths), 1)
        return each if all_of(self.lengths == each) else 0

    @cached_property
    def starts(self) -> Ints:
        return starts_of(self.lengths)

    @cached_property
    def inside(self) -> npt.NDArray[np.bool_]:
        """Marks the elements that are not the first of their group."""
        inside = np.ones(self.total, np.bool_)
        inside[self.starts] = False
        return inside

    def __len__(self) -> int:
        return len(self.lengths)


class Writer:
    """Collects the payload."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def ints(self, values: Ints) -> None:
        """The mask, then the planes that are not zero."""
        zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
        used = int(np.bitwise_or.reduce(zigzag)) if len(zigzag) else 0
        planes = [plane for plane in range(WIDTH) if used >> (8 * plane) & 0xFF]
        self._parts.append(bytes([sum(1 << plane for plane in planes)]))
        spread = zigzag.astype("<u8", copy=False).view(np.uint8).reshape(-1, WIDTH)
        self._parts.extend([spread[:, plane].tobytes() for plane in planes])

    def steps(self, values: Ints) -> None:
        """The first value, then the differences between neighbours."""
        self.ints(_differences(values))

    def grouped(self, values: Ints, groups: Groups, *, related: bool) -> None:
        """The first value of each group, as differences between neighbouring groups if ``related``; then the
        differences within the groups."""
        (self.steps if related else self.ints)(values[groups.starts])
        self.ints(_differences(values)[groups.inside])

    def payload(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Reads a payload from its first byte to its last."""

    def __init__(self, payload: memoryview) -> None:
        self._data: Bytes = np.frombuffer(payload, np.uint8)
        self._at = 0

    def raw(self, size: int) -> Bytes:
        """The next ``size`` bytes, not copied."""
        at, end = self._at, self._at + size
        if end > len(self._data):
            raise FrameInvalid(
                Reason.LENGTH, f"the payload has {len(self._data)} bytes; a column needs bytes up to {end}"
            )
        self._at = end
        return self._data[at:end]

    def ints(self, count: int) -> Ints:
        mask = int(self.raw(1)[0])
        if not mask:
            return np.zeros(count, np.int64)
        planes = _PLANES[mask]
        data = self.raw(len(planes) * count)
        if mask == 1:
            return _UNZIGZAG_BYTE[data]
        spread = np.zeros((count, WIDTH), np.uint8)
        if count <= _FEW and not mask & (mask + 1):  # the planes are the lowest ones
            spread[:, : len(planes)] = data.reshape(len(planes), count).T
        else:
            for number, plane in enumerate(planes):
                spread[:, plane] = data[number * count : (number + 1) * count]
        zigzag = spread.reshape(-1).view("<u8")
        values = (zigzag >> _ONE).view(np.int64)
        zigzag &= _ONE
        values ^= np.negative(zigzag, out=zigzag).view(np.int64)
        return values

    def steps(self, count: int) -> Ints:
        values = self.ints(count)
        return values.cumsum(out=values)

    def grouped(self, groups: Groups, *, related: bool) -> Ints:
        count = len(groups)
        firsts = self.steps(count) if related else self.ints(count)
        steps = self.ints(groups.total - count)
        if not len(steps):
            return firsts
        if groups.each:
            table = np.empty((count, groups.each), np.int64)
            table[:, 0] = firsts
            table[:, 1:] = steps.reshape(count, -1)
            return np.add.accumulate(table, axis=1, out=table).reshape(-1)
        values = np.empty(groups.total, np.int64)
        values[groups.inside] = steps
        values[groups.starts] = firsts
        # One running sum over all groups: subtract from each first value the value at which the group before it ends.
        ends = np.add.reduceat(values, groups.starts)
        values[groups.starts[1:]] -= ends[:-1]
        return values.cumsum(out=values)

    def finish(self) -> None:
        """Check that everything was read."""
        left = len(self._data) - self._at
        if left:
            raise FrameInvalid(Reason.LENGTH, f"{left} bytes follow the last column of the payload")


def least(values: Ints) -> int:
    """The minimum of at least one value. Twice as fast as ``values.min()`` for short arrays."""
    return int(np.minimum.reduce(values, axis=None))


def most(values: Ints) -> int:
    return int(np.maximum.reduce(values, axis=None))


def all_of(flags: npt.NDArray[np.bool_]) -> bool:
    return bool(np.logical_and.reduce(flags))


def starts_of(lengths: Ints) -> Ints:
    """The index of the first element of each group."""
    starts = lengths.cumsum()
    starts -= lengths
    return starts


def _differences(values: Ints) -> Ints:
    """The first value, then the differences between neighbours."""
    steps = values.copy()
    steps[1:] -= values[:-1]
    return steps


Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

BITS, WHOLE, FIRST_DIVISOR = 0, 1, 2
DIVISORS: Floats = np.array([1.0, 10.0, 100.0, 1000.0, 2048.0, 1e6, 1e9])
"""Tried in this order. 2048 fits the load averages of Linux; 1e6 and 1e9 fit seconds that were measured in us or ns."""
SCALES = FIRST_DIVISOR + len(DIVISORS)
EXACT = 2**53

_DIVISOR_OF: Floats = np.concatenate([[1.0, 1.0], DIVISORS])


def to_whole(values: Floats, exact: Ints | None, whole: Flags, lengths: Ints) -> tuple[Ints, Ints]:
    """The scale of each series, and the whole number of each value. ``exact`` has the values of series of ``int``."""
    scales = np.where(whole, WHOLE, BITS)
    numbers = values.view(np.int64).copy()
    if exact is not None:
        numbers = np.where(np.repeat(whole, lengths), exact, numbers)
    left = np.flatnonzero(scales == BITS)
    for scale, divisor in enumerate(DIVISORS, FIRST_DIVISOR):
        if not len(left):
            break
        at = _elements(left, lengths)
        tried = values[at]
        with np.errstate(all="ignore"):
            # Adding zero turns -0.0 into 0.0, as decoding would, so that the comparison of bits rejects it.
            rounded = np.rint(tried * divisor) + 0.0
            fits = (np.abs(rounded) < EXACT) & ((rounded / divisor).view(np.int64) == tried.view(np.int64))
        found = np.logical_and.reduceat(fits, starts_of(lengths[left]))
        scales[left[found]] = scale
        chosen = np.repeat(found, lengths[left])
        numbers[at[chosen]] = rounded[chosen].astype(np.int64)
        left = left[~found]
    return scales, numbers


def from_whole(numbers: Ints, scales: Ints, lengths: Ints) -> tuple[Floats, Ints | None, Flags]:
    """The values, the exact values of the series of ``int`` (None if there is none), and which series are of ``int``.

    Raises ``FrameInvalid`` for an unknown scale and for a scaled number that a float64 does not hold exactly.
    """
    low, high = (least(scales), most(scales)) if len(scales) else (BITS, BITS)
    if low < 0 or high >= SCALES:
        raise FrameInvalid(Reason.COLUMN, f"a series has the unknown scale {low if low < 0 else high}")
    whole: Flags = scales == WHOLE
    if low == high == BITS:
        return numbers.view(np.float64), None, whole
    if low == high == WHOLE:
        return numbers.astype(np.float64), numbers, whole
    of = np.repeat(scales, lengths)
    values: Floats = numbers / _DIVISOR_OF[of]
    scaled = numbers[of > WHOLE]
    if len(scaled) and (most(scaled) >= EXACT or least(scaled) <= -EXACT):
        raise FrameInvalid(Reason.VALUE, "a scaled value has more than 53 bits")
    if low == BITS:
        bits = of == BITS
        values[bits] = numbers.view(np.float64)[bits]
    return values, np.where(of == WHOLE, numbers, 0) if whole.any() else None, whole


def _elements(groups: Ints, lengths: Ints) -> Ints:
    """The indices of the elements of these groups."""
    if len(groups) == len(lengths):
        return np.arange(int(lengths.sum()))
    chosen = lengths[groups]
    return np.arange(int(chosen.sum())) + np.repeat(starts_of(lengths)[groups] - starts_of(chosen), chosen)


@dataclass(frozen=True, slots=True)
class Counts:
    """In the order of the format, each a u32."""

    texts: int
    text_bytes: int
    label_sets: int
    pairs: int
    """Labels (name and value) of all label sets together."""
    series: int
    samples: int
    times: int
    """Rows in the table of times; zero if the time of each sample is written out."""
    histogram_series: int
    histograms: int
    histogram_times: int
    layouts: int
    bounds: int
    """Of all layouts together."""
    buckets: int
    """Of all histograms together."""
    logs: int
    log_bytes: int
    alerts: int
    alert_bytes: int

    @classmethod
    def read(cls, reader: Reader, records: int, limits: Limits) -> Self:
        counts = cls(*_COUNTS.unpack(reader.raw(_COUNTS.size).tobytes()))
        counts._check(records, limits)
        return counts

    def to_bytes(self) -> bytes:
        return _COUNTS.pack(*(getattr(self, name) for name in _NAMES))

    @property
    def records(self) -> int:
        return self.samples + self.histograms + self.logs + self.alerts

    def _check(self, records: int, limits: Limits) -> None:
        """Each count is limited by a count that was checked before it, so none allows an allocation beyond the
        limits."""
        if self.records != records:
            raise FrameInvalid(Reason.COLUMN, f"the payload has {self.records} records, the head declares {records}")
        users = self.series + self.histogram_series + self.logs + self.alerts
        for count, most, what in (
            (self.series, self.samples, "series"),
            (self.times, self.samples, "times"),
            (self.histogram_series, self.histograms, "series of histograms"),
            (self.histogram_times, self.histograms, "times of histograms"),
            (self.layouts, min(self.histograms, MOST_LAYOUTS), "layouts"),
            (self.label_sets, users, "label sets"),
            (self.pairs, limits.elements, "labels"),
            (self.texts, self.series + self.histogram_series + self.alerts + 2 * self.pairs, "texts"),
            (self.bounds, limits.elements, "bounds"),
            (self.buckets, limits.elements, "buckets"),
        ):
            if count > most:
                raise FrameInvalid(Reason.COLUMN, f"the payload declares {count} {what}; at most {most} are possible")
        if (self.samples and not self.series) or (self.histograms and not self.histogram_series):
            raise FrameInvalid(Reason.COLUMN, "there are samples without a series")


MOST_LAYOUTS = 1024
"""Decoding takes one Python loop turn per layout, so their number is limited."""
MOST_BOUNDS = 1000
"""Bounds of one layout."""
_NAMES = [field.name for field in fields(Counts)]
_COUNTS = struct.Struct(f"<{len(_NAMES)}I")
