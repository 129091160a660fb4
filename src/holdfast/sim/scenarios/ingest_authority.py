"""Who may accept: collectors of both modes, and of a copy, begin at the same time."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from holdfast.objects.place import Place
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept.authority import Acceptance, Authority, open_authority
from holdfast.telemetry.accept.layout import AUTHORITY

ONE_AUTHORITY = "all who accept do so under one authority, in one mode, at one place"


@dataclass(frozen=True, kw_only=True)
class IngestAuthority(Scenario):
    """Collectors that begin together found one authority; whoever wants another mode or place is refused."""

    name: ClassVar[str] = "ingest-authority"

    collectors: int = 2
    modes: int = 2
    places: int = 1

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            collectors=rng.randint(2, 5),
            modes=rng.randint(1, 2),
            places=rng.randint(1, 2),
            faults=Faults.drawn(rng, lost_response=0.2),
            troubles=Troubles.drawn(rng, within_ms=200),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.collectors):
            world.start(f"collector{number + 1}", self.collector)

    async def collector(self, process: Process) -> None:
        number = int(process.family.removeprefix("collector"))
        mode = list(Acceptance)[number % self.modes]
        place = kit.PLACE if number % self.places == 0 else Place("memory", "", "copy", "")
        opening = open_authority(process.store, process.ambient, place, mode)
        await process.perform("open", opening, key=AUTHORITY, argument=(str(place), mode.value), show=_shown)

    def check(self, world: World) -> Iterator[Violation]:
        served: dict[tuple[Any, ...], str] = {}
        for operation in world.operations:
            if isinstance(operation.outcome, Done):
                told: Any = operation.outcome.value
                served[told] = str(operation)
                if told[1:] != operation.argument:
                    yield Violation(ONE_AUTHORITY, f"[{operation}]")
        if len(served) > 1:
            yield Violation(ONE_AUTHORITY, " and ".join(served.values()))
        if len(world.bodies(AUTHORITY)) > 1:
            yield Violation(ONE_AUTHORITY, f"{AUTHORITY} was written {len(world.bodies(AUTHORITY))} times")


def _shown(authority: Authority) -> tuple[str, str, str]:
    return authority.authority_id, str(authority.place), authority.acceptance.value
