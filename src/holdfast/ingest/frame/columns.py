"""Columns of whole numbers as bytes, and back, without a loop over elements.

A column of int64 is written as planes: zigzag, then all lowest bytes, all second bytes and so on; planes that are zero
throughout are left out, and a mask says which are there. A column in groups (one group per series) first becomes the
first value of each group and the steps within groups. Arithmetic wraps around, so that every int64 comes back.

Reading checks each length against the bytes that are left (``FrameInvalid``); how many elements a column has is known
before it is read, and bounded by the limits, because a column of zeros takes no more than its mask.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from holdfast.ingest.frame.errors import FrameInvalid, Reason

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

NONE: Ints = np.zeros(0, np.int64)
NONE.flags.writeable = False
WIDTH = 8

_PLANES = [[plane for plane in range(WIDTH) if mask >> plane & 1] for mask in range(256)]
"""By mask, the planes that are there."""
_USED = [len(planes) for planes in _PLANES]
_ONE = np.uint64(1)
_FEW = 256
"""Elements up to which planes are quicker put together all at once than one by one."""
_byte = np.arange(256, dtype=np.int64)
_UNZIGZAG_BYTE: Ints = (_byte >> 1) ^ -(_byte & 1)


class Groups:
    """How the elements of a column stand together: where each group begins, and which elements begin none."""

    __slots__ = ("_each", "_inside", "_starts", "lengths", "total")

    def __init__(self, lengths: Ints, total: int) -> None:
        """``lengths`` are at least one each and add up to the total."""
        self.lengths = lengths
        self.total = total
        self._each: int | None = None
        self._starts: Ints | None = None
        self._inside: npt.NDArray[np.bool_] | None = None

    @property
    def each(self) -> int:
        """How many are in each group, if that is the same for all; otherwise 0."""
        if self._each is None:
            each = self.total // max(len(self.lengths), 1)
            self._each = each if all_of(self.lengths == each) else 0
        return self._each

    @property
    def starts(self) -> Ints:
        if self._starts is None:
            self._starts = starts_of(self.lengths)
        return self._starts

    @property
    def inside(self) -> npt.NDArray[np.bool_]:
        if self._inside is None:
            self._inside = np.ones(self.total, np.bool_)
            self._inside[self.starts] = False
        return self._inside

    def __len__(self) -> int:
        return len(self.lengths)


class Writer:
    """Collects the payload."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def ints(self, values: Ints) -> None:
        """One byte that says which planes are there, then those planes."""
        zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
        used = int(np.bitwise_or.reduce(zigzag)) if len(zigzag) else 0
        planes = [plane for plane in range(WIDTH) if used >> (8 * plane) & 0xFF]
        self._parts.append(bytes([sum(1 << plane for plane in planes)]))
        spread = zigzag.astype("<u8", copy=False).view(np.uint8).reshape(-1, WIDTH)
        self._parts.extend([spread[:, plane].tobytes() for plane in planes])

    def steps(self, values: Ints) -> None:
        """The first value, and what each adds to the one before it."""
        self.ints(_differences(values))

    def grouped(self, values: Ints, groups: Groups, *, related: bool) -> None:
        """First values of groups (as steps from group to group if ``related``), then all steps within groups."""
        (self.steps if related else self.ints)(values[groups.starts])
        self.ints(_differences(values)[groups.inside])

    def payload(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Takes the payload apart, from the first byte to the last."""

    def __init__(self, payload: memoryview) -> None:
        self._payload = payload.cast("B")
        self._data: Bytes = np.frombuffer(payload, np.uint8)
        self.size = len(payload)
        self.at = 0
        """Where the next column begins."""

    def raw(self, size: int) -> Bytes:
        at = self._taken(size)
        return self._data[at : at + size]

    def _taken(self, size: int) -> int:
        """Where the next so many bytes begin; they are no longer the next."""
        at = self.at
        end = at + size
        if end > self.size:
            raise FrameInvalid(Reason.LENGTH, f"the payload ends at {self.size}, before {end}")
        self.at = end
        return at

    def ints(self, count: int) -> Ints:
        mask = self._payload[self._taken(1)]
        if not mask:
            return np.zeros(count, np.int64)
        planes = _PLANES[mask]
        data = self.raw(len(planes) * count)
        if mask == 1:
            return _UNZIGZAG_BYTE[data]
        spread = np.zeros((count, WIDTH), np.uint8)
        if count <= _FEW and not mask & (mask + 1):  # the lowest ones, without a gap
            spread[:, : len(planes)] = data.reshape(len(planes), count).T
        else:
            for number, plane in enumerate(planes):
                spread[:, plane] = data[number * count : (number + 1) * count]
        zigzag = spread.reshape(-1).view("<u8")
        values = (zigzag >> _ONE).view(np.int64)
        zigzag &= _ONE
        values ^= np.negative(zigzag, out=zigzag).view(np.int64)
        return values

    def after(self, at: int, *counts: int) -> int:
        """Where columns of so many elements end that begin at ``at``: beyond the payload, if they are not all there."""
        size, payload = self.size, self._payload
        for count in counts:
            at += 1 + (_USED[payload[at]] * count if at < size else 0)
        return at

    def high_planes(self, at: int, count: int, lowest: int) -> Iterator[Bytes]:
        """Of the column of so many elements that begins at ``at``: the planes that are there, from this one up."""
        planes = _PLANES[self._payload[at]]
        for number, plane in enumerate(planes):
            if plane >= lowest:
                begin = at + 1 + number * count
                yield self._data[begin : begin + count]

    def shape_of_steps(self, count: int) -> tuple[int, tuple[tuple[int, bytes], ...]]:
        """The first of the next so many steps, and bytes that are equal for all columns whose other steps are equal.

        Their numbers are not looked at: a plane in which none of the others has anything is as good as none.
        """
        at = self.at
        self._taken(self.after(at, count) - at)
        first, planes = 0, []
        for number, plane in enumerate(_PLANES[self._payload[at]]):
            begin = at + 1 + number * count
            first |= self._payload[begin] << 8 * plane
            others = self.between(begin + 1, begin + count)
            if others.strip(b"\0"):
                planes.append((plane, others))
        return (first >> 1) ^ -(first & 1), tuple(planes)

    def again(self, at: int) -> "Reader":
        """Another reader of the same payload, which stands at ``at``."""
        other = Reader(self._payload)
        other.at = at
        return other

    def whole(self) -> bytes:
        return self._payload.tobytes()

    def between(self, start: int, end: int) -> bytes:
        return self._payload[start:end].tobytes()

    def column(self, count: int) -> bytes:
        """The bytes of the next column of so many elements, as they stand; they are no longer the next."""
        at = self.at
        self._taken(self.after(at, count) - at)
        return self.between(at, self.at)

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
        # A sum over everything runs through the groups if each begins with the way back from the end of the last.
        ends = np.add.reduceat(values, groups.starts)
        values[groups.starts[1:]] -= ends[:-1]
        return values.cumsum(out=values)

    def finish(self) -> None:
        if self.at != self.size:
            raise FrameInvalid(Reason.LENGTH, f"{self.size - self.at} bytes follow the end of the payload")


def least(values: Ints) -> int:
    """Of one or more; the method of an array takes twice as long where they are few."""
    return int(np.minimum.reduce(values, axis=None))


def most(values: Ints) -> int:
    return int(np.maximum.reduce(values, axis=None))


def all_of(flags: npt.NDArray[np.bool_]) -> bool:
    return bool(np.logical_and.reduce(flags))


def starts_of(lengths: Ints) -> Ints:
    """Where each group begins."""
    starts = lengths.cumsum()
    starts -= lengths
    return starts


def _differences(values: Ints) -> Ints:
    """The first value, and what each adds to the one before it."""
    steps = values.copy()
    steps[1:] -= values[:-1]
    return steps
