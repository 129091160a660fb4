"""Agents and spools: what is on a disk must survive crashes and power failures, and reach the store once.

A power failure of the simulated disk undoes what was not fsynced, and the network to the collectors loses answers.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, ParamSpec, Self, TypeVar

from holdfast.base.errors import Ambiguous, Unavailable
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.ingest import DELIVERED, nothing_lost, replayed, shown, spooled_once
from holdfast.sim.faults import Faults, Outage, Troubles
from holdfast.sim.history import Done, Violation
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, Submission, submission_of
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.landing import Landed, SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import FORMAT as SPOOL
from holdfast.telemetry.accept.spool import Spool
from holdfast.telemetry.agent.queue import FORMAT as QUEUE
from holdfast.telemetry.agent.queue import Queue
from holdfast.telemetry.agent.sender import Answer, Backoff, Busy, Conflict, NoAnswer, Taken
from holdfast.telemetry.agent.shipper import Shipper, ShipperOptions
from holdfast.telemetry.database import Database, Format, Full
from holdfast.telemetry.frame import Limits, decode, encode, pack, pack_sequenced
from holdfast.telemetry.frame.batch import Sequenced
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.live.follow import Follower, Rebuild
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge, Log, Record

P = ParamSpec("P")
R = TypeVar("R")

STALL = 50


@dataclass(frozen=True, slots=True)
class DiskTrouble:
    slowest_ms: float = 1.0
    stalls: float = 0.0
    """How often an operation takes ``STALL`` times as long, while others continue."""
    full: float = 0.0
    """How often a transaction fails because the disk is full."""
    power: float = 0.0
    """How often a crash takes the power with it."""


class SimDisk:
    """The disk of one machine, with one SQLite database, over all lives of its process."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.durable = b""

    def fsync(self) -> None:
        self.durable = self.database.serialize()

    def fail_power(self) -> None:
        """Transactions that were not fsynced are lost."""
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        if self.durable:
            self.database.deserialize(self.durable)


class SimDatabase(Database):
    """One life's hold on the database. A transaction is atomic: the life may end before it and after it."""

    def __init__(self, disk: SimDisk, made_for: Format, process: Process, trouble: DiskTrouble, max_bytes: int) -> None:
        super().__init__(Path("sim"), made_for, max_bytes=max_bytes)
        self._disk = disk
        self._process = process
        self._trouble = trouble

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await self._turn()
        result = await super().run(function, *args, **kwargs)
        await self._turn()
        return result

    def open(self, begin: Callable[[sqlite3.Connection], None] | None = None) -> None:
        super().open(begin)
        if not self._disk.durable:
            self._disk.fsync()

    def connect(self, *, create: bool) -> sqlite3.Connection:
        return self._disk.database

    def free_bytes(self) -> int:
        return 1 << 40

    @contextmanager
    def write(self, *, durable: bool = True, adds: int = 0) -> Iterator[sqlite3.Connection]:
        with super().write(durable=durable, adds=adds) as database:
            yield database
            if self._process.rng.random() < self._trouble.full:
                raise Full("the disk is full")
        if durable:
            self._disk.fsync()

    async def _turn(self) -> None:
        slowest_ms = self._trouble.slowest_ms * (STALL if self._process.rng.random() < self._trouble.stalls else 1)
        await asyncio.sleep(self._process.rng.uniform(0, slowest_ms) / 1000)


@dataclass(frozen=True, slots=True)
class Road:
    """What may happen between an agent and its collectors."""

    lost_request: float = 0.0
    lost_answer: float = 0.0
    rival: float = 0.0
    """How often another sender has had other bytes accepted under an identity before."""
    resolved: float = 0.0
    """How often an operator says, on a later offer, that those count."""


