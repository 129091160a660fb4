"""Stored timestamps: one form out, several forms in, nothing lost between. Spans and times as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.clock import iso, parse_iso, parse_moment, parse_span
from holdfast.base.errors import Invalid

YEAR_9999_NS = 253_402_300_799 * 10**9
MICROSECOND = 1_000
SECOND = 10**9
NOW = parse_iso("2026-03-01T12:00:00Z")


@given(st.integers(-(10**9) * 10**9, YEAR_9999_NS))
def test_a_time_is_read_back_to_the_microsecond(wall_ns: int) -> None:
    assert parse_iso(iso(wall_ns)) == wall_ns // MICROSECOND * MICROSECOND


@given(st.integers(0, YEAR_9999_NS), st.integers(0, YEAR_9999_NS))
def test_texts_sort_in_the_order_of_their_times(first: int, second: int) -> None:
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
def test_times_in_other_forms_are_read(text: str) -> None:
    assert parse_iso(text) == 1_700_000_000 * 10**9


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600), ("1d12h", 129_600)],
)
def test_spans(text: str, seconds: int) -> None:
    assert parse_span(text) == seconds * SECOND
    assert parse_moment(text, NOW) == NOW - seconds * SECOND


@pytest.mark.parametrize("text", ["2026-02-28", "2026-02-28T10:00:00+02:00", "2026-02-28T10:00:00.5Z"])
def test_a_moment_may_be_a_stored_time(text: str) -> None:
    assert parse_moment(text, NOW) == parse_iso(text)


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-2h", "2y", "1h2", "yesterday", "2026-13-01", "12:00"])
def test_what_is_no_span_and_no_moment_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not a span of time"):
        parse_span(text)
    with pytest.raises(Invalid, match="is not a time"):
        parse_moment(text, NOW)


@pytest.mark.parametrize("text", ["9" * 400 + "h", "9" * 30 + "s", "101w" * 100])
def test_a_span_that_no_clock_can_subtract_is_refused(text: str) -> None:
    """The HTTP API passes such text on: it must answer 400."""
    for parse in (parse_span, lambda span: parse_moment(span, NOW)):
        with pytest.raises(Invalid, match="longer than 100 years"):
            parse(text)
