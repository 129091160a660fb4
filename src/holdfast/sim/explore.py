"""Exhaustive exploration of a small world: requests take effect, are answered or cut off in every possible order.

Nothing is timed here. Whenever every process waits, the explorer decides what happens next: a request takes effect and
its answer arrives or is lost; a process dies. A schedule is its list of decisions. All schedules are followed, depth
first, by running the world again from its beginning with another list. A schedule that reaches a state which an earlier
one has reached is abandoned there, because nothing new can follow: the store has had the same changes, every process
has received the same answers, the same requests are in flight, and the same operations had ended when others began. A
process or a checker can know nothing else.

An answer arrives as soon as its request has taken effect. A later arrival would change nothing for other processes: it
only delays the next request of this one, and that is delayed in all possible ways anyhow. For the same reason an
operation begins when its first request takes effect. So operations are as short as they can be, which is the hardest
case for a protocol. A process that dies between effect and answer is one that died while its request was in flight.

Time moves only when no request is in flight, so a scenario that is explored should not sleep.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.sim.history import Trace
from holdfast.sim.loop import SimLoop
from holdfast.sim.run import Run
from holdfast.sim.scenario import Scenario
from holdfast.sim.wire import Request, Wire, contended, no_answer
from holdfast.sim.world import Process, Seed, World

Choices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may go wrong in one course of events."""

    crashes: int = 1
    lost_responses: int = 1
    timeouts: int = 0
    """A client gives up on a request that is still on its way; it lands later, or never."""
    duplicates: int = 0
    """A write that has landed lands once more, at any later time."""
    contended: int = 0
    """A conditional write is answered 409 while a copy of it is still on its way; that lands later, or never."""


@dataclass(frozen=True)
class Counterexample:
    choices: Choices
    violations: list[str]


@dataclass
class Exploration:
    states: int = 0
    """Different points at which something was to be decided."""
    paths: int = 0
    """Courses of events that were followed to their end."""
    pruned: int = 0
    """Courses that came to a point where another had been."""
    found: Counterexample | None = None


def explore(scenario: Scenario, limits: Limits) -> Exploration:
    """Follow every course of events, up to the first that breaks a rule."""
    result = Exploration()
    memory = _Memory()
    path: list[_Branch] = []
    while True:
        try:
            run = _Course(scenario, limits, path, memory).run()
        except _BeenHere:
            result.pruned += 1
        else:
            result.paths += 1
            if run.violations:
                result.found = Counterexample(tuple(branch.chosen for branch in path), run.violations)
        result.states = len(memory.points)
        if result.found is not None:
            return result
        while path and path[-1].exhausted:
            path.pop()
        if not path:
            return result
        path[-1].chosen += 1


def follow(scenario: Scenario, limits: Limits, choices: Choices) -> Run:
    """One course of events again, for its trace; under the limits with which it was found."""
    return _Course(scenario, limits, [_Branch(0, chosen) for chosen in choices], None).run()


class _BeenHere(Exception):
    """An earlier course has been at this point."""


@dataclass
class _Branch:
    options: int
    chosen: int = 0

    @property
    def exhausted(self) -> bool:
        return self.chosen == self.options - 1


class _Memory:
    """The points that were reached. A chain of things seen is named by a number, one to one."""

    def __init__(self) -> None:
        self.points: set[Hashable] = set()
        self._numbers: dict[tuple[int, Hashable], int] = {}

    def extend(self, chain: int, link: Hashable) -> int:
        return self._numbers.setdefault((chain, link), len(self._numbers) + 1)


@dataclass(frozen=True, eq=False)
class _Flight:
    """A request on its way to the store."""

    request: Request
    turn: int
    """Counted per process: unlike the request's number it is the same in courses that the process cannot tell apart."""


class _ChosenWire(Wire):
    """Nothing moves until it is decided."""

    def __init__(self, loop: SimLoop, trace: Trace) -> None:
        super().__init__(loop, trace)
        self.flights: list[_Flight] = []
        self._turns: dict[str, int] = {}

    def carry(self, request: Request) -> None:
        turn = self._turns[request.process] = self._turns.get(request.process, 0) + 1
        self.flights.append(_Flight(request, turn))


