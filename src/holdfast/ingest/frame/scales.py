"""Values of series as whole numbers: most floats that hosts report are short decimals, and those step evenly.

Each series has one scale. ``WHOLE``: its values were given as ``int``. A divisor: each value is exactly a whole number
of less than 2**53 divided by it, to the last bit; division is correctly rounded everywhere, so it comes back the same.
``BITS``: anything else, the 64 bits of each float taken for an integer (NaN with its payload, -0.0, infinities).
"""

import numpy as np
import numpy.typing as npt

from holdfast.ingest.frame.columns import Ints, least, most, starts_of
from holdfast.ingest.frame.errors import FrameInvalid, Reason

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

BITS, WHOLE, FIRST_DIVISOR = 0, 1, 2
DIVISORS: Floats = np.array([1.0, 10.0, 100.0, 1000.0, 2048.0, 1e6, 1e9])
"""Tried in this order. 2048: the kernel's load averages. 1e6 and 1e9: seconds that were measured in us or ns."""
SCALES = FIRST_DIVISOR + len(DIVISORS)
EXACT = 2**53

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


def from_whole(scales: Ints, numbers: Ints, lengths: Ints) -> tuple[Floats, Ints | None]:
    """The values, and the exact whole numbers of the series that have such (None if there is none)."""
    if not len(scales):
        return np.zeros(0, np.float64), None
    low, high = least(scales), most(scales)
    if low < 0 or high >= SCALES:
        raise FrameInvalid(Reason.COLUMN, f"scale {low if low < 0 else high} of a series is not known")
    if low == high == BITS:
        return numbers.view(np.float64), None
    of = scales if len(scales) == len(numbers) else np.repeat(scales, lengths)
    values: Floats = numbers / (_DIVISOR_OF[low] if low == high else _DIVISOR_OF[of])
    if high > WHOLE:
        scaled = numbers if low > WHOLE else numbers[of > WHOLE]
        if most(scaled) >= EXACT or least(scaled) <= -EXACT:
            raise FrameInvalid(Reason.VALUE, "a scaled value has more than 53 bits")
    if low == BITS:
        bits = of == BITS
        values[bits] = numbers.view(np.float64)[bits]
    if not (scales == WHOLE).any():
        return values, None
    return values, numbers if low == high else np.where(of == WHOLE, numbers, 0)


def _elements(groups: Ints, lengths: Ints) -> Ints:
    """The numbers of the elements of some groups."""
    if len(groups) == len(lengths):
        return np.arange(int(lengths.sum()))
    chosen = lengths[groups]
    return np.arange(int(chosen.sum())) + np.repeat(starts_of(lengths)[groups] - starts_of(chosen), chosen)
