"""Acceptance on a real disk, landing in a store, and everything that a restart must not forget."""

import asyncio
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from holdfast.base import codec
from holdfast.base.aio import restarting
from holdfast.base.errors import Denied, Incompatible, Refused, Unavailable
from holdfast.objects.client import Usage
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, IdentityConflict, Submission
from holdfast.telemetry.accept.collector import CollectorOptions, find_accepted
from holdfast.telemetry.accept.landing import GROUP, Landed
from holdfast.telemetry.accept.spool import FILE, Spool, holds_spool, open_spool
from holdfast.telemetry.database import SPARE_BYTES, Database
from tests.unit.telemetry.accept.spool_desk import SpoolDesk

DAY_NS = 86_400 * 10**9


async def waiting(spool: Spool) -> list[int]:
    """The first numbers of the batches that wait, in the order in which they are tried."""
    return [each.manifest.identity.seq_start for each in await spool.to_land(1_000)]


def change(folder: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(folder / FILE) as database:
        database.execute(statement, values)
    database.close()


async def test_a_batch_is_accepted_without_the_object_store_and_lands_as_it_was_accepted(tmp_path: Path) -> None:
    desk, usage = SpoolDesk(), Usage()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool, usage=usage)
        answer = await collector.accept(submission(1))
        assert isinstance(answer, Accepted)
        assert not answer.duplicate
        assert usage.by_verb == {}
        assert await waiting(spool) == [10]
    desk.watch.advance(seconds=900)
    async with open_spool(tmp_path, desk.ambient()) as spool:
        assert len(spool) == 1
        collector = desk.spooler(spool, usage=usage)
        collector.options = CollectorOptions("another")
        assert await collector.land() == Landed(batches=1)
        assert usage.by_verb == {"put": 3}
        assert [len(spool), await waiting(spool)] == [0, []]
        again = await collector.accept(submission(1))
        assert isinstance(again, Accepted)
        assert again.duplicate
    manifest = await find_accepted(desk.store(), submission(1).identity)
    assert manifest is not None
    assert (manifest.collector_id, manifest.accepted_at_unix_ns) == ("spooler", answer.manifest.accepted_at_unix_ns)
    assert (manifest.records, manifest.limits) == (submission(1).records, answer.manifest.limits)
    assert again.manifest.frame_sha256 == manifest.frame_sha256
    assert len(desk.effects) == 1


async def test_batches_that_arrive_together_share_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = SpoolDesk()
    groups: list[int] = []
    commit = Spool._commit_group

    async def counted(spool: Spool, group: list[object], size: int) -> None:
        groups.append(len(group))
        await commit(spool, group, size)  # type: ignore[arg-type]  # of a private class

    monkeypatch.setattr(Spool, "_commit_group", counted)
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        accepts = [asyncio.create_task(collector.accept(submission(number % 20))) for number in range(30)]
        await asyncio.sleep(0)
        accepts[3].cancel()
        answers = await asyncio.gather(*accepts, return_exceptions=True)
        assert len(groups) <= 2
        assert isinstance(answers[3], asyncio.CancelledError)  # its batch may be accepted, and no other suffers
        duplicates = [answer.duplicate for answer in answers if isinstance(answer, Accepted)]
        assert duplicates == [False] * 19 + [True] * 10
        assert len(spool) == 20


async def test_other_bytes_are_refused_and_their_conflict_is_recorded_when_the_first_have_landed(
    tmp_path: Path,
) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        await collector.accept(submission(1))
        before = await collector.accept(submission(1, 1))
        assert isinstance(before, IdentityConflict)
        assert before.accepted.frame_sha256 == submission(1).frame_sha256
        assert await spool.refused() == []
        assert await collector.land() == Landed(batches=1, conflicts=1)
        after = await collector.accept(submission(1, 2))
        assert isinstance(after, IdentityConflict)
        assert await collector.land() == Landed(conflicts=1)
        assert await collector.land() == Landed()
    assert desk.families() == {
        "raw-blobs": 3,
        "accepted": 1,
        "accepted-by-time": 1,
        "quarantine": 2,
        "quarantine-by-blob": 2,
    }


async def test_what_the_store_has_under_an_identity_counts_from_its_landing_on(tmp_path: Path) -> None:
    desk = SpoolDesk()
    await desk.collector().accept(submission(1, 1))
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        await collector.accept(submission(1))
        assert await collector.land() == Landed(conflicts=1)
        answer = await collector.accept(submission(1))
        assert isinstance(answer, IdentityConflict)
        assert answer.accepted.frame_sha256 == submission(1, 1).frame_sha256


async def test_a_batch_that_cannot_land_is_kept_and_holds_no_other_up(tmp_path: Path) -> None:
    """Because the store does not respond, because its bytes are damaged, or because its manifest cannot be read."""
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool, "ok", "busy", "busy", "busy")
        await collector.accept(submission(1))
        with pytest.raises(Unavailable):
            await collector.land()
        assert await waiting(spool) == [10]
        for number in (2, 3):
            await collector.accept(submission(number))
    change(tmp_path, "UPDATE waiting SET frame = ? WHERE id = 1", b"damaged")
    unreadable = layout.accepted_key(submission(2).identity)
    await desk.store().put(unreadable, b"{}", OVERWRITE)
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        assert await collector.land() == Landed(batches=1, stuck=2)
        assert await waiting(spool) == [10, 20]
        await collector.accept(submission(4))
        assert await waiting(spool) == [40, 10, 20]
        await desk.store().delete(unreadable)
        assert await collector.land() == Landed(batches=2, stuck=1)


