"""Values of series as whole numbers: most floats that hosts report are short decimals, and those step evenly.

Each series has one scale. ``WHOLE``: its values were given as ``int``. A divisor: each value is exactly a whole number
of less than 2**53 divided by it, to the last bit; division is correctly rounded everywhere, so it comes back the same.
``BITS``: anything else, the 64 bits of each float taken for an integer (NaN with its payload, -0.0, infinities).
"""

import numpy as np
import numpy.typing as npt

from holdfast.ingest.frame.columns import Bytes, Ints, Reader, least, most, starts_of
from holdfast.ingest.frame.errors import FrameInvalid, Reason

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

BITS, WHOLE, FIRST_DIVISOR = 0, 1, 2
DIVISORS: Floats = np.array([1.0, 10.0, 100.0, 1000.0, 2048.0, 1e6, 1e9])
"""Tried in this order. 2048: the kernel's load averages. 1e6 and 1e9: seconds that were measured in us or ns."""
SCALES = FIRST_DIVISOR + len(DIVISORS)
EXACT = 2**53

LONGEST = 1 << 13
"""Series that are looked at by some of their bytes."""
FIRST_PLANES, STEP_PLANES = 6, 5
ALL_BITS, NO_BITS = np.uint8(0xFF), np.uint8(0)

_DIVISOR_OF: Floats = np.concatenate([[1.0, 1.0], DIVISORS])


def to_whole(values: Floats, exact: Ints | None, whole: Flags, lengths: Ints) -> tuple[Ints, Ints]:
    """The scale of each series, and the whole number of each value."""
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
            # Adding zero makes -0.0 what it would be as a whole number, so that it is seen not to fit.
            rounded = np.rint(tried * divisor) + 0.0
            fits = (np.abs(rounded) < EXACT) & ((rounded / divisor).view(np.int64) == tried.view(np.int64))
        found = np.logical_and.reduceat(fits, starts_of(lengths[left]))
        scales[left[found]] = scale
        chosen = np.repeat(found, lengths[left])
        numbers[at[chosen]] = rounded[chosen].astype(np.int64)
        left = left[~found]
    return scales, numbers


class Scaling:
    """How the values of series come from whole numbers. It follows from the scales alone, so it serves every frame
    that has the same ones."""

    __slots__ = ("_bits", "_divisor", "_firsts", "_plain", "_scaled", "_short", "_steps", "_whole", "whole")

    def __init__(self, scales: Ints, lengths: Ints, total: int) -> None:
        """Raises ``FrameInvalid`` for a scale that is not known."""
        low, high = (least(scales), most(scales)) if len(scales) else (BITS, BITS)
        if low < 0 or high >= SCALES:
            raise FrameInvalid(Reason.COLUMN, f"scale {low if low < 0 else high} of a series is not known")
        self.whole: Flags = scales == WHOLE
        """Of each series; shared, and read-only."""
        self.whole.flags.writeable = False
        self._plain = low == high == BITS
        of = scales if len(scales) == total else np.repeat(scales, lengths)
        self._divisor = _DIVISOR_OF[low] if low == high else _DIVISOR_OF[of]
        self._bits = None if low > BITS else np.flatnonzero(of == BITS)
        self._scaled = None if high <= WHOLE else ... if low > WHOLE else np.flatnonzero(of > WHOLE)
        self._whole = None if not self.whole.any() else ... if low == high else of == WHOLE
        self._short = not len(lengths) or most(lengths) <= LONGEST
        # All bits of the elements of scaled series: the first ones, and the steps between the others.
        self._firsts: Bytes = np.where(scales > WHOLE, ALL_BITS, NO_BITS)
        self._steps: Bytes = np.repeat(self._firsts, lengths - 1)

    def within(self, reader: Reader, at: int) -> bool:
        """Whether it can be seen, from some bytes of the values that begin at ``at``, that none has too many bits.

        First values of less than 2**47 and so many steps of less than 2**39 do not add up to 2**53.
        """
        if self._scaled is None:
            return True
        steps_at = reader.after(at, len(self._firsts))
        columns = ((at, self._firsts, FIRST_PLANES), (steps_at, self._steps, STEP_PLANES))
        return self._short and not any(
            np.count_nonzero(plane & chosen)
            for begin, chosen, lowest in columns
            for plane in reader.high_planes(begin, len(chosen), lowest)
        )

    @property
    def nbytes(self) -> int:
        arrays = (self.whole, self._divisor, self._bits, self._scaled, self._whole, self._firsts, self._steps)
        return sum(each.nbytes for each in arrays if isinstance(each, np.ndarray))

    def values(self, numbers: Ints) -> tuple[Floats, Ints | None]:
        """The values, and the exact whole numbers of the series that have such (None if there is none)."""
        if self._plain:
            return numbers.view(np.float64), None
        values: Floats = numbers / self._divisor
        if self._scaled is not None:
            scaled = numbers[self._scaled]
            if most(scaled) >= EXACT or least(scaled) <= -EXACT:
                raise FrameInvalid(Reason.VALUE, "a scaled value has more than 53 bits")
        if self._bits is not None:
            values[self._bits] = numbers.view(np.float64)[self._bits]
        if self._whole is None:
            return values, None
        return values, numbers if self._whole is ... else np.where(self._whole, numbers, 0)


def _elements(groups: Ints, lengths: Ints) -> Ints:
    """The numbers of the elements of some groups."""
    if len(groups) == len(lengths):
        return np.arange(int(lengths.sum()))
    chosen = lengths[groups]
    return np.arange(int(chosen.sum())) + np.repeat(starts_of(lengths)[groups] - starts_of(chosen), chosen)
