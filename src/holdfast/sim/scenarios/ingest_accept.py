"""Collectors of one authority, sent the same and conflicting batches, beside a keeper of orphaned blobs."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.store import Store
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.ingest import accepted_once, replayed
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Answer, Submission
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.manifest import ConflictManifest
from holdfast.telemetry.accept.orphans import OrphanKeeper


@dataclass(frozen=True, kw_only=True)
class IngestAccept(Scenario):
    """Collectors accept each batch once, whoever sends it where and however often; every manifest has its bytes."""

    name: ClassVar[str] = "ingest-accept"
    collector: ClassVar[type[Collector]] = Collector
    keeper: ClassVar[type[OrphanKeeper]] = OrphanKeeper

    collectors: int = 2
    batches: int = 1
    sends: int = 1
    """Submissions at each collector."""
    again: int = 0
    """How often a sender tries again that was not answered."""
    variants: int = 1
    """Different bytes under one identity."""
    keepers: int = 0
    rounds: int = 1
    """How often a keeper goes through all blobs."""
    resolved: bool = False
    """Conflicts count as resolved at once, so that the bytes that lost may go."""
    idle_ms: float = 0.0
    references: bool = False
    """Derived references are written too."""
    outage: kit.Outage = kit.Outage()  # noqa: RUF009  # frozen

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            outage=kit.Outage.drawn(rng),
            collectors=rng.randint(2, 4),
            batches=rng.randint(1, 4),
            sends=rng.randint(2, 8),
            again=rng.randint(0, 3),
            variants=rng.choice((1, 1, 2, 3)),
            keepers=rng.choice((0, 1, 2)),
            rounds=rng.randint(1, 3),
            resolved=rng.random() < 0.5,
            idle_ms=rng.choice((0.0, 50.0, 400.0)),
            references=rng.random() < 0.5,
            faults=Faults.drawn(rng, lost_response=0.15),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return super().stack(self.outage.over(backend, ambient), ambient)

    def begin(self, world: World) -> None:
        for number in range(self.collectors):
            world.start(f"collector{number + 1}", self.serve)
        for number in range(self.keepers):
            world.start(f"keeper{number + 1}", self.keep)

    async def serve(self, process: Process) -> None:
        collector = self.collector(
            process.store,
            process.ambient,
            kit.authority(),
            CollectorOptions(process.name),
            on_accepted=kit.effect(process),
        )
        for turn in range(self.sends):
            submitted = self.submission(process, turn)
            for _ in range(1 + self.again):
                key = layout.accepted_key(submitted.identity)
                outcome = await kit.send(process, submitted, self.accept(collector, submitted), key=key)
                if isinstance(outcome, Done):
                    break
                await self._rest(process)
            if self.references:
                await collector.references.flush()
            await self._rest(process)

    def submission(self, process: Process, turn: int) -> Submission:
        """In a small world collectors are sent the variants in turn; in a large one anything goes."""
        if self.batches == self.sends == 1:
            return kit.submission(0, int(process.family.removeprefix("collector")) % self.variants)
        return kit.submission(process.rng.randrange(self.batches), process.rng.randrange(self.variants))

    async def accept(self, collector: Collector, submitted: Submission) -> Answer:
        return await collector.accept(submitted)

    async def keep(self, process: Process) -> None:
        async def may_go(_: ConflictManifest) -> bool:
            return self.resolved

        keeper = self.keeper(process.store, process.ambient, kit.inspect, collector_id=process.name, may_go=may_go)
        for _ in range(self.rounds):
            await process.perform("keep", self.sweep(process, keeper), key=layout.BLOBS)
            await self._rest(process)

    async def sweep(self, process: Process, keeper: OrphanKeeper) -> None:
        async for key in process.store.keys(layout.BLOBS):
            await keeper.treat(key)

    async def _rest(self, process: Process) -> None:
        if self.idle_ms:
            await asyncio.sleep(process.rng.uniform(0, self.idle_ms) / 1000)

    def check(self, world: World) -> Iterator[Violation]:
        yield from accepted_once(replayed(world.landings), world.operations)
