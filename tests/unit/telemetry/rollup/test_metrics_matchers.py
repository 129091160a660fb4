"""Patterns of conditions fit all of a value, whatever is in the value and in the pattern."""

import re

import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.matchers import Matcher, label_values, may_match, of_glob
from holdfast.telemetry.rollup.points import SeriesKey


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
    assert Matcher.parse(text).matches(["a", "b", "a\nb"]).tolist() == expected


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "[", "*"])
def test_what_is_no_pattern_on_its_own_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid, match="is not a regular expression") as caught:
        Matcher.parse(f"x=~{pattern}")
    assert str(caught.value).startswith(f"x=~{pattern}: {pattern!r} is not a regular expression (")
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


def test_the_length_of_a_pattern_of_the_shell_is_its_own() -> None:
    assert of_glob("." * 1_000).count("\\.") == 1_000
    with pytest.raises(Invalid, match="has 1,001 characters; 1,000 are allowed"):
        of_glob("*" * 1_001)


def test_a_condition_takes_linear_time() -> None:
    """A regular expression of Python took minutes for the spaces."""
    with pytest.raises(Invalid, match="not a condition"):
        Matcher.parse("a" + " " * 1_000_000)
    assert Matcher.parse("a" + " " * 1_000_000 + "= b").name == "a"


def test_listed_values_of_labels_show_what_cannot_match() -> None:
    series = [SeriesKey("m", f"web-{n}", (("cpu", str(n % 3)), ("id", f"{n}")), "gauge") for n in range(20)]
    series.append(SeriesKey("m", "db-1", (("disk", "sda"),), "gauge"))
    values = label_values(series)
    assert values is not None
    assert dict(values) == {"agent": None, "cpu": ("", "0", "1", "2"), "disk": ("", "sda"), "id": None}
    answers = {
        "cpu=1": True, "cpu=7": False, "cpu=": True, "cpu!=1": True, "cpu=~[3-9]": False, "cpu!~.*": False,
        "disk=sda": True, "id=x": True, "agent=x": True, "absent=": True, "absent=1": False, "absent!=1": True,
    }  # fmt: skip
    for text, expected in answers.items():
        assert may_match(values, [Matcher.parse(text)]) == expected, text
    assert not may_match(values, [Matcher.parse("cpu=1"), Matcher.parse("cpu=7")])
    wide = [SeriesKey("m", "a", tuple((f"l{n:02d}", "") for n in range(30)), "gauge")]
    assert label_values(wide) is None
    assert may_match(None, [Matcher.parse("cpu=7")])
    long = label_values([SeriesKey("m", "a", (("x", "y" * 65),), "gauge")])
    assert long == {"agent": ("a",), "x": None}
