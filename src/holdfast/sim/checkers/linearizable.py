"""Is there an order of the operations, each at one moment between its call and its end, that a model explains?

Just-in-time linearization (Lowe's form of the search by Wing and Gong): go through calls and returns in their order and
keep every configuration that is still possible, which is a state of the model and the set of pending operations that
have taken effect already. When an operation returns it must have taken effect: configurations in which it has not are
extended by pending operations, in every order, only until it has. No configuration left means that no order exists.

An open operation stays pending for ever, so it may take effect at any time after its call, or never. A model may answer
with several next states, where an outcome leaves open what happened. ``Cell`` and ``Counter`` are models.
"""

from collections import Counter as Tally
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from holdfast.sim.history import FOREVER, Done, Failed, Open, Operation, Violation, by_key

WRITTEN, LOST = "written", "lost"


@dataclass(frozen=True)
class Cell:
    """One value. ``read`` = value; ``write(value)``; ``cas((expected, new))`` = WRITTEN or LOST.

    With ``overtaken`` a LOST write may have been applied and overwritten before its writer looked, which is all that a
    store without history can say; without it LOST means that nothing happened.
    """

    first: Hashable = None
    overtaken: bool = False

    def initial(self) -> Hashable:
        return self.first

    def step(self, state: Hashable, operation: Operation) -> Iterable[Hashable]:
        outcome, argument = operation.outcome, operation.argument
        match operation.call, argument:
            case "read", _:
                return () if isinstance(outcome, Done) and outcome.value != state else (state,)
            case "write", value:
                return (value,)
            case "cas", (expected, new) if state == expected:
                return (new,) if outcome != Done(LOST) or self.overtaken else ()
            case "cas", _:
                return (state,) if outcome == Done(LOST) else ()
        raise ValueError(f"a cell has no {operation.call}")

    def effect(self, operation: Operation) -> Hashable:
        return operation.call, operation.argument


Counted = tuple[int, frozenset[object]]
"""The number, and those of the repeated tokens that are in it."""


@dataclass(frozen=True)
class Counter:
    """A number. ``add(token)`` = the new number; ``read`` = the number; ``round up(token)`` = an even number.

    A token that was asked for before changes nothing, and is answered with the number as it is.
    """

    repeated: frozenset[object] = frozenset()
    """The tokens that come more than once; the state need not remember others."""

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Self:
        times = Tally(operation.argument for operation in operations if operation.call == "add")
        return cls(frozenset(token for token, count in times.items() if count > 1))

    def initial(self) -> Counted:
        return 0, frozenset()

    def step(self, state: Counted, operation: Operation) -> Iterable[Counted]:
        number, tokens = after = state
        match operation.call:
            case "add" if operation.argument not in tokens:
                after = (number + 1, tokens | ({operation.argument} & self.repeated))
            case "round up":
                after = (number + number % 2, tokens)
            case "add" | "read":
                pass
            case unknown:
                raise ValueError(f"a counter has no {unknown}")
        match operation.outcome:
            case Done(value) if value != after[0]:
                return ()
        return (after,)

    def effect(self, operation: Operation) -> Hashable:
        return operation.call, operation.argument if operation.argument in self.repeated else None


S = TypeVar("S", bound=Hashable)
Configurations = set[tuple[S, int]]
"""Each is a state, and a bit for every pending operation that has taken effect."""

RULE = "linearizable"
MOST = 100_000
"""Configurations that are worth looking at. The problem is hard in general; a history that needs more is not judged."""


class Model(Protocol[S]):
    """A sequential object."""

    def initial(self) -> S: ...

    def step(self, state: S, operation: Operation) -> Iterable[S]:
        """The states in which ``operation``, taking effect in ``state``, may leave the object; none if it cannot.

        The outcome of an open operation is not known: whatever it may do is possible.
        """
        ...

    def effect(self, operation: Operation) -> Hashable:
        """Open operations with equal effects are interchangeable: the search takes them in the order of their calls."""
        ...


class _TooMany(Exception):
    pass


def linearizable(operations: Iterable[Operation], model: Model[S]) -> Iterator[Violation]:
    """Judge every key's history by itself."""
    for key, part in by_key(operations).items():
        yield from _judge(key, part, model)


def _judge(key: str, operations: Sequence[Operation], model: Model[S]) -> Iterator[Violation]:
    happened = [operation for operation in operations if not isinstance(operation.outcome, Failed)]
    slots = _Slots()
    configurations: Configurations[S] = {(model.initial(), 0)}
    for _, is_return, operation in _events(happened):
        if not is_return:
            slots.take(operation)
            continue
        bit = slots.bit(operation)
        try:
            after = _having(bit, configurations, slots.pending, model)
        except _TooMany:
            yield Violation(RULE, f"undecided: {key} has too many open operations; make the history shorter")
            return
        if not after:
            yield Violation(RULE, _explain(key, operation, configurations, slots.pending))
            return
        configurations = {(state, done & ~bit) for state, done in after}
        slots.free(operation)


def _events(operations: Iterable[Operation]) -> list[tuple[int, bool, Operation]]:
    """Calls and returns in the order of events; an open operation has no return."""
    events = [(operation.called, False, operation) for operation in operations]
    events += [(operation.returned, True, operation) for operation in operations if operation.returned < FOREVER]
    return sorted(events, key=lambda event: event[0])


def _having(
    bit: int, configurations: Configurations[S], pending: dict[int, Operation], model: Model[S]
) -> Configurations[S]:
    """Every configuration in which the operation has taken effect, reached by no more steps than that needs."""
    having: Configurations[S] = set()
    seen = set(configurations)
    todo = list(configurations)
    while todo:
        if len(seen) > MOST:
            raise _TooMany
        configuration = todo.pop()
        if configuration[1] & bit:
            having.add(configuration)
            continue
        for reached in _successors(configuration, pending, model):
            if reached not in seen:
                seen.add(reached)
                todo.append(reached)
    return having


def _successors(
    configuration: tuple[S, int], pending: dict[int, Operation], model: Model[S]
) -> Iterator[tuple[S, int]]:
    """After one more of the pending operations has taken effect."""
    state, done = configuration
    tried: set[Hashable] = set()
    for bit, operation in pending.items():
        if done & bit:
            continue
        is_open = isinstance(operation.outcome, Open)
        if is_open:
            effect = model.effect(operation)
            if effect in tried:
                continue
            tried.add(effect)
        for following in model.step(state, operation):
            # An open operation that would change nothing may as well never happen.
            if not is_open or following != state:
                yield following, done | bit


class _Slots:
    """Gives every pending operation a bit, and gives the bits of returned ones to others."""

    def __init__(self) -> None:
        self.pending: dict[int, Operation] = {}
        self._bits: dict[int, int] = {}
        self._unused: list[int] = []

    def take(self, operation: Operation) -> None:
        bit = self._unused.pop() if self._unused else 1 << len(self.pending)
        self.pending[bit] = operation
        self._bits[id(operation)] = bit

    def bit(self, operation: Operation) -> int:
        return self._bits[id(operation)]

    def free(self, operation: Operation) -> None:
        bit = self._bits.pop(id(operation))
        del self.pending[bit]
        self._unused.append(bit)


def _explain(key: str, operation: Operation, configurations: Configurations[S], pending: dict[int, Operation]) -> str:
    states = sorted({repr(state) for state, _ in configurations})
    shown = " or ".join(states[:3]) + (" or ..." if len(states) > 3 else "")
    others = "; ".join(str(other) for other in pending.values() if other is not operation)
    return f"no order of effects on {key} explains [{operation}] in state {shown}" + (
        f", while pending: [{others}]" if others else ""
    )
