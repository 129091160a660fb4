"""Patterns of conditions fit all of a value, whatever is in the value and in the pattern."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.matchers import Matcher


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=~a.*", [True, False, True]),
        ("x!~.*", [False, False, False]),
        ("x=~a|b", [True, True, False]),
        ("x=~(?m)a", [True, False, False]),
        ("x=~a", [True, False, False]),
    ],
)
def test_a_pattern_fits_all_of_a_value_with_all_of_its_lines(text: str, expected: list[bool]) -> None:
    assert Matcher.parse(text).fits(["a", "b", "a\nb"]).tolist() == expected


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "[", "*"])
def test_what_is_no_pattern_on_its_own_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid, match="is no regular expression") as caught:
        Matcher.parse(f"x=~{pattern}")
    assert str(caught.value).startswith(f"x=~{pattern}: {pattern!r} is no regular expression (")
    assert "(?s:" not in str(caught.value)
