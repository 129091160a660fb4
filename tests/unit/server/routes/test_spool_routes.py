"""What a collector with a spool tells of batches that wait: while it runs, and when it ends."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Unavailable
from tests.unit.server.server_desk import ServerDesk, frame, server_desk

SPOOL: dict[str, Any] = {"acceptance": "local_spool", "object_landing_interval_ms": 1}


async def gauges(desk: ServerDesk) -> dict[str, float]:
    rows = [line.split(" ") for line in (await desk.private.get("/metrics")).text.splitlines()]
    return {row[0]: float(row[1]) for row in rows if row[0].startswith("holdfast_spool_")}


async def test_batches_in_a_spool_are_reported_while_it_runs_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: Any) -> Any:
        raise Unavailable("the store is out of service")

    async with server_desk(tmp_path, spool=tmp_path / "spool", **SPOOL) as desk:
        ready = await desk.get("/readyz")
        assert (ready["spool_batches"], ready["landing_problem"]) == (0, None)
        with monkeypatch.context() as away:
            away.setattr(desk.script, "put", refuse)
            for number in range(2):
                assert (await desk.post(frame(seq=number), seqs=(number, number))).status_code == 200
            while (ready := await desk.get("/readyz"))["landing_problem"] is None:
                await asyncio.sleep(0.001)
            assert (ready["status"], ready["spool_batches"]) == ("ready", 2)
            assert "out of service" in ready["landing_problem"]
            desk.watch.advance(seconds=100)
            assert (await desk.get("/readyz"))["landing_lag_s"] >= 100
            shown = await gauges(desk)
            assert shown["holdfast_spool_batches"] == 2
            assert shown["holdfast_spool_landing_lag_seconds"] >= 100
        while (ready := await desk.get("/readyz"))["landing_problem"] is not None:
            await asyncio.sleep(0.001)
        assert ready["spool_batches"] == 0
        assert ready["landing_lag_s"] < 100
        monkeypatch.setattr(desk.script, "put", refuse)
        assert (await desk.post(frame(seq=2), seqs=(2, 2))).status_code == 200
        desk.service.begin_draining()
    [answer] = [each for each in caplog.records if "in the spool" in each.getMessage()]
    assert answer.levelno == logging.WARNING
    assert answer.getMessage().startswith(f"1 batch remains in the spool {tmp_path / 'spool'}, ")


async def test_live_state_without_an_unreadable_batch_is_not_complete(tmp_path: Path) -> None:
    async with server_desk(tmp_path, spool=tmp_path / "spool", **SPOOL) as desk:
        while not (await desk.get("/readyz"))["live_rebuilt"]:
            await asyncio.sleep(0.001)
        assert (await desk.get("/api/v1/live"))["complete"] is True
        desk.service.follower.reader.unreadable.add("a batch")
        assert (await desk.get("/api/v1/live"))["partial_because"] == "1 batch could not be read"
