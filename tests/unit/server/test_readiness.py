"""``/readyz`` is for load balancers: it says so when a collector cannot write, though its store answers every read."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.server.readiness import Readiness
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept.spool import FILE, FORMAT, Spool, open_spool
from holdfast.telemetry.database import SPARE_BYTES, Database
from holdfast.telemetry.records import Log
from tests.unit.server.server_desk import ServerDesk, frame, server_desk
from tests.unit.telemetry.accept.spool_desk import SpoolDesk


async def problem(desk: ServerDesk) -> str:
    answer = await desk.get("/readyz", 503)
    assert answer["error"]["reason"] == "not_ready"
    return str(answer["error"]["store_problem"])


async def test_the_last_write_counts_and_a_probe_has_the_size_of_the_refused_batch(tmp_path: Path) -> None:
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


async def test_readiness_without_a_token_shows_no_address(tmp_path: Path) -> None:
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


async def test_readiness_without_a_token_shows_no_path_of_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "spool"
    async with server_desk(tmp_path, acceptance="local_spool", spool=folder) as desk:
        assert (await desk.ingest.get("/readyz")).json() == {"status": "ready"}
        monkeypatch.setattr(Database, "free_bytes", lambda _: 0)
        desk.watch.advance(seconds=3)
        assert str(folder) in await problem(desk)
        answer = (await desk.ingest.get("/readyz")).json()["error"]
        assert answer["message"] == "no batch can be accepted: the disk of the spool accepts no writes"
        assert str(tmp_path) not in str(answer)


async def test_a_probe_of_a_spool_has_the_size_of_the_refused_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, free = SpoolDesk(), SPARE_BYTES + 10_000
    monkeypatch.setattr(Database, "free_bytes", lambda _: free)
    async with open_spool(tmp_path, desk.ambient()) as spool:
        ready, collector = Readiness(desk.store(), desk.watch, spool, "spooler"), desk.spooler(spool)

        async def said() -> str:
            desk.watch.advance(seconds=2)
            return str(await ready.problem())

        assert await said() == "None"
        large = replace(submission(1), body=b"x" * 20_000)
        with pytest.raises(Unavailable):
            await collector.accept(large)
        assert "the disk is full" in await said()  # though a small batch would fit
        free += 40_000
        assert await said() == "None"
        await collector.accept(large)
        free = SPARE_BYTES
        assert "the disk is full" in await said()


class HangingDatabase(Database):
    """A transaction is begun, and ends when the disk comes back."""

    answers = threading.Event()
    begun = 0

    @contextmanager
    def write(self, *, durable: bool = True, adds: int = 0) -> Iterator[sqlite3.Connection]:
        self.begun += 1
        self.answers.wait()
        with super().write(durable=durable, adds=adds) as database:
            yield database


async def test_a_hanging_disk_is_reported_and_not_tried_again(tmp_path: Path) -> None:
    desk = SpoolDesk()
    disk = HangingDatabase(tmp_path / FILE, FORMAT)
    spool = Spool(disk, desk.ambient())
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
