"""Tiers: few entries, few bytes, whatever the order of things."""

import math
from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ontology.format.index import Entry
from holdfast.ontology.maintain.tiers import FAN, LIMIT, Piece, plan
from holdfast.ontology.maintain.upkeep import FILES, TOUCHED_EVERY
from holdfast.ontology.types.refs import TypeHead


def pieces(weights: list[int], sizes: list[int] | None = None) -> list[Piece]:
    found: list[Piece] = []
    at = 0
    for number, weight in enumerate(weights):
        entry = Entry(at + 1, at + weight, str(number))
        size = sizes[number] if sizes is not None else weight
        found.append(Piece(entry, TypeHead(at, at, ""), TypeHead(at + weight, at + weight, ""), size))
        at += weight
    return found


def joined(weights: list[int], sizes: list[int], limit: int = LIMIT) -> tuple[list[int], list[int], int]:
    """Weights and sizes after one round, and the bytes that were written."""
    groups = plan(pieces(weights, sizes), below=sum(weights) + 1, limit=limit)
    starts = {group[0].entry.path: group for group in groups}
    inside = {piece.entry.path for group in groups for piece in group[1:]}
    after: list[tuple[int, int]] = []
    for piece in pieces(weights, sizes):
        if piece.entry.path in starts:
            group = starts[piece.entry.path]
            after.append((sum(each.weight for each in group), sum(each.size or 0 for each in group)))
        elif piece.entry.path not in inside:
            after.append((piece.weight, piece.size or 0))
    written = sum(each.size or 0 for group in groups for each in group)
    return [weight for weight, _ in after], [size for _, size in after], written


def everything(weights: list[int], sizes: list[int]) -> tuple[list[int], list[int], int]:
    """As the specification has it: all files into one."""
    return [sum(weights)], [sum(sizes)], sum(sizes)


def slope(compaction: Callable[[list[int], list[int]], tuple[list[int], list[int], int]]) -> float:
    """Of the bytes written by commits and by compaction together, over commits, from 256 to 4,096."""
    weights: list[int] = []
    sizes: list[int] = []
    total, points = 0, {}
    for number in range(1, 4097):
        weights, sizes, total = [*weights, 1], [*sizes, 1], total + 1
        if number % FAN == 0:
            weights, sizes, written = compaction(weights, sizes)
            total += written
        points[number] = total
    return math.log(points[4096] / points[256]) / math.log(4096 / 256)


def test_bytes_grow_almost_with_the_commits_and_not_with_their_square() -> None:
    assert slope(joined) <= 1.2
    assert slope(everything) > 1.8


@given(st.lists(st.integers(1, 700), min_size=1, max_size=60))
def test_one_round_leaves_few_entries_whatever_was_there(weights: list[int]) -> None:
    after, _, _ = joined(weights, weights)
    assert sum(after) == sum(weights)
    assert len(after) <= (FAN - 1) * (math.floor(math.log(sum(weights), FAN)) + 2)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_no_snapshot_is_larger_than_the_limit_and_closed_ones_stay(sizes: list[int]) -> None:
    weights = [1] * len(sizes)
    groups = plan(pieces(weights, sizes), below=10**6, limit=120)
    for group in groups:
        assert len(group) > 1
        assert sum(piece.size or 0 for piece in group) <= 120
        assert all(2 * (piece.size or 0) < 120 for piece in group)
        spans = [(piece.entry.first, piece.entry.last) for piece in group]
        assert all(before[1] + 1 == after[0] for before, after in pairwise(spans))


def test_only_what_ends_below_the_head() -> None:
    (group,) = plan(pieces([1] * 5), below=5)
    assert [piece.entry.last for piece in group] == list(range(1, 5))
    assert plan(pieces([1] * 4), below=4) == []


@given(st.integers(1, TOUCHED_EVERY))
def test_as_upkeep_does_it_a_type_of_2000_commits_has_few_files_at_any_time(every: int) -> None:
    """``every`` is after how many commits an index is written, which is when upkeep looks at it."""
    weights: list[int] = []
    for number in range(2000):
        weights.append(1)
        if number % every == 0:
            if len(weights) >= FILES:
                before, weights = weights[:-1], weights[-1:]  # the head's own file stays
                weights = [*joined(before, before)[0], *weights]
            assert len(weights) <= 23