class Unrecorded(Layer):
    """A store that takes no conflicts."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.refuses = True

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if self.refuses and key.startswith(layout.CONFLICTS):
            raise Unavailable(f"{key}: 503")
        return await super().put(key, body, mode)


async def test_a_conflict_that_cannot_be_recorded_is_kept_and_holds_no_batch_up(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        await desk.collector().accept(submission(0, 1))
        collector = desk.spooler(spool)
        collector.lander.store = store = Unrecorded(collector.lander.store)
        for number in range(2 * GROUP):
            await collector.accept(submission(number))
        await collector.accept(submission(1, 1))
        assert await collector.land() == Landed(batches=2 * GROUP - 1, stuck=2)
        await collector._round()
        assert collector.problem == "2 batches cannot land: the log says why"
        store.refuses = False
        assert await collector.land() == Landed(conflicts=2)
        await collector._round()
        assert [len(spool), collector.problem] == [0, None]


class Forbidden(Layer):
    """A store whose permissions are taken away for a while."""

    denied = True

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if self.denied:
            raise Denied(f"{key}: 403")
        return await self.inner.put(key, body, mode)


async def test_it_lands_in_the_background_after_any_error_and_at_the_end(tmp_path: Path) -> None:
    desk = SpoolDesk()
    store = Forbidden(desk.store())
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool, interval_ms=1)
        collector.lander.store = store
        async with collector:
            await collector.accept(submission(1))
            while collector.problem is None:
                await asyncio.sleep(0.001)
            assert desk.families() == {}
            store.denied = False
            while len(spool):
                await asyncio.sleep(0.001)
            await collector.accept(submission(2))
    assert desk.families() == Counter({"raw-blobs": 2, "accepted": 2, "accepted-by-time": 2})


async def test_batches_that_landed_long_ago_are_forgotten_and_land_once_more(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        for number in (1, 2):
            await collector.accept(submission(number))
            await collector.land()
            desk.watch.ns += DAY_NS
        assert await spool.forget(desk.watch.ns - DAY_NS) == 1
        late = await collector.accept(submission(1))
        assert isinstance(late, Accepted)
        assert not late.duplicate
        assert await spool.forget(desk.watch.ns + DAY_NS) == 1  # not the one that waits
        assert await collector.land() == Landed(batches=1)
    families = desk.families()
    assert (families["raw-blobs"], families["accepted"]) == (2, 2)


async def test_on_a_full_disk_what_waits_lands_and_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = SpoolDesk()
    large = [Submission.of(submission(number).identity, bytes(100_000)) for number in range(12)]
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        for each in large[:10]:
            await collector.accept(each)
        monkeypatch.setattr(Database, "free_bytes", lambda _: SPARE_BYTES - 1)
        with pytest.raises(Unavailable, match="the disk is full"):
            await collector.accept(large[10])
        with pytest.raises(Unavailable, match="the disk is full"):
            await spool.try_to_write()
        assert await collector.land() == Landed(batches=10)
        await spool.try_to_write()
        for each in large[10:]:
            answer = await collector.accept(each)
            assert isinstance(answer, Accepted)
            assert not answer.duplicate
        assert len(spool) == 2


async def test_rows_of_landed_batches_go_when_they_alone_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        await asyncio.gather(*(collector.accept(submission(number)) for number in range(2_000)))
        await collector.land()
        desk.watch.advance(seconds=1)
        monkeypatch.setattr(Database, "free_bytes", lambda _: SPARE_BYTES - 1)
        for _ in range(3):
            await collector._forget()
        assert not await spool.is_full()
        await collector.accept(submission(1))


async def test_a_spool_belongs_to_one_process_and_has_one_id(tmp_path: Path) -> None:
    desk, folder = SpoolDesk(), tmp_path / "spool"
    assert not holds_spool(folder)
    async with open_spool(folder, desk.ambient()) as spool:
        first = spool.spool_id
        with pytest.raises(Refused, match="another collector uses this spool") as caught:
            async with open_spool(folder, desk.ambient()):
                pass
        assert "own folder" not in (caught.value.remedy or "")  # a store has one spool
    assert holds_spool(folder)
    async with open_spool(folder, desk.ambient()) as spool:
        assert spool.spool_id == first


async def test_work_that_fails_in_an_unforeseen_way_begins_again() -> None:
    tries: list[int] = []

    async def run() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ZeroDivisionError

    await restarting("counting", run, pause_s=0)
    assert tries == [0, 1, 2]


async def test_a_spool_of_an_earlier_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    about = tmp_path / "objects" / "spool.json"
    about.parent.mkdir()
    body = codec.encode({"spool_id": "disk-1", "format": "holdfast.spool", "version": 3})
    about.write_bytes(body)
    with pytest.raises(Incompatible, match="version before 4") as caught:
        async with open_spool(tmp_path, SpoolDesk().ambient()):
            raise AssertionError
    assert "land its batches" in (caught.value.remedy or "")
    assert not (tmp_path / FILE).exists()
    assert about.read_bytes() == body


async def test_a_batch_never_gets_the_id_of_one_that_was_forgotten(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        await collector.accept(submission(1))
        [listed] = await spool.newest(10, since_ns=0)
        await collector.land()
        await spool.forget(desk.watch.wall_ns() + DAY_NS)
        await collector.accept(submission(2))
        assert await waiting(spool) == [20]
        assert await spool.frame(listed) is None
