"""Work is divided evenly, into no more groups than it is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.partition import divide


def groups(weights: list[int], cores: int, worth: int) -> list[list[int]]:
    return divide(list(range(len(weights))), weights.__getitem__, cores=cores, worth=worth)


@pytest.mark.parametrize(
    ("weights", "cores", "worth", "count"), [(10, 8, 100, 1), (0, 8, 1, 0), (1000, 4, 1, 8), (6, 4, 1, 4)]
)
def test_each_core_has_two_turns_unless_there_is_too_little(weights: int, cores: int, worth: int, count: int) -> None:
    assert len(groups([1] * weights, cores, worth)) == count


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9), st.integers(1, 40))
def test_everything_is_in_one_group_and_none_is_much_heavier(weights: list[int], cores: int, worth: int) -> None:
    found = groups(weights, cores, worth)
    assert sorted(place for group in found for place in group) == list(range(len(weights)))
    assert len(found) <= 2 * cores
    if found:
        sums = [sum(weights[place] for place in group) for group in found]
        assert max(sums) <= sum(weights) / len(found) + max(weights)
