"""Agents and spools: what is on a disk must survive crashes and power failures, and reach the store once.

The simulated disk forgets what was not synced to it, and the way to the collectors loses answers.
"""

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from holdfast.base.errors import Ambiguous, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Page, Store, Written
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.ingest import DELIVERED, nothing_lost, replayed, shown, spooled_once
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Violation
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, SimClock, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, Submission, inspect_frame, submission_of
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.landing import Landed, SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import Notes, Spool
from holdfast.telemetry.agent.queue import Queue, QueueOptions, open_queue
from holdfast.telemetry.agent.sender import Answer, Backoff, Busy, Conflict, NoAnswer, Taken
from holdfast.telemetry.agent.shipper import Shipper, ShipperOptions
from holdfast.telemetry.frame import Limits, decode, encode, pack, pack_sequenced
from holdfast.telemetry.frame.batch import Sequenced
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.rebuild import Rebuild
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge, Log, Record


@dataclass(slots=True)
class _File:
    data: bytearray
    durable: bytes | None
    """What is there after the power fails; None for no file."""


@dataclass(slots=True)
class SimDisk:
    """Of one machine, over all lives of its agent."""

    files: dict[str, _File] = field(default_factory=dict)
    removed: dict[str, bytes] = field(default_factory=dict)
    """Removals that the power may undo."""

    def fail_power(self, rng: random.Random) -> None:
        for name, body in self.removed.items():
            if rng.random() < 0.5 and name not in self.files:
                self.files[name] = _File(bytearray(body), body)
        self.removed.clear()
        for name, file in list(self.files.items()):
            if bytes(file.data) == file.durable or rng.random() < 0.2:
                continue
            if file.durable is None:
                del self.files[name]
                continue
            kept = len(file.durable)
            torn = file.data[: rng.randint(kept, len(file.data))] if len(file.data) > kept else file.durable
            file.data = bytearray(torn if bytes(torn[:kept]) == file.durable else file.durable)

    def bodies(self) -> dict[str, bytes]:
        return {name: bytes(file.data) for name, file in self.files.items()}


