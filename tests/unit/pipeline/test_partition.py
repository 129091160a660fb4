"""Work is divided evenly, into no more groups than it is worth."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.partition import divide


def groups(weights: list[int], cores: int, worth: int) -> list[list[int]]:
    return divide(list(range(len(weights))), weights.__getitem__, cores=cores, worth=worth)


def test_little_work_is_one_task() -> None:
    assert groups([1] * 10, cores=8, worth=100) == [list(range(10))]


def test_no_work_is_no_task() -> None:
    assert groups([], cores=8, worth=1) == []


def test_much_work_gives_every_core_two_turns() -> None:
    assert len(groups([1] * 1000, cores=4, worth=1)) == 8


def test_a_turn_that_only_some_cores_would_take_is_left_out() -> None:
    assert len(groups([1] * 6, cores=4, worth=1)) == 4


def test_the_heaviest_piece_stands_alone() -> None:
    assert [0] in groups([100, 1, 1, 1], cores=2, worth=1)


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9), st.integers(1, 40))
def test_everything_is_in_one_group_and_none_is_much_heavier(weights: list[int], cores: int, worth: int) -> None:
    found = groups(weights, cores, worth)
    assert sorted(place for group in found for place in group) == list(range(len(weights)))
    assert len(found) <= 2 * cores
    if found:
        sums = [sum(weights[place] for place in group) for group in found]
        assert max(sums) <= sum(weights) / len(found) + max(weights)
