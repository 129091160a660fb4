"""Patterns of conditions fit all of a value, whatever is in the value and in the pattern."""

import re

import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.matchers import Matcher, of_glob


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


@pytest.mark.parametrize(
    ("glob", "fits", "differs"),
    [
        ("node_*", ["node_", "node_load1"], ["anode_", "NODE_"]),
        ("?pu", ["cpu"], ["pu", "ccpu"]),
        ("[a-c]*[!0-9]", ["ab", "c-"], ["d", "b7"]),
        ("a.b+(c", ["a.b+(c"], ["axb+(c"]),
        ("[", ["["], [""]),
        ("[]x]", ["]", "x"], ["y"]),
        ("[a^]\\", ["a\\", "^\\"], ["b\\"]),
        ("*", ["", "ü\n"], []),
    ],
)
def test_a_pattern_of_the_shell_is_a_regular_expression(glob: str, fits: list[str], differs: list[str]) -> None:
    for text in fits:
        assert re.fullmatch(of_glob(glob), text), text
    for text in differs:
        assert not re.fullmatch(of_glob(glob), text), text


def test_a_condition_takes_linear_time() -> None:
    """A regular expression of Python took minutes for the spaces."""
    with pytest.raises(Invalid, match="no condition"):
        Matcher.parse("a" + " " * 1_000_000)
    assert Matcher.parse("a" + " " * 1_000_000 + "= b").name == "a"
