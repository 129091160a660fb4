"""Work is divided evenly, into no more groups than it is worth."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.partition import divide


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 9), st.integers(1, 40))
def test_everything_is_in_one_group_and_none_is_much_heavier(weights: list[int], most: int, worth: int) -> None:
    found = divide(list(range(len(weights))), weights.__getitem__, most=most, worth=worth)
    assert sorted(place for group in found for place in group) == list(range(len(weights)))
    assert len(found) <= min(most, max(1, -(-sum(weights) // worth)))
    if found:
        sums = [sum(weights[place] for place in group) for group in found]
        assert max(sums) <= sum(weights) / len(found) + max(weights)
