"""The linearizability checker against known histories, and against trying every order."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Ambiguous, Conflict
from holdfast.sim.checkers.linearizable import LOST, WRITTEN, Cell, Counter, Model, linearizable
from holdfast.sim.history import FOREVER, Done, Failed, Open, Operation, Outcome

OPEN = Open(Ambiguous("who knows"))


def op(
    call: str, argument: Any, outcome: Outcome, called: int, returned: int = FOREVER, *, key: str = "k"
) -> Operation:
    return Operation("p", call, key, argument, called, FOREVER if isinstance(outcome, Open) else returned, outcome)


def verdicts(model: Model[Any], *operations: Operation) -> list[str]:
    return [str(violation) for violation in linearizable(operations, model)]


class TestCell:
    def test_a_read_may_see_a_write_that_is_going_on(self) -> None:
        write = op("write", "a", Done(), 0, 9)
        assert verdicts(Cell(), write, op("read", None, Done("a"), 1, 2)) == []
        assert verdicts(Cell(), write, op("read", None, Done(None), 1, 2)) == []

    def test_a_read_after_a_write_must_see_it(self) -> None:
        (verdict,) = verdicts(Cell(), op("write", "a", Done(), 0, 1), op("read", None, Done(None), 2, 3))
        assert verdict.startswith("linearizable: no order of effects on k explains")

    def test_reads_do_not_go_back(self) -> None:
        history = [
            op("write", "a", Done(), 0, 9),
            op("read", None, Done("a"), 1, 2),
            op("read", None, Done(None), 3, 4),
        ]
        assert verdicts(Cell(), *history)

    def test_an_open_write_may_take_effect_late_or_never(self) -> None:
        write = op("write", "a", OPEN, 0)
        assert verdicts(Cell(), write, op("read", None, Done(None), 5, 6), op("read", None, Done("a"), 7, 8)) == []
        assert verdicts(Cell(), write, op("read", None, Done(None), 5, 6)) == []

    def test_an_open_write_takes_effect_once(self) -> None:
        history = [
            op("write", "a", OPEN, 0),
            op("read", None, Done("a"), 1, 2),
            op("write", "b", Done(), 3, 4),
            op("read", None, Done("a"), 5, 6),
        ]
        assert verdicts(Cell(), *history)

    def test_a_failed_write_has_no_effect(self) -> None:
        history = [op("write", "a", Failed(Conflict("no")), 0, 1), op("read", None, Done("a"), 2, 3)]
        assert verdicts(Cell(), *history)

    def test_of_two_swaps_of_one_value_one_is_lost(self) -> None:
        first, second = op("cas", (None, "a"), Done(WRITTEN), 0, 5), op("cas", (None, "b"), Done(WRITTEN), 1, 6)
        assert verdicts(Cell(), first, second)
        assert verdicts(Cell(), first, op("cas", (None, "b"), Done(LOST), 1, 6)) == []

    def test_lost_is_strict_unless_writes_may_be_overtaken(self) -> None:
        history = [
            op("cas", (None, "a"), Done(LOST), 0, 9),
            op("cas", ("a", "b"), Done(WRITTEN), 1, 8),
            op("read", None, Done("b"), 10, 11),
        ]
        assert verdicts(Cell(), *history)
        assert verdicts(Cell(overtaken=True), *history) == []

    def test_keys_are_independent(self) -> None:
        history = [
            op("write", "a", Done(), 0, 1, key="x"),
            op("read", None, Done(None), 2, 3, key="y"),
            op("read", None, Done(None), 4, 5, key="x"),
        ]
        (verdict,) = verdicts(Cell(), *history)
        assert "on x" in verdict


class TestCounter:
    def test_numbers_follow_each_other(self) -> None:
        assert verdicts(Counter(), op("add", "x", Done(1), 0, 5), op("add", "y", Done(2), 1, 4)) == []
        assert verdicts(Counter(), op("add", "x", Done(1), 0, 5), op("add", "y", Done(1), 1, 4))
        assert verdicts(Counter(), op("add", "x", Done(2), 0, 1), op("add", "y", Done(1), 2, 3))

    def test_a_gap_needs_an_open_addition(self) -> None:
        late = op("add", "y", Done(2), 6, 7)
        assert verdicts(Counter(), late)
        assert verdicts(Counter(), op("add", "x", OPEN, 0), late) == []
        assert verdicts(Counter(), op("add", "x", OPEN, 8), late), "it began too late to help"

    def test_a_token_that_is_repeated_counts_once(self) -> None:
        history = [op("add", "x", OPEN, 0), op("add", "x", Done(1), 1, 2), op("read", None, Done(1), 3, 4)]
        assert verdicts(Counter.of(history), *history) == []
        twice = [*history, op("read", None, Done(2), 5, 6)]
        assert verdicts(Counter.of(twice), *twice)

    def test_many_open_additions_are_no_burden(self) -> None:
        history = [op("add", number, OPEN, number) for number in range(60)]
        history += [op("read", None, Done(number), 100 + 2 * number, 101 + 2 * number) for number in range(60)]
        assert verdicts(Counter.of(history), *history) == []
        history.append(op("read", None, Done(61), 500, 501))
        assert verdicts(Counter.of(history), *history)


def test_a_history_that_is_too_hard_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sim.checkers.linearizable.MOST", 1_000)
    history = [op("cas", (first, second), OPEN, 0) for first in range(8) for second in range(8) if first != second]
    history.append(op("read", None, Done(99), 1, 2))
    (verdict,) = verdicts(Cell(first=0), *history)
    assert "undecided" in verdict


def explained_by_some_order(model: Model[Any], operations: list[Operation]) -> bool:
    """The definition, without cleverness: some subset of the open operations, in some order that respects time."""
    done = [operation for operation in operations if isinstance(operation.outcome, Done)]
    maybe = [operation for operation in operations if isinstance(operation.outcome, Open)]
    return any(
        _possible(model, order)
        for mask in range(1 << len(maybe))
        for order in permutations([*done, *(each for bit, each in enumerate(maybe) if mask >> bit & 1)])
    )


def _possible(model: Model[Any], order: tuple[Operation, ...]) -> bool:
    for place, operation in enumerate(order):
        if any(later.returned < operation.called for later in order[place + 1 :]):
            return False
    states = {model.initial()}
    for operation in order:
        states = {after for state in states for after in model.step(state, operation)}
    return bool(states)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(1, 5))
    positions = draw(st.permutations(range(2 * count)))
    operations = []
    for number in range(count):
        called, returned = sorted(positions[2 * number : 2 * number + 2])
        value = st.integers(0, 2)
        call, argument, results = draw(
            st.sampled_from(
                [
                    ("read", None, value),
                    ("write", draw(value), st.none()),
                    ("cas", (draw(value), draw(value)), st.sampled_from([WRITTEN, LOST])),
                ]
            )
        )
        outcome: Outcome = Open() if draw(st.integers(0, 3)) == 0 else Done(draw(results))
        operations.append(op(call, argument, outcome, called, returned))
    return operations


@given(histories(), st.booleans())
def test_agrees_with_the_definition(operations: list[Operation], overtaken: bool) -> None:
    model = Cell(first=0, overtaken=overtaken)
    assert (verdicts(model, *operations) == []) == explained_by_some_order(model, operations)


@st.composite
def countings(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(1, 5))
    positions = draw(st.permutations(range(2 * count)))
    operations = []
    for number in range(count):
        called, returned = sorted(positions[2 * number : 2 * number + 2])
        call, argument = draw(st.sampled_from([("read", None), ("add", number), ("add", number), ("add", "again")]))
        outcome: Outcome = Open() if draw(st.integers(0, 2)) == 0 else Done(draw(st.integers(0, 3)))
        operations.append(op(call, argument, outcome, called, returned))
    return operations


@given(countings())
def test_agrees_with_the_definition_on_counters(operations: list[Operation]) -> None:
    model = Counter.of(operations)
    assert (verdicts(model, *operations) == []) == explained_by_some_order(model, operations)
