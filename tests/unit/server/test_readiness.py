"""``/readyz`` is for load balancers: it says so when a collector cannot write, though its store answers every read."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.base.aio import finishing
from holdfast.base.errors import Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.server.readiness import Readiness
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept.spool import FILE, RESERVE_BYTES, TRIAL, TRIAL_BYTES, Notes, Spool
from holdfast.telemetry.records import Log
from tests.unit.server.server_desk import ServerDesk, frame, server_desk
from tests.unit.telemetry.accept.spool_desk import SpoolDesk, TightDisk


async def problem(desk: ServerDesk) -> str:
    answer = await desk.get("/readyz", 503)
    assert answer["error"]["reason"] == "not_ready"
    return str(answer["error"]["store_problem"])


async def test_the_newest_write_counts_and_a_store_is_tried_with_as_much_as_it_refused(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        assert (await desk.get("/readyz"))["store_problem"] is None
        desk.script.script += ["busy"] * 4
        assert (await desk.post(frame())).status_code == 503
        assert "503" in await problem(desk)
        assert (await desk.post(frame())).status_code == 200
        assert (await desk.get("/readyz"))["store_problem"] is None
        desk.script.script += ["busy"] * 4
        body = frame(Log("x" * 5_000, 1), seq=1)
        assert (await desk.post(body, seqs=(1, 1))).status_code == 503
        desk.script.script += ["busy"] * 2
        desk.watch.advance(seconds=3)
        assert "collector-probes/v1" in await problem(desk)
        desk.watch.advance(seconds=3)
        assert (await desk.get("/readyz"))["store_problem"] is None
        [key] = [key async for key in desk.service.store.keys("collector-probes/")]
        assert len((await desk.service.store.get(key)).body) == len(body)


async def test_without_a_token_no_address_and_no_path_is_shown(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        assert (await desk.ingest.get("/readyz")).json() == {"status": "ready"}
        desk.script.script += ["busy"] * 4
        assert (await desk.post(frame())).status_code == 503
        assert "503" in await problem(desk)
        answer = await desk.ingest.get("/readyz")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"] == {
            "kind": "unavailable",
            "reason": "not_ready",
            "message": "no batch can be accepted: the store accepts no writes",
            "remedy": "send batches to another collector",
        }
        desk.service.begin_draining()
        answer = await desk.ingest.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "draining")
        assert set(answer.json()["error"]) == {"kind", "reason", "message", "remedy"}


async def test_nor_where_a_spool_is(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    async with server_desk(tmp_path, acceptance="local_spool", spool=folder) as desk:
        assert (await desk.ingest.get("/readyz")).json() == {"status": "ready"}
        away = folder.rename(tmp_path / "away")
        folder.write_bytes(b"")
        desk.watch.advance(seconds=3)
        assert str(folder) in await problem(desk)
        answer = (await desk.ingest.get("/readyz")).json()["error"]
        assert answer["message"] == "no batch can be accepted: the disk of the spool accepts no writes"
        assert str(tmp_path) not in str(answer)
        folder.unlink()
        away.rename(folder)


async def test_a_spool_is_tried_with_as_much_as_it_refused(tmp_path: Path) -> None:
    desk = SpoolDesk()
    disk = TightDisk(desk.watch, tmp_path, room=RESERVE_BYTES + 10_000)
    spool = Spool(disk, disk.notes)
    await spool.load()
    ready, collector = Readiness(desk.store(), desk.watch, spool, "spooler"), desk.spooler(spool)

    async def said() -> str:
        desk.watch.advance(seconds=2)
        return str(await ready.problem())

    await spool.keep_reserve()
    assert await said() == "None"
    assert TRIAL not in disk.objects
    large = replace(submission(1), body=b"x" * 20_000)
    with pytest.raises(Unavailable):
        await collector.accept(large)
    assert "No space" in await said()  # though a small batch would fit
    disk.room += 20_000
    assert await said() == "None"
    await collector.accept(large)
    disk.room = disk.used + TRIAL_BYTES - 1
    assert "No space" in await said()
    disk.room += RESERVE_BYTES
    assert await said() == "None"


class HangingDisk(Layer):
    """A write to it is begun, and ends when the disk comes back."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.answers = threading.Event()
        self.begun = 0

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key == TRIAL:
            self.begun += 1
            await finishing(self.answers.wait)  # as the store in a folder does
        return await super().put(key, body, mode)


async def test_a_disk_that_hangs_is_an_error_and_is_not_asked_again(tmp_path: Path) -> None:
    desk = SpoolDesk()
    disk = HangingDisk(MemoryStore(clock=desk.watch))
    spool = Spool(disk, Notes(tmp_path / FILE, desk.watch))
    await spool.load()
    ready = Readiness(desk.store(), desk.watch, spool, "spooler", disk_s=0.01)
    silent = "the disk of the spool does not respond"
    try:
        for _ in range(3):
            assert await asyncio.gather(*(ready.problem() for _ in range(3))) == [silent] * 3
            desk.watch.advance(seconds=10)
        assert disk.begun == 1
        disk.answers.set()
        while await ready.problem() is not None:
            await asyncio.sleep(0)
        disk.answers.clear()
        desk.watch.advance(seconds=2)
        assert await ready.problem() == silent
        await ready.close()
        assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"readiness"})
    finally:
        disk.answers.set()
