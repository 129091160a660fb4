"""Live state at the start of a collector with a spool: it lacks nothing, whenever batches land meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Page, Written
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry import Gauge
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, Answer, Submission, inspect_frame, submission_of
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


class Hooked(Layer):
    """Something happens after the first list of each of these, or after they were first found; some writes fail."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.after: dict[str, Callable[[], Awaitable[object]]] = {}
        self.found: dict[str, Callable[[], Awaitable[object]]] = {}
        self.fails: str | None = None

    async def find(self, key: str) -> Object | None:
        found = await self.inner.find(key)
        if found is not None and key in self.found:
            await self.found.pop(key)()
        return found

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        pages = [page async for page in self.inner.list(prefix, after=after, delimiter=delimiter)]
        for hook in [self.after.pop(known) for known in list(self.after) if prefix.startswith(known)]:
            await hook()
        for page in pages:
            yield page

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if self.fails is not None and key.startswith(self.fails):
            raise Unavailable(f"{key}: 503")
        return await self.inner.put(key, body, mode)


class Desk(AcceptDesk):
    """One disk and one store, and a collector on them that may start again."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes
        self.noted = Notes(notes / FILE, self.watch)
        self.max_bytes = 1 << 24
        self.disk = Hooked(MemoryStore(clock=self.watch))
        self.bucket = Hooked(MemoryStore(self.shelf, clock=self.watch))

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


@pytest.mark.parametrize("when", ["the spool was listed", "the store was listed"])
async def test_what_lands_while_live_state_is_rebuilt_is_in_it(tmp_path: Path, when: str) -> None:
    desk = Desk(tmp_path)
    before, _ = await desk.start()
    for number in range(3):
        await before.accept(submission(number))
    after, rebuild = await desk.start()
    if when == "the spool was listed":
        desk.disk.after[PENDING] = after.land
    else:
        desk.bucket.after[layout.ACCEPTED_BY_TIME] = after.land
    assert await rebuild.run() == 3
    assert sorted(kept.identity for kept in rebuild.follower.live.kept()) == [submission(n).identity for n in range(3)]
    assert await after.land() == Landed()  # it had landed meanwhile


async def test_a_batch_stays_in_the_spool_until_the_store_lists_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    killed, _ = await desk.start()
    await killed.accept(submission(1))
    desk.bucket.fails = layout.ACCEPTED_BY_TIME
    with pytest.raises(Unavailable):
        await killed.land()
    assert desk.families() == {"raw-blobs": 1}
    desk.bucket.fails = None
    collector, rebuild = await desk.start()
    assert len(collector.spool) == 1
    assert await rebuild.run() == 1
    assert await collector.land() == Landed(batches=1)
    assert len(collector.spool) == 0
    assert desk.families() == {"raw-blobs": 1, "accepted": 1, "accepted-by-time": 1}
    assert await (await desk.start())[1].run() == 1


async def test_what_is_acknowledged_as_a_duplicate_is_shown_too(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    before, _ = await desk.start()
    await before.accept(submission(1))
    after, rebuild = await desk.start()
    answer = await after.accept(submission(1))
    assert isinstance(answer, Accepted)
    assert answer.duplicate
    assert len(rebuild.follower.live) == 1


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


async def test_what_waits_for_longer_than_the_window_is_shown_until_it_has_landed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    collector, rebuild = await desk.start()
    for number in range(3):
        await collector.accept(submission(number))
    desk.watch.ns += 2 * WINDOW_NS
    assert len(rebuild.follower.live.kept()) == 3
    again, rebuild = await desk.start()
    live = rebuild.follower.live
    assert await rebuild.run() == len(live.kept()) == 3
    desk.watch.ns += 2 * WINDOW_NS
    desk.bucket.fails = layout.BLOBS
    with pytest.raises(Unavailable):
        await again.land()
    assert len(live.kept()) == 3
    desk.bucket.fails = None
    assert await again.land() == Landed(batches=3)
    assert (live.kept(), live.size) == ([], 0)
    assert await (await desk.start())[1].run() == 0


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


async def test_one_that_lands_after_it_was_read_from_the_disk_stays_no_longer_than_others(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    before, _ = await desk.start()
    await before.accept(submission(1))
    collector, rebuild = await desk.start()
    desk.disk.found[pending_key(submission(1).identity)] = collector.land
    assert await rebuild.run() == len(rebuild.follower.live.kept()) == 1
    desk.watch.ns += 2 * WINDOW_NS
    assert rebuild.follower.live.kept() == []


async def test_one_that_lands_while_it_is_sent_again_stays_no_longer_than_others(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    before, _ = await desk.start()
    await before.accept(submission(1))
    collector, rebuild = await desk.start()
    key = pending_key(submission(1).identity)
    found_by_sender = asyncio.Event()
    sending: list[asyncio.Task[Answer]] = []

    async def send() -> None:
        desk.disk.found[key] = let_it_land
        sending.append(asyncio.create_task(collector.accept(submission(1))))
        await found_by_sender.wait()

    async def let_it_land() -> None:
        found_by_sender.set()
        await landing

    desk.disk.found[key] = send  # when it is read to be landed
    async with asyncio.timeout(30):
        landing = asyncio.create_task(collector.land())
        assert await landing == Landed(batches=1)
        assert isinstance(await sending[0], Accepted)
    assert len(rebuild.follower.live.kept()) == 1
    desk.watch.ns += 2 * WINDOW_NS
    assert rebuild.follower.live.kept() == []


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
