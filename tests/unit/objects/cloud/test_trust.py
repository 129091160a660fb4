"""Who may begin requests, after some were begun in vain."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.objects.cloud.ahead import MOST_OWED, Trust


def in_vain(asked_for: "list[bool]") -> int:
    """How many requests are begun in vain, if these are told and asked for or not."""
    trust, broken = Trust(), 0
    for each in asked_for:
        if each:
            trust.kept()
        elif trust:
            trust.broken()
            broken += 1
    return broken


def test_one_mishap_costs_one() -> None:
    trust = Trust()
    trust.broken()
    assert not trust
    trust.kept()
    assert trust
    for _ in range(3):
        trust.kept()
    assert in_vain(([True] * 10 + [False]) * 10) == 10


def test_whoever_spoils_every_second_one_is_soon_left_alone() -> None:
    assert in_vain([False, True] * 10_000) <= 10 + 10_000 // MOST_OWED + 1
    assert in_vain([False] * 10_000) == 1


@given(st.lists(st.booleans(), max_size=400))
def test_it_comes_back_and_never_costs_more_than_were_kept(asked_for: "list[bool]") -> None:
    assert in_vain(asked_for) <= 1 + sum(asked_for)
    trust = Trust()
    for each in asked_for:
        if each:
            trust.kept()
        elif trust:
            trust.broken()
    for _ in range(MOST_OWED):
        trust.kept()
    assert trust
