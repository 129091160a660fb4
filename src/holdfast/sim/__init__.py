"""The simulated world: virtual time, one seed, a store that loses answers, processes that crash.

The protocols that run here are the production ones, over the production stack; only the surroundings are simulated.
A run is a function of its seed, so a failure is replayed by naming it.

What a scenario of your own needs is here; ``holdfast.sim.checkers`` has judges of histories, ``holdfast.sim.explore``
follows every course of events of a small world. Names are looked up when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.sim.faults import Faults as Faults
    from holdfast.sim.faults import Troubles as Troubles
    from holdfast.sim.history import Done as Done
    from holdfast.sim.history import Failed as Failed
    from holdfast.sim.history import Landing as Landing
    from holdfast.sim.history import Open as Open
    from holdfast.sim.history import Operation as Operation
    from holdfast.sim.history import Violation as Violation
    from holdfast.sim.run import Run as Run
    from holdfast.sim.run import simulate as simulate
    from holdfast.sim.scenario import Scenario as Scenario
    from holdfast.sim.scenario import retries as retries
    from holdfast.sim.world import Process as Process
    from holdfast.sim.world import World as World

_HOMES = {
    "Done": "history",
    "Failed": "history",
    "Faults": "faults",
    "Landing": "history",
    "Open": "history",
    "Operation": "history",
    "Process": "world",
    "Run": "run",
    "Scenario": "scenario",
    "Troubles": "faults",
    "Violation": "history",
    "World": "world",
    "retries": "scenario",
    "simulate": "run",
}

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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"holdfast.sim.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'holdfast.sim' has no attribute {name!r}")
