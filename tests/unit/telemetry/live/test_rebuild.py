"""Live state at the start of a collector with a spool. That it lacks nothing, whenever batches land meanwhile, is shown
by the scenario ``ingest-spool-live``."""

import sqlite3
from pathlib import Path

from holdfast.objects.memory import MemoryStore
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry import Gauge
from holdfast.telemetry.accept.accept import Submission, submission_of
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import CollectorOptions
from holdfast.telemetry.accept.landing import SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import FILE, FORMAT, Spool
from holdfast.telemetry.database import Database
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.live.follow import Follower, Rebuild
from holdfast.telemetry.live.state import Live
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

WINDOW_NS = 3_600 * 1_000_000_000


def submission(number: int) -> Submission:
    body = encode(pack("web-1", "boot", [Gauge("load", number, 1)], seq_start=number))
    return submission_of(body, decode(body, Limits()))


class Desk(AcceptDesk):
    """One disk and one store, and a collector on them that may start again."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.max_bytes = 1 << 24
        self.bucket = MemoryStore(self.shelf, clock=self.watch)

    async def start(self) -> tuple[SpoolCollector, Rebuild]:
        spool = Spool(Database(self.folder / FILE, FORMAT), self.ambient())
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
            on_accepted=show,
            on_duplicate=show,
        )
        return collector, Rebuild(Follower(self.bucket, live, self.watch, Limits()), spool)


async def test_a_spooled_batch_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    before, _ = await desk.start()
    for number in (1, 2):
        await before.accept(submission(number))
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE waiting SET frame = x'00' WHERE id = 1")
    database.close()
    _, rebuild = await desk.start()
    assert (await rebuild.run(), rebuild.follower.problems) == (1, 1)
    desk.watch.ns += 2 * WINDOW_NS
    _, rebuild = await desk.start()
    assert (await rebuild.run(), rebuild.follower.problems) == (0, 0)  # older than the window


async def test_of_more_than_memory_holds_the_newest_are_read_and_the_others_are_missing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.max_bytes = 30_000
    before, _ = await desk.start()
    for number in range(20):
        await before.accept(submission(number))
    _, rebuild = await desk.start()
    live = rebuild.follower.live
    await rebuild.run()
    assert sorted(batch.identity.seq_start for batch in live.batches()) == [17, 18, 19]
    assert live.missing
