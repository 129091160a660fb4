"""Batches through the application: answers, headers, what they cost, what is left when the store is away."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import (
    TABLE,
    Ambiguous,
    Conflict,
    Corrupt,
    Denied,
    Incompatible,
    Invalid,
    NotFound,
    Refused,
    Unavailable,
)
from holdfast.server.errors import REASONS, Fault, failure_of
from holdfast.telemetry import Gauge
from holdfast.telemetry.frame import FrameInvalid, Reason
from tests.unit.server.server_desk import frame, server_desk


async def test_a_batch_is_new_once_and_costs_three_puts_and_a_duplicate_two_puts_and_two_gets(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        await asyncio.sleep(0)
        desk.usage.tallies.clear()
        first = await desk.post(frame())
        paths = {family: desk.usage.requests("put", family) for family in ("raw-blobs", "accepted-by-time", "accepted")}
        assert (first.status_code, first.json()["duplicate"], first.json()["agent_id"]) == (200, False, "web-1")
        assert paths == {"raw-blobs": 1, "accepted-by-time": 1, "accepted": 1}
        await asyncio.sleep(0.05)
        desk.usage.tallies.clear()
        second = await desk.post(frame())
        assert (second.status_code, second.json()["duplicate"]) == (200, True)
        assert desk.usage.by_verb == {"put": 2, "get": 2}
        assert first.json()["frame_sha256"] == second.json()["frame_sha256"]


async def test_other_bytes_under_one_identity_are_a_conflict_with_a_record(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        await desk.post(frame())
        answer = await desk.post(frame(Gauge("load", 2.5, 1_000)))
        error = answer.json()["error"]
        assert (answer.status_code, error["reason"], error["kind"]) == (409, "identity_conflict", "refused")
        listed = (await desk.get("/api/v1/conflicts?agent=web-1"))["conflicts"]
        assert [each["quarantine_manifest_key"] for each in listed] == [error["quarantine_manifest_key"]]
        assert listed[0]["accepted_frame_sha256"] == error["accepted_frame_sha256"]
        assert (await desk.get("/api/v1/conflicts?agent=web-2"))["conflicts"] == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (["busy"] * 9, "unavailable"),
        (["ok", "drop", "drop"], "outcome_unknown"),
        (["forbidden"], "unavailable"),  # this collector, and not who sends
        (["ok", "gone"], "unavailable"),
    ],
)
async def test_an_unavailable_store_is_503_and_the_same_batch_is_accepted_later(
    tmp_path: Path, script: list[str], reason: str
) -> None:
    async with server_desk(tmp_path) as desk:
        desk.script.script = list(script)
        answer = await desk.post(frame())
        assert answer.status_code == 503
        assert answer.json()["error"]["reason"] in (reason, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        desk.script.script = []
        assert (await desk.post(frame())).json()["duplicate"] is False


async def test_requests_of_a_token_are_limited_in_rate_and_in_number(tmp_path: Path) -> None:
    async with server_desk(tmp_path, requests_per_s=1.5, concurrency=1) as desk:
        with desk.service.limits.request(desk.token.split("_")[1]):
            crowded = await desk.post(frame())
        statuses = [(await desk.post(frame())).status_code for _ in range(2)]
        refused = await desk.post(frame())
        assert [crowded.status_code, *statuses, refused.status_code] == [429, 200, 200, 429]
        assert crowded.json()["error"]["reason"] == "concurrency_limited"
        assert refused.json()["error"]["reason"] == "rate_limited"
        assert int(refused.headers["retry-after"]) == 1


async def test_memory_for_requests_is_bounded(tmp_path: Path) -> None:
    async with server_desk(tmp_path, in_flight_bytes=1_000_000) as desk:
        with desk.service.limits.memory(1_000_000 - len(frame()) - 10):
            answer = await desk.post(frame())
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "overloaded")
        assert desk.service.limits.in_flight_bytes == 0


async def test_a_large_frame_is_accepted(tmp_path: Path) -> None:
    many = [Gauge(f"metric_{number % 97}", number / 7, number) for number in range(40_000)]
    async with server_desk(tmp_path) as desk:
        answer = await desk.post(frame(*many), seqs=(0, 39_999))
        assert answer.json()["duplicate"] is False
        page = (await desk.private.get("/metrics")).text
        assert 'holdfast_ingest_records_total{kind="samples"} 40000.0' in page
        assert 'holdfast_store_requests_total{family="accepted",verb="put"} 1.0' in page


async def test_a_draining_collector_refuses_batches(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        assert (await desk.get("/readyz"))["status"] == "ready"
        desk.service.begin_draining()
        answer = await desk.post(frame())
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "draining")
        assert (await desk.get("/readyz", 503))["error"]["reason"] == "draining"
        assert (await desk.get("/healthz"))["status"] == "alive"


async def test_a_store_that_does_not_answer_is_503_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_desk(tmp_path, accept_timeout_ms=50) as desk:
        takes = desk.script.put

        async def stall(*_: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(desk.script, "put", stall)
        answer = await desk.post(frame())
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "outcome_unknown")
        assert "within 0.05 s" in answer.json()["error"]["message"]
        assert desk.service.limits.under_way == 0
        monkeypatch.setattr(desk.script, "put", takes)
        assert (await desk.post(frame())).json()["duplicate"] is False


def test_all_failures_have_the_same_fields() -> None:
    errors: list[Exception] = [
        Fault("too_large", "m", remedy="r"),
        FrameInvalid(Reason.CHECKSUM, "m"),
        Corrupt("m"),
        Unavailable("m"),
        ValueError("a secret"),
    ]
    for error in errors:
        failure = failure_of(error)
        assert list(failure.document["error"]) == ["kind", "reason", "message", "remedy"]
        assert failure.document["error"]["remedy"]
        assert failure.document["error"]["kind"] in TABLE
        assert "secret" not in json.dumps(failure.document)
    assert [failure_of(error).status for error in errors] == [413, 400, 500, 503, 500]
    for kind in (Invalid, NotFound, Denied, Incompatible, Conflict, Unavailable, Refused, Corrupt):
        failure = failure_of(kind("m"))
        row = REASONS[failure.reason]
        assert (row.kind, row.status) == (failure.document["error"]["kind"], failure.status)
    assert failure_of(FrameInvalid(Reason.TOO_LARGE, "m")).status == 413
    assert failure_of(Ambiguous("m")).status == TABLE["ambiguous"].http_status
    assert all(row.kind in TABLE for row in REASONS.values())
    assert all(failure_of(FrameInvalid(reason, "m")).document["error"]["remedy"] for reason in Reason)


async def test_memory_for_texts_is_reserved_before_they_are_decoded(tmp_path: Path) -> None:
    """A table of texts takes many times its bytes in memory, and is refused before it is built."""
    labels = {f"{number:06d}": f"v{number:06d}" for number in range(20_000)}
    body = frame(Gauge("load", 1.0, 1, labels))
    async with server_desk(tmp_path, in_flight_bytes=len(body) + 2_000_000) as desk:
        answer = await desk.post(body)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (413, "too_large")
        assert "needs" in answer.json()["error"]["message"]
        assert desk.service.limits.in_flight_bytes == 0
        assert (await desk.post(frame())).status_code == 200
    async with server_desk(tmp_path / "..", in_flight_bytes=100_000_000) as desk:
        assert (await desk.post(body)).status_code == 200