class _Course:
    """One run of the world along a list of choices, which it extends when it comes to the list's end."""

    def __init__(self, scenario: Scenario, limits: Limits, path: list[_Branch], memory: _Memory | None) -> None:
        self._scenario = scenario
        self._left = limits
        self._path = path
        self._memory = memory
        self._depth = 0
        self._repeatable: list[_Flight] = []
        self._begun: set[int] = set()
        self._received: dict[str, int] = {}
        """Per process the chain of all answers that it has received."""
        loop, trace = SimLoop(when_idle=self._decide), Trace()
        self._wire = _ChosenWire(loop, trace)
        self._world = World(Seed(0), loop, trace, self._wire, stack=scenario.stack)

    def run(self) -> Run:
        with self._world as world:
            self._scenario.begin(world)
            world.run()
            return Run.of(world, self._scenario)

    def _decide(self) -> bool:
        """Called when every process waits. False: there is nothing left to happen."""
        options = [] if self._world.over else list(self._options())
        if not options:
            return False
        options[self._choose(len(options))]()
        return True

    def _choose(self, options: int) -> int:
        if options == 1:
            return 0
        self._depth += 1
        if self._depth > len(self._path):
            if self._memory is None:
                return 0
            point = self._point(self._memory)
            if point in self._memory.points:
                raise _BeenHere
            self._memory.points.add(point)
            self._path.append(_Branch(options))
        chosen = self._path[self._depth - 1].chosen
        if chosen >= options:
            raise Invalid(
                f"choice number {self._depth} is {chosen}, of {options} that are possible there",
                remedy="follow choices under the limits and settings with which they were found",
            )
        return chosen

    def _options(self) -> Iterator[Callable[[], None]]:
        """What may happen next. The undisturbed course comes first."""
        left = self._left
        for flight in self._wire.flights:
            yield partial(self._land, flight)
            if not self._is_awaited(flight):
                yield partial(self._drop, flight)
                continue
            if left.lost_responses:
                yield partial(self._lose_answer, flight)
            if left.timeouts:
                yield partial(self._time_out, flight)
            if left.contended and flight.request.conditional:
                yield partial(self._contend, flight)
        if left.duplicates:
            yield from (partial(self._repeat, flight) for flight in self._repeatable)
        if left.crashes:
            yield from (partial(self._crash, process) for process in self._world.processes if process.working)

    def _land(self, flight: _Flight) -> None:
        if self._is_awaited(flight):
            self._begin_operations(flight.request.process)
            self._tell(flight, self._serve(flight))
        else:
            self._serve(flight)

    def _lose_answer(self, flight: _Flight) -> None:
        self._spend("lost_responses")
        self._begin_operations(flight.request.process)
        self._serve(flight)
        self._tell(flight, no_answer(flight.request))

    def _time_out(self, flight: _Flight) -> None:
        self._spend("timeouts")
        self._tell(flight, no_answer(flight.request))

    def _contend(self, flight: _Flight) -> None:
        self._spend("contended")
        self._tell(flight, contended(flight.request))

    def _repeat(self, flight: _Flight) -> None:
        self._spend("duplicates")
        self._repeatable.remove(flight)
        self._wire.land(flight.request)

    def _crash(self, process: Process) -> None:
        self._spend("crashes")
        process.crash()

    def _drop(self, flight: _Flight) -> None:
        self._wire.flights.remove(flight)

    def _spend(self, kind: str) -> None:
        self._left = replace(self._left, **{kind: getattr(self._left, kind) - 1})

    def _is_awaited(self, flight: _Flight) -> bool:
        """Whether its process is alive and waits for the answer."""
        working = any(process.working for process in self._world.processes if process.name == flight.request.process)
        return working and not flight.request.answer.done()

    def _serve(self, flight: _Flight) -> Any:
        self._drop(flight)
        if flight.request.writes:
            self._repeatable.append(flight)
        return self._wire.land(flight.request)

    def _tell(self, flight: _Flight, answer: Any) -> None:
        process = flight.request.process
        self._begin_operations(process)
        if self._memory is not None:
            received = (flight.turn, _comparable(answer))
            self._received[process] = self._memory.extend(self._received.get(process, 0), received)
        self._wire.tell(flight.request, answer)

    def _begin_operations(self, process: str) -> None:
        """Now is the latest moment at which the operations that ``process`` has called can be said to begin."""
        for place, operation in enumerate(self._world.operations):
            if operation.process == process and place not in self._begun:
                self._begun.add(place)
                subject = f"{operation.call} {operation.key}"
                operation.called = self._world.trace.note(self._world.loop.time(), process, "begins", subject)

    def _point(self, memory: _Memory) -> Hashable:
        """All that matters for what can still happen, and for how it will be judged."""
        changes = 0
        for landing in self._world.landings:
            changes = memory.extend(changes, (landing.process, landing.key, landing.version))
        return (
            changes,
            frozenset(self._received.items()),
            frozenset((flight.request.process, flight.turn) for flight in self._wire.flights),
            frozenset((flight.request.process, flight.turn) for flight in self._repeatable),
            frozenset(process.name for process in self._world.processes if process.working),
            self._left,
            frozenset(self._precedence()),
        )

    def _precedence(self) -> Iterator[Hashable]:
        """For every operation that has begun, by process and turn, those that had ended before."""
        turns: Counter[str] = Counter()
        ended: list[tuple[int, Hashable]] = []
        for place, operation in enumerate(self._world.operations):
            turns[operation.process] += 1
            name = (operation.process, turns[operation.process])
            if place in self._begun:
                yield name, frozenset(other for returned, other in ended if returned < operation.called)
            ended.append((operation.returned, name))


def _comparable(answer: Any) -> Hashable:
    """Errors are equal if they say the same; everything else that a store answers is a value."""
    if isinstance(answer, HoldfastError):
        return type(answer).__name__, str(answer)
    value: Hashable = answer
    return value
