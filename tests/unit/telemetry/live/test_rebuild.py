"""Live state at the start of a collector with a spool. That it lacks nothing, whenever batches land meanwhile, is shown
by the scenario ``ingest-spool-live``."""

import asyncio
from pathlib import Path

from holdfast.objects.memory import MemoryStore
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry import Gauge
from holdfast.telemetry.accept.accept import Submission, inspect_frame, submission_of
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import CollectorOptions
from holdfast.telemetry.accept.landing import Landed, SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import FILE, PENDING, Notes, Spool, pending_key
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.rebuild import Rebuild
from holdfast.telemetry.live.state import Live
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

WINDOW_NS = 3_600 * 1_000_000_000


def submission(number: int) -> Submission:
    body = encode(pack("web-1", "boot", [Gauge("load", number, 1)], seq_start=number))
    return submission_of(body, decode(body, Limits()))


class Desk(AcceptDesk):
    """One disk and one store, and a collector on them that may start again."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes
        self.noted = Notes(notes / FILE, self.watch)
        self.max_bytes = 1 << 24
        self.disk = MemoryStore(clock=self.watch)
        self.bucket = MemoryStore(self.shelf, clock=self.watch)

    async def start(self) -> tuple[SpoolCollector, Rebuild]:
        await self.noted.close()
        self.noted = Notes(self.notes / FILE, self.watch)
        spool = Spool(self.disk, self.noted)
        await spool.load()
        live = Live(self.watch, max_bytes=self.max_bytes, window_ns=WINDOW_NS)

        def show(manifest: AcceptedManifest, submitted: Submission) -> None:
            live.add(manifest, submitted.batch)

        collector = SpoolCollector(
            spool,
            self.bucket,
            self.ambient(),
            kit.authority(Acceptance.LOCAL_SPOOL),
            CollectorOptions("spooler"),
            inspect_frame,
            on_accepted=show,
            on_duplicate=show,
            landings=live,
        )
        return collector, Rebuild(Follower(self.bucket, live, self.watch, Limits()), collector)


async def test_a_spooled_batch_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    before, _ = await desk.start()
    for number in (1, 2):
        await before.accept(submission(number))
    [first, *_] = [key async for key in desk.disk.keys(PENDING) if key.endswith(".lmbatch")]
    await desk.disk.put(first, b"spoiled")
    _, rebuild = await desk.start()
    assert (await rebuild.run(), rebuild.follower.problems) == (1, 1)
    desk.watch.ns += 2 * WINDOW_NS
    _, rebuild = await desk.start()
    assert (await rebuild.run(), rebuild.follower.problems) == (1, 1)  # of another day, and they still wait


async def test_of_more_than_memory_holds_the_newest_are_read_and_the_lack_is_known_until_all_landed(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    desk.max_bytes = 30_000
    before, _ = await desk.start()
    for number in range(20):
        await before.accept(submission(number))
    desk.watch.ns += 2 * WINDOW_NS
    collector, rebuild = await desk.start()
    live = rebuild.follower.live
    await rebuild.run()
    assert sorted(kept.identity.seq_start for kept in live.kept()) == [17, 18, 19]
    assert (live.lacks_waiting, live.missing) == (True, False)
    desk.watch.ns += 1
    async with collector, asyncio.timeout(30):
        while live.lacks_waiting:
            await asyncio.sleep(0.01)
    assert live.kept() == []


async def test_batches_that_wait_are_counted_over_restarts_and_failed_writes(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    collector, _ = await desk.start()
    for number in (1, 2, 2):
        await collector.accept(submission(number))
    assert (len(collector.spool), collector.problem) == (2, None)
    again, _ = await desk.start()
    assert len(again.spool) == 2
    await desk.disk.put(pending_key(submission(3).identity), submission(3).body)  # its writer got an error
    assert len([one async for one in again.spool.pending()]) == len(again.spool) == 3
    assert await again.land() == Landed(batches=3)
    assert len(again.spool) == 0
