"""Convert the values of series to whole numbers and back without loss.

Most floats that hosts report are short decimals. As whole numbers their differences are small and compress well. Each
series has one scale:

* ``WHOLE``: its values are of type ``int``.
* a divisor: each value equals a whole number below 2**53 divided by the divisor, in every bit. IEEE 754 division is
  correctly rounded on every machine, so decoding gives the same bits.
* ``BITS``: anything else (NaN with its payload, -0.0, infinities). The 64 bits of each float are taken as an integer.
"""

import numpy as np
import numpy.typing as npt

from holdfast.telemetry.frame.columns import Ints, least, most, starts_of
from holdfast.telemetry.frame.errors import FrameInvalid, Reason

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
