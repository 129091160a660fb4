"""Acceptance on a real disk, landing in a store, and everything that a restart must not forget."""

import asyncio
import os
import stat
from collections import Counter
from pathlib import Path

import pytest

from holdfast.base import codec
from holdfast.base.aio import lasting
from holdfast.base.errors import Corrupt, Denied, Incompatible, NotFound, Refused, Unavailable
from holdfast.objects.client import Usage
from holdfast.objects.layer import Layer
from holdfast.objects.local import LocalStore
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Written
from holdfast.sim import ingest_kit as kit
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, IdentityConflict
from holdfast.telemetry.accept.collector import CollectorOptions
from holdfast.telemetry.accept.landing import Landed, SpoolCollector
from holdfast.telemetry.accept.spool import ABOUT, FILE, FOLDER, FORMAT, RESERVE, RESERVE_BYTES, Spool, open_spool
from tests.unit.telemetry.accept.spool_desk import SpoolDesk, TightDisk


async def test_a_batch_is_accepted_without_the_object_store_and_read_before_it_lands(tmp_path: Path) -> None:
    desk, usage = SpoolDesk(), Usage()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool, usage=usage)
        answer = await collector.accept(submission(1))
        assert isinstance(answer, Accepted)
        assert not answer.duplicate
        assert usage.by_verb == {}
        assert await spool.read(submission(1).identity) == submission(1).body
        assert [one.identity async for one in spool.pending()] == [submission(1).identity]
        assert await collector.land() == Landed(batches=1)
        assert usage.by_verb == {"put": 3}
        assert [one async for one in spool.pending()] == []
        with pytest.raises(NotFound):
            await spool.read(submission(1).identity)
    assert desk.families() == {"raw-blobs": 1, "accepted": 1, "accepted-by-time": 1}
    assert len(desk.effects) == 1


async def test_other_bytes_are_refused_and_put_on_record_when_the_first_have_landed(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        await collector.accept(submission(1))
        before = await collector.accept(submission(1, 1))
        assert isinstance(before, IdentityConflict)
        assert before.accepted.frame_sha256 == submission(1).frame_sha256
        assert await collector.land() == Landed(batches=1, conflicts=1)
        after = await collector.accept(submission(1, 2))
        assert isinstance(after, IdentityConflict)
        assert await collector.land() == Landed(conflicts=1)
        assert await collector.land() == Landed()
    assert desk.families() == {
        "raw-blobs": 3,
        "accepted": 1,
        "accepted-by-time": 2,
        "quarantine": 2,
        "quarantine-by-blob": 2,
    }


async def test_what_cannot_land_is_kept_and_holds_no_other_batch_up(tmp_path: Path) -> None:
    """Because the store does not take it now, because its file is no frame, or because its manifest cannot be read."""
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool, "ok", "busy", "busy", "busy")
        await collector.accept(submission(1))
        with pytest.raises(Unavailable):
            await collector.land()
        assert len([one async for one in spool.pending()]) == 1
        for number in (2, 3):
            await collector.accept(submission(number))
        [spoiled] = (tmp_path / FOLDER).rglob("*10-*19.lmbatch")
        spoiled.write_bytes(b"spoiled")
        unreadable = layout.accepted_key(submission(2).identity)
        await desk.store().put(unreadable, b"{}", OVERWRITE)
        assert await collector.land() == Landed(batches=1, unreadable=1, stuck=1)
        assert {one.identity async for one in spool.pending()} == {submission(1).identity, submission(2).identity}
        with pytest.raises(Corrupt, match="are no frame"):
            await collector.accept(submission(1))
        await desk.store().delete(unreadable)
        assert await collector.land() == Landed(batches=1, unreadable=1)


class Forbidden(Layer):
    """A store whose permissions are taken away for a while."""

    denied = True

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if self.denied:
            raise Denied(f"{key}: 403")
        return await self.inner.put(key, body, mode)


async def test_it_lands_in_the_background_after_any_error_and_at_the_end_and_keeps_a_reserve(tmp_path: Path) -> None:
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
            while not (tmp_path / FOLDER / RESERVE).exists():
                await asyncio.sleep(0.001)
            await collector.accept(submission(2))
    assert desk.families() == Counter({"raw-blobs": 2, "accepted": 2, "accepted-by-time": 2})
    assert (tmp_path / FOLDER / RESERVE).stat().st_size == RESERVE_BYTES


