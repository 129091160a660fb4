"""One scenario under one seed, the sums over many seeds, and errors of a scenario's own code."""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.sim.history import Open, Trace
from holdfast.sim.loop import SimLoop
from holdfast.sim.scenario import Scenario
from holdfast.sim.wire import TimedWire
from holdfast.sim.world import Nemesis, Seed, World


@dataclass(frozen=True)
class Run:
    """What came of one seed."""

    seed: int
    violations: list[str]
    operations: int
    open_operations: int
    requests: int
    tally: Counter[str]
    """How often each kind of fault and of trouble was met."""
    scenario: Scenario
    trace: Trace

    @classmethod
    def of(cls, world: World, scenario: Scenario) -> Self:
        """Judge a world that has come to its end."""
        return cls(
            seed=world.seed.root,
            violations=[*world.failures, *map(str, scenario.check(world))],
            operations=len(world.operations),
            open_operations=sum(isinstance(operation.outcome, Open) for operation in world.operations),
            requests=world.wire.sent,
            tally=world.tally,
            scenario=scenario,
            trace=world.trace,
        )


def simulate(kind: type[Scenario], root: int) -> Run:
    """The scenario with settings, schedule, faults and troubles from one seed."""
    seed = Seed(root)
    return simulate_drawn(kind.drawn(seed.stream("settings")), seed)


def simulate_drawn(scenario: Scenario, seed: Seed) -> Run:
    """As ``simulate``, with settings that are fixed already."""
    loop, trace = SimLoop(), Trace()
    wire = TimedWire(
        loop,
        trace,
        scenario.faults,
        schedule=seed.stream("schedule"),
        trouble=seed.stream("faults"),
        outage=scenario.outage,
    )
    with World(seed, loop, trace, wire, stack=scenario.stack, troubles=scenario.troubles) as world:
        scenario.begin(world)
        Nemesis(world, scenario.troubles).plan()
        world.run()
        return Run.of(world, scenario)


@dataclass
class Totals:
    """The sums over many seeds of one scenario, and the seeds that broke a rule."""

    runs: int = 0
    operations: int = 0
    open_operations: int = 0
    requests: int = 0
    tally: dict[str, int] = field(default_factory=dict)
    broken: dict[int, list[str]] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        return sum(self.tally.values())

    def include(self, run: Run) -> None:
        self.add(
            Totals(
                runs=1,
                operations=run.operations,
                open_operations=run.open_operations,
                requests=run.requests,
                tally=run.tally,
                broken={run.seed: run.violations} if run.violations else {},
            )
        )

    def add(self, other: "Totals") -> None:
        self.runs += other.runs
        self.operations += other.operations
        self.open_operations += other.open_operations
        self.requests += other.requests
        for kind, count in other.tally.items():
            self.tally[kind] = self.tally.get(kind, 0) + count
        self.broken |= other.broken


_HOLDFAST = Path(__file__).resolve().parents[1]


@contextmanager
def naming_mistakes(scenario: str) -> Iterator[None]:
    """Turn an error of the scenario's own code into ``Invalid``, which names the scenario and the place."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        remedy = "mend the scenario; --verbose shows the traceback"
        raise Invalid(f"scenario {scenario}: {what}, {_place(error)}", remedy=remedy) from error


def _place(error: Exception) -> str:
    """The innermost frame that is not in Holdfast, or else the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _HOLDFAST not in Path(frame.filename).parents]
    last = (own or frames)[-1]
    return f"in {last.name}, {Path(last.filename).name} line {last.lineno}"
