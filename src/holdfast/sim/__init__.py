"""The simulated world: virtual time, one seed, a store that loses answers, processes that crash.

The protocols that run here are the production ones, over the production stack; only the surroundings are simulated.
A run is a function of its seed, so a failure is replayed by naming it.

What a scenario of your own needs is here; ``holdfast.sim.checkers`` has judges of histories, ``holdfast.sim.explore``
follows every schedule of a small world.
"""

from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Failed, Landing, Open, Operation, Violation
from holdfast.sim.run import Run, simulate
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

__all__ = [
    "Done",
    "Failed",
    "Faults",
    "Landing",
    "Open",
    "Operation",
    "Process",
    "Run",
    "Scenario",
    "Troubles",
    "Violation",
    "World",
    "retries",
    "simulate",
]
