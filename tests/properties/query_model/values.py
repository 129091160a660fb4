"""Values that answers go wrong over: at the edges of types, hard to quote, equal in one language and not in another."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

_SHORT = ("", "a", "A", "%", "_", "a%b", "a_b", "\\", "ß", "İ", "é", "e\u0301", "Gold", "gold", "Zz", "\U0001f600")
TEXTS = (*_SHORT, "null", "x'y", 'q"t', "a\nb", "NaN", "5")
WHOLES = (0, 1, -1, 5, 7, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.5, -1.5, 5.0, 7.0, 2.0**53, 1e300, math.inf, -math.inf, math.nan)
NUMBERS = (*WHOLES, *FLOATS)
DECIMALS = tuple(map(Decimal, ("0", "1.10", "1.1", "-3", "5", "1e19", "1e-18", "0.123456789012345678")))
DECIMALS += (Decimal("99999999999999999999.999999999999999999"),)
DAYS = (date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), date(2023, 5, 5))
MOMENTS = (
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    datetime(2023, 5, 5, 1, 2, 3, 4),  # noqa: DTZ001  # one without a zone counts as UTC
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
)
PEOPLE = ("a", "b", "c", "d", "e", "f", "ß", "A b", "%", "é", "10", "9")
ITEMS = (1, 2, 10, -5, 2**40)


def in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def person(rng: Random) -> dict[str, Any]:
    """The fields of a person but for the key."""

    def some(values: tuple[Any, ...]) -> Any:
        return None if rng.random() < 0.25 else rng.choice(values)

    return {
        "tier": some(TEXTS),
        "age": some(WHOLES),
        "score": some(FLOATS),
        "price": some(DECIMALS),
        "tags": None if rng.random() < 0.2 else rng.choices(TEXTS, k=rng.randint(0, 3)),
        "profile": document(rng),
        "day": some(DAYS),
        "at": some(MOMENTS),
        "flag": some((True, False)),
    }


def document(rng: Random) -> dict[str, Any]:
    """Whatever a field of any shape may hold: ``c`` of every type, ``l`` a list of documents or none."""
    one: tuple[Any, ...] = (rng.choice(TEXTS), rng.choice(WHOLES), None, {"d": rng.choice(TEXTS)}, [1], True, 1.5)
    listed = [{"k": rng.choice(TEXTS), "v": rng.choice((1, 2, None, "x"))} for _ in range(rng.randint(0, 3))]
    return rng.choice([{}, *({"c": value} for value in one), {"l": listed}, {"l": "no"}, {"l": None}])
