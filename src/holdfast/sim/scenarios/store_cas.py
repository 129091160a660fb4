"""Conditional writes through the settled stack, nothing above it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.base import codec
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Lost, Object, Written, content_version
from holdfast.sim.checkers.linearizable import linearizable
from holdfast.sim.checkers.models import LOST, WRITTEN, Cell
from holdfast.sim.checkers.told import told_the_truth
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World


@dataclass(frozen=True, kw_only=True)
class StoreCas(Scenario):
    """Writers read a cell and replace what they saw; the cell is linearizable and nobody is told a lie."""

    name: ClassVar[str] = "store-cas"

    writers: int = 2
    turns: int = 2
    cells: int = 1

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            writers=rng.randint(2, 4),
            turns=rng.randint(2, 10),
            cells=rng.choice((1, 1, 2)),
            faults=Faults.drawn(rng, lost_response=0.25),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.writers):
            world.start(f"writer{number + 1}", self.writer)

    def body(self, value: int, ambient: Ambient) -> bytes:
        """Two values go round and round; the write id tells one write from the next."""
        return codec.encode({"value": value, "write_id": ambient.ids.write_id()})

    async def writer(self, process: Process) -> None:
        for _ in range(self.turns):
            key = f"cell{process.rng.randint(1, self.cells)}"
            read = await process.perform("read", process.store.find(key), key=key, show=_version)
            if not isinstance(read, Done):
                continue
            current: Object | None = read.result
            value = 0 if current is None else 1 - codec.decode(current.body, key=key)["value"]
            body = self.body(value, process.ambient)
            mode = CREATE if current is None else IfMatch(current.version)
            argument = (read.value, content_version(body))
            await process.perform("cas", process.store.put(key, body, mode), key=key, argument=argument, show=_told)

    def check(self, world: World) -> Iterator[Violation]:
        yield from linearizable(world.operations, Cell(overtaken=True))
        yield from told_the_truth(world.operations, world.landings)


def _version(found: Object | None) -> str | None:
    return None if found is None else found.version


def _told(outcome: Written | Lost) -> str:
    return WRITTEN if isinstance(outcome, Written) else LOST
