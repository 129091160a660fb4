"""Trouble for processes: crashes, restarts, pauses and clocks that jump, at moments drawn from the seed."""

from collections.abc import Callable

from holdfast.sim.faults import Troubles
from holdfast.sim.world import Process, World


class Nemesis:
    """Strikes whoever is working when the moment comes, or nobody."""

    def __init__(self, world: World, troubles: Troubles) -> None:
        self._world = world
        self._troubles = troubles
        self._rng = world.seed.stream("nemesis")

    def plan(self) -> None:
        troubles = self._troubles
        for count, strike in (
            (troubles.crashes, self._crash),
            (troubles.pauses, self._pause),
            (troubles.jumps, self._jump),
        ):
            for _ in range(count):
                moment = self._rng.uniform(0, troubles.within_ms) / 1000
                self._world.loop.after(moment, self._strike, strike)

    def _strike(self, strike: Callable[[Process], None]) -> None:
        victims = [process for process in self._world.processes if process.working]
        if victims:
            strike(self._rng.choice(victims))

    def _crash(self, victim: Process) -> None:
        victim.crash()
        if self._troubles.restarts:
            self._world.later(self._a_while(), victim.restart)

    def _pause(self, victim: Process) -> None:
        victim.pause(self._a_while())

    def _jump(self, victim: Process) -> None:
        victim.jump(self._rng.uniform(-1, 1) * self._troubles.skew_ms)

    def _a_while(self) -> float:
        return self._rng.random() * self._troubles.pause_ms / 1000
