"""Names that are deleted: create-if-absent forgets, so a boundary remembers.

Whoever deletes names first advances a boundary object past them. Whoever creates a name reads the boundary after the
create and before reporting success: a name at or below it is spent, even if creating it succeeded.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.base.errors import Ambiguous, Conflict, Unavailable
from holdfast.objects.register import CONTENTION, UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, Lost
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import AT_ONCE, Scenario, retries
from holdfast.sim.world import Process, World

TICKETS = "ticket/"
BOUNDARY = "boundary"
SHAPE = Plain("holdfast.sim.boundary")
TAKEN_ONCE = "a name is taken once"


@dataclass(frozen=True, kw_only=True)
class Names(Scenario):
    """Guests take numbered names while a cleaner deletes old ones; no number is ever given to two guests."""

    name: ClassVar[str] = "names"

    guests: int = 2
    turns: int = 1
    sweeps: int = 1
    contention: RetryPolicy = AT_ONCE

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            guests=rng.randint(2, 4),
            turns=rng.randint(2, 6),
            sweeps=rng.randint(1, 6),
            contention=CONTENTION,
            faults=Faults.drawn(rng, lost_response=0.25),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.guests):
            world.start(f"guest{number + 1}", self.guest)
        world.start("cleaner", self.cleaner)

    async def guest(self, process: Process) -> None:
        for _ in range(self.turns):
            await process.perform("take", self.take(process), key=TICKETS)

    async def take(self, process: Process) -> int:
        """The next free number."""
        number = max(await self.newest(process), await self.spent(process)) + 1
        body = codec.encode({"guest": process.name, "write_id": process.ambient.ids.write_id()})
        if isinstance(await process.store.put(f"{TICKETS}{number:06}", body, CREATE), Lost):
            raise Conflict(f"{number} is taken")
        if await self.spent(process) >= number:
            raise Conflict(f"{number} was taken before, and deleted")
        return number

    async def cleaner(self, process: Process) -> None:
        boundary = self._boundary(process)
        for sweep in range(self.sweeps):
            try:
                newest = await self.newest(process)

                def advance(spent: Any, newest: int = newest) -> int | Unchanged:
                    return newest if newest > (spent or 0) else UNCHANGED

                if newest > 0:
                    await boundary.edit(f"{process.name}/{sweep}", advance)
                    await process.store.delete_many([f"{TICKETS}{number:06}" for number in range(1, newest + 1)])
            except (Ambiguous, Unavailable):
                process.note("will sweep later")

    async def newest(self, process: Process) -> int:
        keys = [key async for key in process.store.keys(TICKETS)]
        return int(keys[-1].removeprefix(TICKETS)) if keys else 0

    async def spent(self, process: Process) -> int:
        boundary = await self._boundary(process).read()
        return 0 if boundary is None else int(boundary.value)

    def _boundary(self, process: Process) -> Register[Any]:
        return Register(process.store, BOUNDARY, SHAPE, process.ambient, policy=self.contention)

    def check(self, world: World) -> Iterator[Violation]:
        taken = [operation for operation in world.operations if isinstance(operation.outcome, Done)]
        guests = Counter(operation.outcome.value for operation in taken if isinstance(operation.outcome, Done))
        for number, count in guests.items():
            if count > 1:
                names = [operation.process for operation in taken if operation.outcome == Done(number)]
                yield Violation(TAKEN_ONCE, f"number {number} was given to {' and '.join(names)}")