class SimTransport:
    """Real acceptance at the end of a bad road."""

    def __init__(self, process: Process, collectors: list[Collector], road: Road) -> None:
        self._process = process
        self._collectors = collectors
        self._road = road
        self._seen: set[BatchIdentity] = set()

    async def post(self, route: int, identity: BatchIdentity, frame: bytes) -> Answer:
        rng = self._process.rng
        await asyncio.sleep(rng.uniform(0, 0.05))
        first = identity not in self._seen
        self._seen.add(identity)
        if first and rng.random() < self._road.rival:
            await self._rival(identity)
        if rng.random() < self._road.lost_request:
            return NoAnswer("the request was lost")
        submission = submission_of(frame, decode(frame))
        try:
            answer = await self._collectors[route].accept(submission)
        except (Unavailable, Ambiguous) as error:
            return Busy(str(error), rng.choice((0, 200)))
        if rng.random() < self._road.lost_answer:
            return NoAnswer("the answer was lost")
        if isinstance(answer, Accepted):
            return Taken(answer.duplicate)
        resolved = not first and rng.random() < self._road.resolved
        if resolved:
            self._process.note("resolves", f"{identity.seq_start}-{identity.seq_end}", identity)
        return Conflict("other bytes were accepted", resolved)

    async def _rival(self, identity: BatchIdentity) -> None:
        """A clone of this machine was faster."""
        logs = [Sequenced(seq, Log("rival", 0)) for seq in sorted({identity.seq_start, identity.seq_end})]
        frame = encode(pack_sequenced(identity.agent_id, identity.boot_id, logs))
        try:
            await self._collectors[0].accept(submission_of(frame, decode(frame)))
        except (Unavailable, Ambiguous):
            return


POSITION = "position"
PATIENCE_MS = 10_000
ROUNDS_AT_THE_END = 100


@dataclass(frozen=True, kw_only=True)
class IngestAgents(Scenario):
    """What agents queue is accepted, parked or still queued, each record under one number, without gaps."""

    name: ClassVar[str] = "ingest-agents"
    shipper: ClassVar[type[Shipper]] = Shipper
    database: ClassVar[type[SimDatabase]] = SimDatabase

    agents: int = 1
    rounds: int = 2
    collectors: int = 1
    window: int = 1
    max_bytes: int = 1 << 20
    road: Road = Road()  # frozen
    disk: DiskTrouble = DiskTrouble()  # frozen

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            agents=rng.randint(1, 2),
            rounds=rng.randint(2, 12),
            collectors=rng.randint(1, 3),
            window=rng.randint(1, 4),
            max_bytes=rng.choice((32_000, 1 << 20)),
            road=Road(
                lost_request=rng.choice((0.0, 0.3)),
                lost_answer=rng.choice((0.0, 0.4)),
                rival=rng.choice((0.0, 0.2)),
                resolved=rng.choice((0.0, 0.5)),
            ),
            disk=DiskTrouble(
                slowest_ms=rng.choice((1.0, 20.0)),
                full=rng.choice((0.0, 0.0, 0.2)),
                power=rng.choice((0.0, 0.5, 1.0)),
            ),
            outage=Outage.drawn(rng),
            faults=Faults.drawn(rng, lost_response=0.1),
            troubles=Troubles(
                crashes=rng.randint(0, 4), pauses=rng.choice((0, 1)), jumps=rng.choice((0, 2)), skew_ms=5_000
            ),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.agents):
            world.start(f"agent{number + 1}", partial(self.live, SimDisk()))

    async def live(self, disk: SimDisk, process: Process) -> None:
        if process.incarnation > 1 and process.rng.random() < self.disk.power:
            disk.fail_power()
        queue = await self.opened(disk, process)
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
        for (frame,) in disk.database.execute("SELECT frame FROM batches ORDER BY seq_start"):
            process.note("keeps", process.family, frame)
        process.note("is done", process.family)

    async def opened(self, disk: SimDisk, process: Process) -> Queue:
        database = self.database(disk, QUEUE, process, self.disk, self.max_bytes)
        queue = Queue(database, process.family, process.ambient)
        while True:
            try:
                await queue.load()
                return queue
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
        disks: dict[str, list[bytes]] = {}
        delivered: set[str] = set()
        resolved: dict[str, set[tuple[int, int]]] = {}
        for event in world.trace.events:
            family = event.who.partition(".")[0]
            if event.what == "is done":
                disks.setdefault(family, [])
            elif event.what == "has nothing left":
                delivered.add(family)
            elif event.what == "keeps" and isinstance(event.detail, bytes):
                disks.setdefault(family, []).append(event.detail)
            elif event.what == "resolves":
                start, _, stop = str(event.subject).partition("-")
                resolved.setdefault(family, set()).add((int(start), int(stop)))
        objects = {key: found.body for key, found in world.truth.shelf.objects.items()}
        yield from (Violation(DELIVERED, agent) for agent in sorted(set(disks) - delivered))
        yield from nothing_lost(objects, disks, world.operations, resolved)


