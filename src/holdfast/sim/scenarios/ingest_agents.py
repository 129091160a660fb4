"""Agents that crash, lose power and run out of disk, and collectors that lose answers or are away."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.store import Store
from holdfast.sim import ingest_kit as kit
from holdfast.sim.agent_kit import Road, SimDisk, SimFolder, SimTransport
from holdfast.sim.checkers.ingest_agents import DELIVERED, nothing_lost
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.agent.queue import Queue, QueueOptions, open_queue
from holdfast.telemetry.agent.sender import Backoff
from holdfast.telemetry.agent.shipper import Shipper, ShipperOptions
from holdfast.telemetry.records import Gauge, Log, Record

POSITION = "position"
PATIENCE_MS = 10_000
ROUNDS_AT_THE_END = 100


@dataclass(frozen=True, kw_only=True)
class IngestAgents(Scenario):
    """What agents queue is accepted, parked or still queued, each record under one number, without gaps."""

    name: ClassVar[str] = "ingest-agents"
    shipper: ClassVar[type[Shipper]] = Shipper

    agents: int = 1
    rounds: int = 2
    collectors: int = 1
    window: int = 1
    queue: QueueOptions = QueueOptions(segment_bytes=600, tidy_bytes=300)  # noqa: RUF009  # frozen
    road: Road = Road()  # noqa: RUF009  # frozen
    power: float = 0.0
    """How often a crash takes the power with it."""
    full: float = 0.0
    disk_ms: float = 1.0
    outage: kit.Outage = kit.Outage()  # noqa: RUF009  # frozen

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            agents=rng.randint(1, 2),
            rounds=rng.randint(2, 12),
            collectors=rng.randint(1, 3),
            window=rng.randint(1, 4),
            queue=QueueOptions(
                max_bytes=rng.choice((2_000, 100_000)), segment_bytes=rng.choice((600, 2_000)), tidy_bytes=300
            ),
            road=Road(
                lost_request=rng.choice((0.0, 0.3)),
                lost_answer=rng.choice((0.0, 0.4)),
                rival=rng.choice((0.0, 0.2)),
                resolved=rng.choice((0.0, 0.5)),
            ),
            power=rng.choice((0.0, 0.5, 1.0)),
            full=rng.choice((0.0, 0.0, 0.2)),
            disk_ms=rng.choice((1.0, 20.0)),
            outage=kit.Outage.drawn(rng),
            faults=Faults.drawn(rng, lost_response=0.1),
            troubles=Troubles(
                crashes=rng.randint(0, 4), pauses=rng.choice((0, 1)), jumps=rng.choice((0, 2)), skew_ms=5_000
            ),
            retry=retries(rng),
        )

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return super().stack(self.outage.over(backend, ambient), ambient)

    def begin(self, world: World) -> None:
        for number in range(self.agents):
            world.start(f"agent{number + 1}", partial(self.live, SimDisk()))

    async def live(self, disk: SimDisk, process: Process) -> None:
        if process.incarnation > 1 and process.rng.random() < self.power:
            disk.fail_power(process.rng)
        folder = SimFolder(disk, process, slowest_ms=self.disk_ms, full=self.full)
        queue = await self.opened(folder, process)
        collectors = [
            Collector(process.store, process.ambient, kit.authority(), CollectorOptions(f"collector{number}"))
            for number in range(self.collectors)
        ]
        options = ShipperOptions(self.collectors, self.window, Backoff(50, 1_000), parked_retry_ms=2_000)
        shipper = self.shipper(queue, SimTransport(process, collectors, self.road), process.ambient, options)
        work = asyncio.create_task(shipper.run())
        for _ in range(self.rounds):
            await self.gather(process, queue)
            shipper.notify()
            await asyncio.sleep(process.rng.uniform(0, 0.2))
        for _ in range(ROUNDS_AT_THE_END):
            if await shipper.drain(PATIENCE_MS):
                process.note("has nothing left")
                break
            await asyncio.sleep(0.5)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        for name, body in sorted(disk.bodies().items()):
            process.note("keeps", f"{process.family} {name}", body)
        process.note("is done", process.family)

    async def opened(self, folder: SimFolder, process: Process) -> Queue:
        while True:
            try:
                return await open_queue(folder, process.family, process.ambient, self.queue)
            except Unavailable as error:
                process.note("cannot open", str(error))
                await asyncio.sleep(0.5)

    async def gather(self, process: Process, queue: Queue) -> None:
        """Lines come from a log that can be read again, samples are gone when they are not queued."""
        start = int(queue.state.get(POSITION, 0))
        lines = [f"line {number}" for number in range(start, start + process.rng.randint(0, 3))]
        samples = [process.rng.getrandbits(40) for _ in range(process.rng.randint(1, 3))]
        records: list[Record] = [Log(line, 0) for line in lines]
        records += [Gauge("sample", value, 0) for value in samples]
        texts = [*lines, *(f"sample {value}" for value in samples)]
        await self.append(process, queue, records, texts, start + len(lines))

    async def append(
        self, process: Process, queue: Queue, records: list[Record], texts: list[str], position: int
    ) -> None:
        work = queue.append(records, {POSITION: position})
        await process.perform("append", work, key=process.family, argument=texts)

    def check(self, world: World) -> Iterator[Violation]:
        disks: dict[str, dict[str, bytes]] = {}
        delivered: set[str] = set()
        resolved: dict[str, set[tuple[int, int]]] = {}
        for event in world.trace.events:
            family = event.who.partition(".")[0]
            if event.what == "is done":
                disks.setdefault(family, {})
            elif event.what == "has nothing left":
                delivered.add(family)
            elif event.what == "keeps" and isinstance(event.detail, bytes):
                disks.setdefault(family, {})[str(event.subject).partition(" ")[2]] = event.detail
            elif event.what == "resolves":
                start, _, stop = str(event.subject).partition("-")
                resolved.setdefault(family, set()).add((int(start), int(stop)))
        objects = {key: found.body for key, found in world.truth.shelf.objects.items()}
        yield from (Violation(DELIVERED, agent) for agent in sorted(set(disks) - delivered))
        yield from nothing_lost(objects, disks, world.operations, resolved)
