"""Conflicts are shown and decided over the private listener, and collectors act on it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Corrupt
from holdfast.telemetry import Gauge
from tests.unit.server.server_desk import ServerDesk, frame, server_desk

DECISION = {"by": "anna", "why": "a clone"}


async def conflict(desk: ServerDesk) -> dict[str, Any]:
    assert (await desk.post(frame())).status_code == 200
    other = await desk.post(frame(Gauge("load", 2.5, 1_000)))
    assert other.json()["error"]["resolution"] is None
    (found,) = (await desk.get("/api/v1/conflicts"))["conflicts"]
    return dict(found)


async def test_the_response_to_a_sender_contains_the_decision(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        found = await conflict(desk)
        path = f"/api/v1/conflicts/{found['submitted_frame_sha256'][:12]}"
        shown = await desk.get(path)
        assert shown["decisions"] == []
        assert shown["accepted_frame_sha256"] != shown["submitted_frame_sha256"]
        hold = {"resolution": "quarantine_identity", **DECISION}
        decided = (await desk.private.post(f"{path}/resolve", json=hold)).json()
        assert [each["by"] for each in decided["decisions"]] == ["anna"]
        refused = await desk.post(frame(seq=1), seqs=(1, 1))
        assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "identity_quarantined")
        (held,) = (await desk.get("/api/v1/holds"))["holds"]
        assert (held["agent_id"], held["boot_id"], held["why"]) == ("web-1", "boot", "a clone")
        lifting = {"agent_id": "web-1", "boot_id": "boot", **DECISION}
        assert (await desk.private.post("/api/v1/holds/lift", json=lifting)).json()["lifted_by"] == "anna"
        assert (await desk.post(frame(seq=1), seqs=(1, 1))).status_code == 200
        final = {"resolution": "existing_is_authoritative", **DECISION}
        assert (await desk.private.post(f"{path}/resolve", json=final)).status_code == 200
        again = await desk.post(frame(Gauge("load", 2.5, 1_000)))
        assert (again.status_code, again.json()["error"]["resolution"]) == (409, "existing_is_authoritative")
        late = await desk.private.post(f"{path}/resolve", json=hold)
        assert (late.status_code, late.json()["error"]["kind"]) == (409, "refused")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_decision_needs_the_content_type_of_json(tmp_path: Path, kind: str) -> None:
    async with server_desk(tmp_path) as desk:
        plain = '{"resolution": "quarantine_identity", "by": "a", "why": "b"}'
        for path in (f"/api/v1/conflicts/{'0' * 64}/resolve", "/api/v1/holds/lift"):
            sent = await desk.private.post(path, content=plain, headers={"content-type": kind})
            reported = sent.json()["error"]
            assert (sent.status_code, reported["reason"]) == (400, "bad_request")
            assert reported["message"].startswith("Content-Type must be application/json, got ")
            assert "Content-Type: application/json" in reported["remedy"]
        said = {"content-type": "Application/JSON; charset=utf-8"}
        lift = await desk.private.post("/api/v1/holds/lift", content=plain, headers=said)
        assert "agent_id: Field required" in lift.json()["error"]["message"]
        nested = await desk.private.post("/api/v1/holds/lift", content=b"[" * 100_000, headers=said)
        assert (nested.status_code, nested.json()["error"]["reason"]) == (400, "bad_request")
        await desk.get(f"/api/v1/conflicts/{'0' * 64}", 404)
        await desk.get("/api/v1/conflicts/ab", 400)


async def test_damaged_holds_and_resolutions_change_no_decision(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        await desk.post(frame())
        sha256 = (await desk.post(frame(Gauge("load", 2.5, 1)))).json()["error"]["quarantine_manifest_key"][-69:-5]
        decision = {"resolution": "quarantine_identity", "by": "ada", "why": "two agents"}
        assert (await desk.private.post(f"/api/v1/conflicts/{sha256}/resolve", json=decision)).status_code == 200
        store = desk.service.store
        keys = [key async for key in store.keys("")]
        right = {key: (await store.get(key)).body for key in keys if "resolutions" in key or "holds" in key}
        wrong: list[Any] = [None, 1, "x", [1], [{}], [{"agent_id": 1}], [{"resolution": "x"}]]
        for value in wrong:
            for key, body in right.items():
                await store.put(key, json.dumps({**json.loads(body), "value": value}).encode())
            with pytest.raises(Corrupt):
                await desk.service.holds.refresh()
            assert (await desk.post(frame())).json()["error"]["reason"] == "identity_quarantined"
            shown = await desk.private.get(f"/api/v1/conflicts/{sha256}")
            assert shown.json()["error"]["kind"] == "corrupt"
        desk.service.holds._active.clear()
        assert (await desk.post(frame(Gauge("load", 2.5, 1)))).json()["error"]["reason"] == "identity_conflict"


async def test_an_unreadable_conflict_hides_no_other(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        await desk.post(frame())
        keys = [
            (await desk.post(frame(Gauge("load", value, 1)))).json()["error"]["quarantine_manifest_key"]
            for value in (2.5, 3.5)
        ]
        await desk.service.store.put(keys[0], b"rubbish")
        listed = {each["quarantine_manifest_key"]: each for each in (await desk.get("/api/v1/conflicts"))["conflicts"]}
        assert set(listed) == set(keys)
        assert "not JSON" in listed[keys[0]]["corrupt"]
        assert (listed[keys[0]]["agent_id"], listed[keys[0]]["seq_start"]) == ("web-1", 0)
        assert listed[keys[0]]["submitted_frame_sha256"] in keys[0]
        assert "corrupt" not in listed[keys[1]]


async def test_a_long_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b" " * 65_536

    async with server_desk(tmp_path) as desk:
        for path in ("/api/v1/holds/lift", "/api/v1/conflicts/abcdef/resolve"):
            long = await desk.private.post(path, content=endless(), headers={"content-length": str(1 << 40)})
            assert (long.status_code, long.json()["error"]["reason"]) == (413, "too_large")
            unknown = await desk.private.post(path, content=endless())
            assert (unknown.status_code, unknown.json()["error"]["reason"]) == (411, "length_required")
    assert read == 0
