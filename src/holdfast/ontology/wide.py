"""Numbers that the Arrow type of their field cannot hold, in a column that can.

A result has all values: a column with a whole number beyond 64 bits, or with a Decimal of more digits than are kept in
files, is a decimal of 38 digits, or text if even these are too few.
"""

import json
from collections.abc import Sequence
from decimal import Decimal, localcontext

import pyarrow as pa

from holdfast.ontology.filters.reading import Reading, read
from holdfast.ontology.typespec import Node, Primitive, without_null

DIGITS = 38
_READ: dict[type, Reading] = {int: "number", Decimal: "decimal"}


def widened(node: Node, name: str, bodies: Sequence[str]) -> pa.Array | None:
    """The numbers of a field in these rows; None if it is no field of exact numbers."""
    plain = without_null(node)[0]
    reading = _READ.get(plain.python) if isinstance(plain, Primitive) else None
    if reading is None:
        return None
    found = [read(json.loads(body).get(name), reading) for body in bodies]
    kind = int if reading == "number" else Decimal
    numbers = [one if isinstance(one, kind) else None for one in found]
    sizes = [_size(Decimal(one)) for one in numbers if one is not None]
    whole, scale = (max((size[part] for size in sizes), default=0) for part in (0, 1))
    if whole + scale > DIGITS:
        return pa.array([None if one is None else str(one) for one in numbers], pa.string())
    with localcontext(prec=2 * DIGITS):
        step = Decimal(1).scaleb(-scale)
        exact = [None if one is None else Decimal(one).quantize(step) for one in numbers]
    return pa.array(exact, pa.decimal128(DIGITS, scale))


def _size(number: Decimal) -> tuple[int, int]:
    """Digits before and after the point."""
    exponent = number.as_tuple().exponent
    return max(number.adjusted() + 1, 0) if number else 0, max(-exponent, 0) if isinstance(exponent, int) else 0
