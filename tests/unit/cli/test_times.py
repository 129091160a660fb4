"""Times as people write and read them."""

import pytest

from holdfast.base.clock import parse_iso, parse_moment, parse_span
from holdfast.base.errors import Invalid
from holdfast.cli.output import clock_time, span

SECOND = 10**9
NOW = parse_iso("2026-03-01T12:00:00Z")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600), ("1d12h", 129_600)],
)
def test_spans(text: str, seconds: int) -> None:
    assert parse_span(text) == seconds * SECOND
    assert parse_moment(text, NOW) == NOW - seconds * SECOND


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-2h", "2y", "1h2"])
def test_invalid_spans(text: str) -> None:
    with pytest.raises(Invalid, match="not a span of time"):
        parse_span(text)


@pytest.mark.parametrize("text", ["9" * 400 + "h", "9" * 30 + "s", "101w" * 100])
def test_a_span_that_no_clock_can_subtract_is_refused(text: str) -> None:
    """The HTTP API passes such text on: it must answer 400."""
    for parse in (parse_span, lambda span: parse_moment(span, NOW)):
        with pytest.raises(Invalid, match="longer than 100 years"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-02-28", "2026-02-28T00:00:00Z"),
        ("2026-02-28T10:00:00", "2026-02-28T10:00:00Z"),
        ("2026-02-28T10:00:00+02:00", "2026-02-28T08:00:00Z"),
        ("2026-02-28T10:00:00.5Z", "2026-02-28T10:00:00.500000Z"),
    ],
)
def test_moments(text: str, iso: str) -> None:
    assert parse_moment(text, NOW) == parse_iso(iso)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "12:00", "7y"])
def test_invalid_moments(text: str) -> None:
    with pytest.raises(Invalid, match="is not a time"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (0, "0s"), (59, "59s"), (61, "1m"), (7199, "1h"), (86_400 * 40, "40d")]
)
def test_spans_for_people(seconds: int, text: str) -> None:
    assert span(seconds * SECOND) == text


def test_clock_time() -> None:
    assert clock_time(NOW + 999_999_999) == "2026-03-01T12:00:00Z"
