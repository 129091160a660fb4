"""A collector ends, whatever its store does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.server import service
from tests.unit.server.server_desk import frame, server_desk


async def test_a_collector_ends_although_its_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "DRAIN_LEAST_S", 0.5)  # time enough to begin, on a busy machine too
    stalled = asyncio.Event()

    async def stall(*_: Any) -> Any:
        stalled.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(60):
        async with server_desk(tmp_path, drain_ms=0, acceptance="local_spool", spool=tmp_path / "spool") as desk:
            assert (await desk.post(frame())).status_code == 200
            monkeypatch.setattr(desk.script, "put", stall)
            desk.service.begin_draining()
    assert stalled.is_set()
    said = [record.getMessage() for record in caplog.records if "not finished in time" in record.getMessage()]
    assert [line.partition(":")[0] for line in said] == ["landing"]
