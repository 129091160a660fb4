"""One scenario under one seed, and the sums over many."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Self

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
    wire = TimedWire(loop, trace, scenario.faults, schedule=seed.stream("schedule"), trouble=seed.stream("faults"))
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
