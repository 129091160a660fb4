"""Requests to the private listener end in time although the store never answers."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Ambiguous
from tests.unit.server.routes.test_conflict_routes import DECISION, conflict
from tests.unit.server.server_desk import ServerDesk, server_desk

ASKED = [
    "/api/v1/conflicts",
    f"/api/v1/conflicts/{'0' * 64}",
    "/api/v1/holds",
    "/api/v1/metrics/list",
    "/api/v1/metrics/labels?metric=q",
    "/api/v1/metrics/query?metric=q",
    "/api/v1/logs/search",
]


def hang(desk: ServerDesk, monkeypatch: pytest.MonkeyPatch, *verbs: str) -> None:
    async def stall(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async def stalled_list(*_: Any, **__: Any) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None

    for verb in verbs:
        monkeypatch.setattr(desk.script, verb, stalled_list if verb == "list" else stall)


async def answered(desk: ServerDesk, path: str) -> None:
    """Sooner or later: this machine may take longer than a test gives a store that hangs."""
    while (await desk.private.get(path)).status_code != 200:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", ASKED)
async def test_a_read_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    async with asyncio.timeout(60), server_desk(tmp_path, read_timeout_ms=50, drain_ms=0) as desk:
        hang(desk, monkeypatch, "get", "get_unless", "head", "range", "list")
        answer = await desk.private.get(path)
        reported = answer.json()["error"]
        assert (answer.status_code, reported["kind"], reported["reason"]) == (503, "unavailable", "unavailable")
        assert "within 0.05 s" in reported["message"]
        assert reported["remedy"]
        assert int(answer.headers["retry-after"]) >= 1
        monkeypatch.undo()
        await answered(desk, "/api/v1/holds")


async def test_a_decision_that_takes_too_long_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(60), server_desk(tmp_path, read_timeout_ms=1000, drain_ms=0) as desk:
        path = f"/api/v1/conflicts/{(await conflict(desk))['submitted_frame_sha256']}/resolve"
        decision = {"resolution": "existing_is_authoritative", **DECISION}
        hang(desk, monkeypatch, "put")
        answer = await desk.private.post(path, json=decision)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "outcome_unknown")
        monkeypatch.undo()

        async def lost(*_: Any) -> Any:
            raise Ambiguous("the answer was lost")

        with monkeypatch.context() as patched:
            patched.setattr(desk.script, "put", lost)
            answer = await desk.private.post(path, json=decision)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "outcome_unknown")
        assert (await desk.private.post(path, json=decision)).status_code == 200
