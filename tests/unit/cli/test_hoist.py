"""Global options may stand anywhere before a ``--``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import TAKES_VALUE, from_noun_on, hoist

words = st.sampled_from(
    ["doctor", "file:x", "--races", "7", "-x", "--json", "--verbose", "--store", "--config=c", "--"]
)


@pytest.mark.parametrize(
    ("given_line", "hoisted"),
    [
        ("doctor --json", "--json doctor"),
        ("--json doctor", "--json doctor"),
        ("runs list --store file:x --limit 3", "--store file:x runs list --limit 3"),
        ("runs list --store=file:x", "--store=file:x runs list"),
        ("runs --verbose list --json", "--verbose --json runs list"),
        ("a --store one b --store two", "--store one --store two a b"),
        ("run -- job --json", "run -- job --json"),
        ("run --json -- --json", "--json run -- --json"),
        ("doctor --json=x", "doctor --json=x"),
        ("doctor --jsonl", "doctor --jsonl"),
        ("", ""),
    ],
)
def test_examples(given_line: str, hoisted: str) -> None:
    assert hoist(given_line.split()) == hoisted.split()


def test_an_option_without_its_value_does_not_swallow_the_noun() -> None:
    assert hoist(["doctor", "--json", "--store"]) == ["--json", "--store"]


@given(st.lists(words))
def test_nothing_is_lost_and_order_is_kept(argv: list[str]) -> None:
    if argv and argv[-1] in TAKES_VALUE:
        argv.append("file:x")
    result = hoist(argv)
    assert sorted(result) == sorted(argv)
    assert hoist(result) == result


@given(st.lists(words))
def test_what_follows_two_dashes_is_left_alone(tail: list[str]) -> None:
    result = hoist(["noun", "--json", "--", *tail])
    assert result == ["--json", "noun", "--", *tail]


@pytest.mark.parametrize(
    "line",
    [
        "onto info T",
        "--store s3://b --json onto info T",
        "onto --store=x info --config c T",
        "--version onto info T",
    ],
)
def test_the_words_of_a_line_begin_with_its_noun(line: str) -> None:
    assert from_noun_on(line.split()) == ["onto", "info", "T"]
    assert from_noun_on([]) == from_noun_on(["--json"]) == []