@dataclass(frozen=True, kw_only=True)
class IngestSpool(Scenario):
    """A spool takes every batch once, over restarts too, and what it took is on its disk or in the store."""

    name: ClassVar[str] = "ingest-spool"
    spool: ClassVar[type[Spool]] = Spool
    database: ClassVar[type[SimDatabase]] = SimDatabase

    senders: int = 2
    batches: int = 1
    sends: int = 1
    variants: int = 1
    rounds: int = 1
    rivals: int = 0
    """Batches that another collector accepts in the store, against the rules."""
    disk: DiskTrouble = DiskTrouble()  # frozen

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            outage=Outage.drawn(rng),
            senders=rng.randint(1, 3),
            batches=rng.randint(1, 4),
            sends=rng.randint(2, 8),
            variants=rng.choice((1, 2)),
            rounds=rng.randint(2, 6),
            rivals=rng.choice((0, 0, 2)),
            disk=DiskTrouble(
                slowest_ms=rng.choice((1.0, 20.0, 200.0)),
                stalls=rng.choice((0.0, 0.1)),
                power=rng.choice((0.0, 0.5)),
            ),
            faults=Faults.drawn(rng, lost_response=0.15),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        world.start("collector", partial(self.serve, SimDisk()))
        if self.rivals:
            world.start("rival", self.rival)

    async def serve(self, disk: SimDisk, process: Process) -> None:
        spool = await self.opened(disk, process)
        collector = SpoolCollector(
            spool,
            process.store,
            process.ambient,
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions(process.name),
            on_accepted=kit.effect(process),
        )
        senders = [self.send(process, collector) for _ in range(self.senders)]
        await asyncio.gather(self.land(process, collector), *senders)
        await self.land(process, collector)
        kept = "SELECT frame FROM waiting UNION ALL SELECT frame FROM refused"
        for (frame,) in disk.database.execute(kept):
            process.note("keeps", "", frame)

    async def opened(self, disk: SimDisk, process: Process) -> Spool:
        if process.incarnation > 1 and process.rng.random() < self.disk.power:
            disk.fail_power()
        spool = self.spool(self.database(disk, SPOOL, process, self.disk, 1 << 30), process.ambient)
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
        kept = [
            event.detail for event in world.trace.events if event.what == "keeps" and isinstance(event.detail, bytes)
        ]
        finished = any(event.what == "finishes" and event.who.startswith("collector") for event in world.trace.events)
        yield from spooled_once(replayed(world.landings), world.operations, kept if finished else None)


def _counted(landed: Landed) -> tuple[int, int]:
    return landed.batches, landed.conflicts


HOUR_NS = 3_600 * 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class IngestSpoolLive(IngestSpool):
    """Live state has all that a spool acknowledged, whenever the collector was killed and whatever lands meanwhile."""

    name: ClassVar[str] = "ingest-spool-live"
    collector: ClassVar[type[SpoolCollector]] = SpoolCollector
    rebuild: ClassVar[type[Rebuild]] = Rebuild

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        drawn = super().drawn(rng)
        troubles = replace(drawn.troubles, crashes=rng.randint(1, 3), restarts=True)
        batches, sends = rng.choice((4, 40, 400)), rng.randint(8, 24)
        return replace(drawn, variants=1, rivals=0, batches=batches, sends=sends, troubles=troubles)

    async def serve(self, disk: SimDisk, process: Process) -> None:
        spool = await self.opened(disk, process)
        live = Live(process.ambient.clock, max_bytes=1 << 24, window_ns=HOUR_NS)

        def show(manifest: AcceptedManifest, submitted: Submission) -> None:
            live.add(manifest, submitted.batch)

        collector = self.collector(
            spool,
            process.store,
            process.ambient,
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions(process.name),
            on_accepted=show,
            on_duplicate=show,
        )
        rebuild = self.rebuild(Follower(process.store, live, process.ambient.clock, Limits()), spool)

        def known(_: object) -> list[str]:
            return sorted(layout.accepted_key(batch.identity) for batch in live.batches())

        senders = [self.send(process, collector) for _ in range(self.senders)]
        rebuilding = process.perform("rebuild", rebuild.run(), key=layout.ACCEPTED, show=known)
        await asyncio.gather(self.land(process, collector), rebuilding, *senders)
        await process.perform("rebuild", asyncio.sleep(0), key=layout.ACCEPTED, show=known)

    def submission(self, process: Process) -> Submission:
        number = process.rng.randrange(self.batches)
        body = encode(pack("agent", "boot", [Gauge("load", number, 1)], seq_start=number))
        return submission_of(body, decode(body, Limits()))

    def check(self, world: World) -> Iterator[Violation]:
        yield from shown(world.operations)
