"""The linearizability checker against known histories, and against trying every order."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Ambiguous
from holdfast.sim.checkers.linearizable import LOST, WRITTEN, Cell, Counter, Model, linearizable
from holdfast.sim.history import FOREVER, Done, Open, Operation, Outcome

OPEN = Open(Ambiguous("who knows"))


def op(
    call: str, argument: Any, outcome: Outcome, called: int, returned: int = FOREVER, *, key: str = "k"
) -> Operation:
    return Operation("p", call, key, argument, called, FOREVER if isinstance(outcome, Open) else returned, outcome)


def verdicts(model: Model[Any], *operations: Operation) -> list[str]:
    return [str(violation) for violation in linearizable(operations, model)]


class TestCell:
    def test_keys_are_independent(self) -> None:
        history = [
            op("write", "a", Done(), 0, 1, key="x"),
            op("read", None, Done(None), 2, 3, key="y"),
            op("read", None, Done(None), 4, 5, key="x"),
        ]
        (verdict,) = verdicts(Cell(), *history)
        assert "on x" in verdict


class TestCounter:
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
