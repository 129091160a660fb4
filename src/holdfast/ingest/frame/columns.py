"""Columns of whole numbers as bytes, and back, without a loop over elements.

A column of int64 is written as planes: zigzag, then all lowest bytes, all second bytes and so on; planes that are zero
throughout are left out, and a mask says which are there. A column in groups (one group per series) first becomes the
first value of each group and the steps within groups. Arithmetic wraps around, so that every int64 comes back.

Reading checks each length against the bytes that are left (``FrameInvalid``); how many elements a column has is known
before it is read, and bounded by the limits, because a column of zeros takes no more than its mask.
"""

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
_byte = np.arange(256, dtype=np.int64)
_UNZIGZAG_BYTE: Ints = (_byte >> 1) ^ -(_byte & 1)


class Groups:
    """How the elements of a column stand together: where each group begins, and which elements begin none."""

    __slots__ = ("inside", "lengths", "starts")

    def __init__(self, lengths: Ints, total: int) -> None:
        """``lengths`` are at least one each and add up to the total."""
        self.lengths = lengths
        self.starts = starts_of(lengths)
        self.inside = np.ones(total, np.bool_)
        self.inside[self.starts] = False

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
        self._data: Bytes = np.frombuffer(payload, np.uint8)
        self._at = 0

    def raw(self, size: int) -> Bytes:
        end = self._at + size
        if end > len(self._data):
            raise FrameInvalid(Reason.LENGTH, f"the payload ends at {len(self._data)}, before {end}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def ints(self, count: int) -> Ints:
        mask = self.raw(1).item()
        planes = _PLANES[mask]
        data = self.raw(len(planes) * count)
        if not planes:
            return np.zeros(count, np.int64)
        if mask == 1:
            return _UNZIGZAG_BYTE[data]
        spread = np.zeros((count, WIDTH), np.uint8)
        for number, plane in enumerate(planes):
            spread[:, plane] = data[number * count : (number + 1) * count]
        zigzag = spread.reshape(-1).view("<u8")
        values = (zigzag >> np.uint64(1)).view(np.int64)
        values ^= -(zigzag & np.uint64(1)).view(np.int64)
        return values

    def steps(self, count: int) -> Ints:
        values = self.ints(count)
        return values.cumsum(out=values)

    def grouped(self, groups: Groups, *, related: bool) -> Ints:
        count = len(groups.inside)
        firsts = self.steps(len(groups)) if related else self.ints(len(groups))
        steps = self.ints(count - len(groups))
        if not len(steps):
            return firsts
        values = np.empty(count, np.int64)
        values[groups.inside] = steps
        values[groups.starts] = firsts
        # A sum over everything runs through the groups if each begins with the way back from the end of the last.
        ends = np.add.reduceat(values, groups.starts)
        values[groups.starts[1:]] -= ends[:-1]
        return values.cumsum(out=values)

    def finish(self) -> None:
        if self._at != len(self._data):
            raise FrameInvalid(Reason.LENGTH, f"{len(self._data) - self._at} bytes follow the end of the payload")


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