class SimFolder:
    """One life's hold on the disk. Every operation has moments in between at which the life may end."""

    def __init__(self, disk: SimDisk, process: Process, *, slowest_ms: float, full: float) -> None:
        self._files = disk.files
        self._removed = disk.removed
        self._process = process
        self._slowest_ms = slowest_ms
        self._full = full

    async def names(self) -> list[str]:
        await self._turn()
        return sorted(self._files)

    async def size(self, name: str) -> int | None:
        return len(self._files[name].data) if name in self._files else None

    async def read(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        await self._turn()
        if name not in self._files:
            return None
        data = self._files[name].data
        return bytes(data[start:] if length is None else data[start : start + length])

    async def append(self, name: str, at: int, data: bytes) -> None:
        await self._turn()
        file = self._files.setdefault(name, _File(bytearray(), None))
        del file.data[at:]
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            file.data += piece
            await self._turn()
        if self._process.rng.random() < self._full:
            del file.data[at:]
            raise Unavailable(f"{name}: the disk is full")
        file.durable = bytes(file.data)
        await self._turn()

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        await self._turn()
        if self._process.rng.random() < self._full:
            raise Unavailable(f"{name}: the disk is full")
        before = self._files[name].durable if name in self._files else None
        self._files[name] = _File(bytearray(data), before)
        await self._turn()
        if durable:
            self._files[name].durable = data
            await self._turn()

    async def fsync(self, name: str) -> None:
        await self._turn()
        self._files[name].durable = bytes(self._files[name].data)

    async def remove(self, name: str) -> None:
        await self._turn()
        file = self._files.pop(name, None)
        if file is not None and file.durable is not None:
            self._removed[name] = file.durable
        await self._turn()

    async def _turn(self) -> None:
        await asyncio.sleep(self._process.rng.uniform(0, self._slowest_ms) / 1000)


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

    agents: int = 1
    rounds: int = 2
    collectors: int = 1
    window: int = 1
    queue: QueueOptions = QueueOptions(segment_bytes=600, tidy_bytes=300)  # noqa: RUF009  # frozen
    road: Road = Road()  # frozen
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


class SimNotes(Notes):
    """Notes of one machine over all lives of its collector. A transaction is atomic; a life may end before or after."""

    def __init__(self, database: sqlite3.Connection, process: Process, slowest_ms: float) -> None:
        super().__init__(Path(":memory:"), process.ambient.clock)
        self._kept = database
        self._process = process
        self._slowest_ms = slowest_ms

    async def find(self, identity: BatchIdentity) -> AcceptedManifest | None:
        await self._turn()
        found = await super().find(identity)
        await self._turn()
        return found

    async def add(self, manifests: Collection[AcceptedManifest]) -> None:
        await self._turn()
        await super().add(manifests)
        await self._turn()

    def _connect(self) -> sqlite3.Connection:
        return self._kept

    async def _turn(self) -> None:
        await asyncio.sleep(self._process.rng.uniform(0, self._slowest_ms) / 1000)


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
    """Batches that another collector accepts in the store, against the rules."""
    disk_ms: float = 1.0
    stalls: float = 0.0
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
            faults=Faults.drawn(rng, lost_response=0.15),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return super().stack(self.outage.over(backend, ambient), ambient)

    def begin(self, world: World) -> None:
        disk = MemoryStore(clock=SimClock(world.loop.time))
        world.start("collector", partial(self.serve, disk, sqlite3.connect(":memory:")))
        if self.rivals:
            world.start("rival", self.rival)

    async def serve(self, disk: MemoryStore, notes: sqlite3.Connection, process: Process) -> None:
        spool = await self.opened(disk, notes, process)
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

    async def opened(self, disk: MemoryStore, notes: sqlite3.Connection, process: Process) -> Spool:
        spool = self.spool(Disk(disk, process, self.disk_ms, self.stalls), SimNotes(notes, process, self.disk_ms))
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


HOUR_NS = 3_600 * 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class IngestSpoolLive(IngestSpool):
    """Live state has all that a spool acknowledged, whenever the collector was killed and whatever lands meanwhile."""

    name: ClassVar[str] = "ingest-spool-live"
    collector: ClassVar[type[SpoolCollector]] = SpoolCollector
    rebuild: ClassVar[type[Rebuild]] = Rebuild
    live: ClassVar[type[Live]] = Live
    window_ns: int = HOUR_NS
    """What is older is shown until it has landed."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        drawn = super().drawn(rng)
        troubles = replace(drawn.troubles, crashes=rng.randint(1, 3), restarts=True)
        batches, sends = rng.choice((4, 40, 400)), rng.randint(8, 24)
        window_ns = rng.choice((HOUR_NS, HOUR_NS, 300 * 1_000_000))
        return replace(
            drawn, variants=1, rivals=0, batches=batches, sends=sends, troubles=troubles, window_ns=window_ns
        )

    async def serve(self, disk: MemoryStore, notes: sqlite3.Connection, process: Process) -> None:
        spool = await self.opened(disk, notes, process)
        live = self.live(process.ambient.clock, max_bytes=1 << 24, window_ns=self.window_ns)

        def show(manifest: AcceptedManifest, submitted: Submission) -> None:
            live.add(manifest, submitted.batch)

        collector = self.collector(
            spool,
            process.store,
            process.ambient,
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions(process.name),
            inspect_frame,
            on_accepted=show,
            on_duplicate=show,
            landings=live,
        )
        rebuild = self.rebuild(Follower(process.store, live, process.ambient.clock, Limits()), collector)

        def known(_: object) -> list[str]:
            shown = (layout.accepted_key(kept.identity) for kept in live.kept())
            old = (each.key for each in process.world.landings if self.window_ns < HOUR_NS)
            return sorted({*chain(shown, old)})

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
