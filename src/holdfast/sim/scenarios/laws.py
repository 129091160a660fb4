"""The laws of the object store, judged through the production stack over the simulated one."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast.objects.conformance.laws import LAWS, Bench, Effort
from holdfast.objects.retry import RetryPolicy
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario
from holdfast.sim.world import Process, World

STUBBORN = RetryPolicy(attempts=30, base_ms=10, max_ms=200, deadline_ms=600_000)
SMALL = Effort(races=3, rounds=2, race_seconds=10, keys=12, large_bytes=2048)


@dataclass(frozen=True, kw_only=True)
class Laws(Scenario):
    """Every law of the store holds while requests, responses and pages of listings are lost, slow or refused."""

    name: ClassVar[str] = "laws"
    explorable: ClassVar[bool] = False

    laws: tuple[str, ...] = tuple(law.name for law in LAWS)
    effort: Effort = SMALL

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        # A write without condition that lands late overwrites a newer one: no store can help that, no law forbids it.
        faults = replace(Faults.drawn(rng, lost_response=0.25), late=0.0, duplicate=0.0)
        return cls(laws=(rng.choice(LAWS).name,), faults=faults, retry=STUBBORN)

    def begin(self, world: World) -> None:
        world.start("examiner", self.examiner)

    async def examiner(self, process: Process) -> None:
        clients = [process.port() for _ in range(self.effort.races)]
        for law in LAWS:
            if law.name in self.laws:
                bench = Bench(
                    clients, prefix=f"{law.name}/", ambient=process.ambient, effort=self.effort, retry=self.retry
                )
                await process.perform("judge", law.run(bench), key=law.name)

    def check(self, world: World) -> Iterator[Violation]:
        for operation in world.operations:
            if not isinstance(operation.outcome, Done) and operation.outcome.error is not None:
                yield Violation("every law can be judged", str(operation))
