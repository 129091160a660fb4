"""One collector that accepts on its disk and lands later, restarted in the middle, beside one who should not be."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self, TypeVar

from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Page, Store, Written
from holdfast.sim import ingest_kit as kit
from holdfast.sim.agent_kit import SimDisk, SimFolder
from holdfast.sim.checkers.ingest import replayed
from holdfast.sim.checkers.ingest_spool import spooled_once
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.clock import SimClock
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.landing import Landed, SpoolCollector
from holdfast.telemetry.accept.notes import Notes, NotesOptions
from holdfast.telemetry.accept.spool import Spool

T = TypeVar("T")

STALL = 50
"""Times as long as usual."""


class Disk(Layer):
    """A disk takes its time, so that a crash can come before and after everything that is written to it. Now and then
    it takes very long, while others go on."""

    def __init__(self, inner: Store, process: Process, slowest_ms: float, stalls: float) -> None:
        super().__init__(inner)
        self._process = process
        self._slowest_ms = slowest_ms
        self._stalls = stalls

    async def find(self, key: str) -> Object | None:
        return await self._timed(partial(self.inner.find, key))

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await self._timed(partial(self.inner.put, key, body, mode))

    async def delete(self, key: str) -> None:
        await self._timed(partial(self.inner.delete, key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        await self._timed(partial(self.inner.delete_many, list(keys)))

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        async for page in self.inner.list(prefix, after=after, delimiter=delimiter):
            await self._turn()
            yield page

    async def _timed(self, work: Callable[[], Awaitable[T]]) -> T:
        await self._turn()
        result = await work()
        await self._turn()
        return result

    async def _turn(self) -> None:
        slowest_ms = self._slowest_ms * (STALL if self._process.rng.random() < self._stalls else 1)
        await asyncio.sleep(self._process.rng.uniform(0, slowest_ms) / 1000)


@dataclass(frozen=True, kw_only=True)
class IngestSpool(Scenario):
    """A spool takes every batch once, over restarts too, and what it took is on its disk or in the store."""

    name: ClassVar[str] = "ingest-spool"
    spool: ClassVar[type[Spool]] = Spool

    senders: int = 2
    batches: int = 1
    sends: int = 1
    variants: int = 1
    rounds: int = 1
    rivals: int = 0
    """Batches that somebody else accepts in the store, against the rules."""
    disk_ms: float = 1.0
    stalls: float = 0.0
    log_notes: int = 2
    """So few notes make a run."""
    power: float = 0.0
    """How often a crash is that of the machine."""
    outage: kit.Outage = kit.Outage()  # noqa: RUF009  # frozen

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            outage=kit.Outage.drawn(rng),
            senders=rng.randint(1, 3),
            batches=rng.randint(1, 4),
            sends=rng.randint(2, 8),
            variants=rng.choice((1, 2)),
            rounds=rng.randint(2, 6),
            rivals=rng.choice((0, 0, 2)),
            disk_ms=rng.choice((1.0, 20.0, 200.0)),
            stalls=rng.choice((0.0, 0.1)),
            log_notes=rng.choice((1, 2, 16)),
            power=rng.choice((0.0, 0.5)),
            faults=Faults.drawn(rng, lost_response=0.15),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return super().stack(self.outage.over(backend, ambient), ambient)

    def begin(self, world: World) -> None:
        disk = MemoryStore(clock=SimClock(world.loop.time))
        world.start("collector", partial(self.serve, disk, SimDisk()))
        if self.rivals:
            world.start("rival", self.rival)

    async def serve(self, disk: MemoryStore, beside: SimDisk, process: Process) -> None:
        spool = await self.opened(disk, beside, process)
        collector = SpoolCollector(
            spool,
            process.store,
            process.ambient,
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions(process.name),
            kit.inspect,
            on_accepted=kit.effect(process),
        )
        senders = [self.send(process, collector) for _ in range(self.senders)]
        await asyncio.gather(self.land(process, collector), *senders)
        await self.land(process, collector)
        for key, found in sorted(disk.shelf.objects.items()):
            process.note("keeps", key, found.body)

    async def opened(self, disk: MemoryStore, beside: SimDisk, process: Process) -> Spool:
        if process.incarnation > 1 and process.rng.random() < self.power:
            beside.fail_power(process.rng)
        folder = SimFolder(beside, process, slowest_ms=self.disk_ms, full=0.0)
        options = NotesOptions(log_notes=self.log_notes, run_notes=4)
        spool = self.spool(
            Disk(disk, process, self.disk_ms, self.stalls), Notes(folder, process.ambient.clock, options)
        )
        await spool.load()
        return spool

    async def send(self, process: Process, collector: SpoolCollector) -> None:
        for _ in range(self.sends):
            submitted = self.submission(process)
            key = layout.accepted_key(submitted.identity)
            await kit.send(process, submitted, collector.accept(submitted), key=key)
            await asyncio.sleep(process.rng.uniform(0, 100) / 1000)

    def submission(self, process: Process) -> Submission:
        return kit.submission(process.rng.randrange(self.batches), process.rng.randrange(self.variants))

    async def land(self, process: Process, collector: SpoolCollector) -> None:
        for _ in range(self.rounds):
            await process.perform("land", collector.land(), key=layout.BLOBS, show=_counted)
            await asyncio.sleep(process.rng.uniform(0, 200) / 1000)

    async def rival(self, process: Process) -> None:
        collector = Collector(process.store, process.ambient, kit.authority(), CollectorOptions(process.name))
        for number in range(self.rivals):
            submitted = kit.submission(number % self.batches, 7)
            key = layout.accepted_key(submitted.identity)
            outcome = await process.perform("rival", collector.accept(submitted), key=key, show=kit.show)
            if not isinstance(outcome, Done):
                return

    def check(self, world: World) -> Iterator[Violation]:
        kept = {
            str(event.subject): event.detail
            for event in world.trace.events
            if event.what == "keeps" and isinstance(event.detail, bytes)
        }
        finished = any(event.what == "finishes" and event.who.startswith("collector") for event in world.trace.events)
        yield from spooled_once(replayed(world.landings), world.operations, kept if finished else None)


def _counted(landed: Landed) -> tuple[int, int]:
    return landed.batches, landed.conflicts
