"""Live state over HTTP: filters, completeness."""

import asyncio
from pathlib import Path

from holdfast.telemetry import Alert, Counter, Gauge, Histogram, Log, State
from holdfast.telemetry.accept.accept import submission_of
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.frame import Limits, decode
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.state import Live
from tests.unit.server.server_desk import frame, server_desk

EVERYTHING = (
    Gauge("load", float("nan"), 1_000, {"host": "a"}),
    Gauge("load", 2.0, 2_000, {"host": "a"}),
    Gauge("load", 3.0, 1_500, {"host": "b"}),
    Counter("bytes", 2**60 + 1, 2_000),
    Histogram("latency", (0.1, 1.0), (1, 2, 3), 4.5, 2_000),
    Log("started", 1_500, attributes={"unit": "nginx"}),
    Alert("disk_full", State.FIRING, 2_000, {"host": "a"}, 0.97, "almost"),
)


async def test_an_accepted_batch_is_in_live_state_at_once(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        await desk.post(frame(*EVERYTHING), seqs=(0, 6))
        found = await desk.get("/api/v1/live")
        assert found["complete"] is False
        points = {(each["name"], each["labels"].get("host")): each["points"] for each in found["series"]}
        assert points["load", "a"] == [[1_000, "NaN"], [2_000, 2.0]]
        assert points["bytes", None] == [[2_000, 2**60 + 1]]
        assert points["latency", None] == [[2_000, {"sum": 4.5, "bounds": [0.1, 1.0], "counts": [1, 2, 3]}]]
        assert [(log["message"], log["attributes"]) for log in found["logs"]] == [("started", {"unit": "nginx"})]
        assert [(alert["name"], alert["state"], alert["value"]) for alert in found["alerts"]] == [
            ("disk_full", "firing", 0.97)
        ]


async def test_filters_of_live_state(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        await desk.post(frame(*EVERYTHING), seqs=(0, 6))
        only = await desk.get("/api/v1/live?name=load&label=host%3Db")
        assert [each["points"] for each in only["series"]] == [[[1_500, 3.0]]]
        assert (only["logs"], only["alerts"]) == ([], [])
        assert (await desk.get("/api/v1/live?agent=db-*"))["series"] == []
        latest = await desk.get("/api/v1/live?name=load&points=1&since_ns=1600")
        assert [each["points"] for each in latest["series"]] == [[[2_000, 2.0]]]
        assert (await desk.get("/api/v1/live?series=1"))["truncated"] is True
        assert (await desk.get("/api/v1/live?label=host", 400))["error"]["reason"] == "bad_request"
        assert (await desk.get("/api/v1/live?series=100000&points=100000", 400))["error"]["kind"] == "invalid"


async def test_a_query_collector_finds_what_others_accepted(tmp_path: Path) -> None:
    body = frame()
    async with server_desk(tmp_path, query=True) as desk:
        service = desk.service
        while not service.completeness()["complete"]:
            await asyncio.sleep(0.001)
        other = Collector(service.store, service.ambient, service.authority, CollectorOptions("other"))
        await other.accept(submission_of(body, decode(body)))
        assert await service.follower.poll() == 1
        assert await service.follower.poll() == 0
        assert [each["name"] for each in (await desk.get("/api/v1/live"))["series"]] == ["load"]


async def test_missing_bytes_make_live_state_incomplete(tmp_path: Path) -> None:
    async with server_desk(tmp_path, query=True, follow_interval_ms=1) as desk:
        await desk.post(frame())
        while not desk.service.completeness()["complete"]:
            await asyncio.sleep(0.001)
        live = Live(desk.service.ambient.clock, max_bytes=10**9, window_ns=desk.service.live.window_ns)
        async for key in desk.service.store.keys("raw-blobs/"):
            await desk.service.store.delete(key)
        follower = Follower(desk.service.store, live, desk.service.ambient.clock, Limits())
        desk.service.live, desk.service.follower = live, follower
        assert await follower.poll() == 0
        assert desk.service.follower.problems >= 1
        assert "could not be read" in (await desk.get("/api/v1/live"))["partial_because"]


async def test_a_rebuild_fetches_no_more_than_fits_into_memory(tmp_path: Path) -> None:
    """Frames of a few hundred bytes that unpack to much more: as many as fit, and that the rest is missing is said."""
    async with server_desk(tmp_path, query=True) as desk:
        for number in range(40):
            samples = [Gauge("load", 1.0, 1_000) for _ in range(5_000)]
            body = frame(*samples, seq=number * 5_000)
            assert len(body) < 1_000
            assert (await desk.post(body, seqs=(number * 5_000, number * 5_000 + 4_999))).status_code == 200
        small = Live(desk.service.ambient.clock, max_bytes=1_000_000, window_ns=desk.service.live.window_ns)
        desk.usage.tallies.clear()
        follower = Follower(desk.service.store, small, desk.service.ambient.clock, Limits())
        await follower.poll()
        assert 0 < len(small) < 10
        assert small.missing
        assert desk.usage.requests("get", "raw-blobs") < 20
