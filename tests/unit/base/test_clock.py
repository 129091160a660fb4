"""Stored timestamps: one form out, several forms in, nothing lost between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.clock import iso, parse_iso

YEAR_9999_NS = 253_402_300_799 * 10**9
MICROSECOND = 1_000


@given(st.integers(-(10**9) * 10**9, YEAR_9999_NS))
def test_a_time_comes_back_to_the_microsecond(wall_ns: int) -> None:
    assert parse_iso(iso(wall_ns)) == wall_ns // MICROSECOND * MICROSECOND


@given(st.integers(0, YEAR_9999_NS), st.integers(0, YEAR_9999_NS))
def test_text_sorts_as_time_does(first: int, second: int) -> None:
    earlier, later = sorted((first, second))
    assert iso(earlier) <= iso(later)


def test_the_form_is_fixed() -> None:
    assert iso(0) == "1970-01-01T00:00:00.000000+00:00"
    assert iso(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456+00:00"


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:20+00:00",
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20",
        "2023-11-14T22:13:20.000Z",
        "2023-11-14T22:13:20.000000Z",
        "2023-11-14T23:13:20+01:00",
        "2023-11-14 22:13:20Z",
    ],
)
def test_other_writers_forms_are_read(text: str) -> None:
    assert parse_iso(text) == 1_700_000_000 * 10**9


@pytest.mark.parametrize("text", ["", "yesterday", "2023-13-01T00:00:00Z", "1700000000.5"])
def test_what_is_no_time_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|month"):
        parse_iso(text)