async def test_notes_of_what_has_landed_can_be_forgotten(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        await collector.accept(submission(1))
        await collector.land()
        assert await spool.forget(0) == 0
        assert await spool.forget(1 << 62) == 1
        assert await spool.forget(1 << 62) == 0
        late = await collector.accept(submission(1))
        assert isinstance(late, Accepted)
        assert not late.duplicate
        assert await collector.land() == Landed(batches=1)
    assert desk.families() == {"raw-blobs": 1, "accepted": 1, "accepted-by-time": 1}


async def test_a_spool_belongs_to_one_process_and_has_one_id(tmp_path: Path) -> None:
    desk = SpoolDesk()
    async with open_spool(tmp_path, desk.ambient()) as spool:
        first = await spool.spool_id(desk.ambient())
        with pytest.raises(Refused, match="another collector uses this spool") as caught:
            async with open_spool(tmp_path, desk.ambient()):
                pass
        assert "own folder" not in (caught.value.remedy or "")  # a store has one spool
    async with open_spool(tmp_path, desk.ambient()) as spool:
        assert await spool.spool_id(desk.ambient()) == first
        with pytest.raises(Refused, match="s3_manifest"):
            SpoolCollector(spool, desk.store(), desk.ambient(), kit.authority(), CollectorOptions("c"), kit.inspect)


async def test_work_that_fails_in_an_unforeseen_way_begins_again() -> None:
    tries: list[int] = []

    async def run() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ZeroDivisionError

    await lasting("counting", run, pause_s=0)
    assert tries == [0, 1, 2]


async def test_a_spool_on_a_full_disk_lands_what_it_holds_and_accepts_again(tmp_path: Path) -> None:
    desk = SpoolDesk()
    size = len(submission(10).body)
    disk = TightDisk(desk.watch, tmp_path, room=RESERVE_BYTES + 10 * size)
    spool = Spool(disk, disk.notes)
    await spool.load()
    await spool.keep_reserve()
    collector = desk.spooler(spool)
    for number in range(10, 20):
        assert isinstance(await collector.accept(submission(number)), Accepted)
    with pytest.raises(Unavailable, match="No space"):
        await collector.accept(submission(20))
    assert await collector.land() == Landed(batches=10)
    assert [one async for one in spool.pending()] == []
    with pytest.raises(Unavailable, match="land first"):  # the room is that of notes
        await collector.accept(submission(20))
    await spool.keep_reserve()
    assert RESERVE not in disk.objects
    assert disk.notes.size == 0  # only notes took room, and the store has the manifests
    await spool.keep_reserve()
    assert RESERVE in disk.objects
    answer = await collector.accept(submission(20))
    assert isinstance(answer, Accepted)
    assert not answer.duplicate


async def test_a_batch_takes_two_syncs_to_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, synced, fsync = SpoolDesk(), Counter[str](), os.fsync

    def counted(file: int) -> None:
        synced["folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file"] += 1
        fsync(file)

    async with open_spool(tmp_path, desk.ambient()) as spool:
        collector = desk.spooler(spool)
        await collector.accept(submission(0))
        await collector.land()
        monkeypatch.setattr(os, "fsync", counted)
        for number in (1, 2, 3):
            await collector.accept(submission(number))
        assert synced == {"file": 3, "folder": 3}


@pytest.mark.parametrize("version", [1, 2])
async def test_a_spool_of_an_earlier_version_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    desk = SpoolDesk()
    store = LocalStore(tmp_path / FOLDER, clock=desk.watch)
    waits = f"pending/v1/{layout.identity_path(submission(1).identity)}.lmbatch"
    await store.put(waits, submission(1).body, CREATE)
    about = codec.encode(codec.stamp({"spool_id": "disk-1"}, format_name=FORMAT, version=version, write_id="w"))
    await store.put(ABOUT, about, CREATE)
    with pytest.raises(Incompatible, match=f"version {version}") as caught:
        async with open_spool(tmp_path, desk.ambient()):
            raise AssertionError
    assert "land its batches" in (caught.value.remedy or "")
    assert not (tmp_path / FILE).exists()
    assert (await store.get(waits)).body == submission(1).body
    assert (await store.get(ABOUT)).body == about
