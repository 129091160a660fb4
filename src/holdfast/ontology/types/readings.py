"""How stored JSON values are read as values of a type. Pure. ``filters/jsonsql.py`` does the same in SQL.

``read`` returns None for null and for a value of another type. Texts are accepted by regular expressions that have the
same meaning in RE2 and in Python; every text that this library writes is accepted.
"""

import base64
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

Reading = Literal["text", "number", "real", "float", "decimal", "bool", "datetime", "date", "bytes"]
"""How a stored JSON value is read.

    text      a string (also UUIDs, and enums of strings)
    number    a number, whole or not (int fields, enums of numbers, fields of any type): a whole number of 64 bits
              exactly, with or without a sign; any other as a double
    real      the same, and the strings NaN, Infinity and -Infinity (unions of int and float)
    float     a number as a double, and those strings
    decimal   a string that is a decimal number, or a whole number, if decimal(38, 18) holds it exactly
    bool      true or false
    datetime  ISO 8601 with date, time and seconds; without a zone it is UTC
    date      ISO 8601, as in 2024-02-29
    bytes     base64 in its one canonical spelling
"""

WHOLE = r"-?[0-9]+"
DECIMAL = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,15})?"
DATE = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_CLOCK = rf"{DATE}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?"
DATETIME = f"{_CLOCK}{ZONE}?"
DATETIME_UTC = rf"{_CLOCK}(?:Z|\+00:00)"
BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"
"""Only canonical spellings: unused bits are zero."""
SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""The texts of floats without a JSON number."""
PLACES = 18
"""After the point of a decimal."""


def read(value: Any, reading: Reading) -> Any:
    """The value; None if it is null or of another type."""
    return _READERS[reading](value)


def fits_decimal128(value: Decimal) -> bool:
    """Whether a column of 20 digits before the point and 18 after it holds exactly this value."""
    if not value:
        return True
    _, digits, exponent = value.as_tuple()
    places = -exponent if isinstance(exponent, int) else 0
    return value.adjusted() < 20 and (places <= PLACES or not any(digits[PLACES - places :]))


def _exactly(kind: type) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        return value if type(value) is kind else None

    return take


def _number(value: Any) -> int | float | None:
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else _double(value)
    return value if type(value) is float else None


def _real(value: Any) -> int | float | None:
    return SPECIAL.get(value) if type(value) is str else _number(value)


def _float(value: Any) -> float | None:
    number = _real(value)
    return None if number is None else _double(number)


def _double(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond all doubles rounds to infinity, as decoders of doubles do
        return float("inf") if number > 0 else float("-inf")


def decimal_number(value: Any) -> Decimal | None:
    """A decimal number of any size."""
    if type(value) is int:
        return Decimal(value)
    return Decimal(value) if type(value) is str and _DECIMAL(value) else None


def _decimal(value: Any) -> Decimal | None:
    number = decimal_number(value)
    return number if number is not None and fits_decimal128(number) else None


def in_utc(value: datetime) -> datetime:
    """A time without a zone is taken as UTC. One of another library becomes Python's own."""
    if type(value) is not datetime:
        if getattr(value, "nanosecond", 0):
            raise ValueError("is finer than a microsecond")
        value = datetime.combine(value.date(), value.timetz())
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def moment(value: Any) -> datetime | None:
    """A datetime as it was written, perhaps without a zone."""
    try:
        return datetime.fromisoformat(value) if type(value) is str and _DATETIME(value) else None
    except ValueError:  # a 30th of February
        return None


def _datetime(value: Any) -> datetime | None:
    found = moment(value)
    try:
        return None if found is None else in_utc(found)
    except OverflowError:  # outside of the years 1 to 9999
        return None


def _date(value: Any) -> date | None:
    if type(value) is not str or not _DATE(value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _bytes(value: Any) -> bytes | None:
    return base64.b64decode(value) if type(value) is str and _BASE64(value) else None


_DECIMAL, _DATETIME, _DATE, _BASE64 = (re.compile(each).fullmatch for each in (DECIMAL, DATETIME, DATE, BASE64))
_READERS: dict[Reading, Callable[[Any], Any]] = {
    "text": _exactly(str),
    "number": _number,
    "real": _real,
    "float": _float,
    "decimal": _decimal,
    "bool": _exactly(bool),
    "datetime": _datetime,
    "date": _date,
    "bytes": _bytes,
}
