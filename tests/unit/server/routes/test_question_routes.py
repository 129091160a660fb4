"""Metrics and logs over the private listener: the answers of the library, as JSON."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast.base.clock import iso
from holdfast.telemetry import Counter, Gauge, Log
from holdfast.telemetry.records import Record
from tests.unit.server.server_desk import ServerDesk, frame, server_desk

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


async def filled(desk: ServerDesk) -> tuple[int, str]:
    """A few records of the last minutes; when the hour began, and the parameters for it."""
    start = desk.service.ambient.clock.wall_ns() // (10 * MINUTE) * 10 * MINUTE
    records = [Gauge("load", float(n), start + n * SECOND, {"cpu": str(n % 2)}) for n in range(4)]
    more: list[Record] = [
        Counter("requests", 3, start),
        Counter("requests", 9, start + SECOND),
        Log("disk is full", start, 17),
    ]
    body = frame(*records, *more)
    assert (await desk.post(body, seqs=(0, 6))).status_code == 200
    return start, f"since={quote(iso(start))}&until={quote(iso(start + 10 * MINUTE))}"


async def test_queries_of_metrics_and_logs(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        start, span = await filled(desk)
        found = await desk.get(f"/api/v1/metrics/list?{span}")
        assert [(row["metric"], row["series"], row["samples"]) for row in found["metrics"]] == [
            ("load", 2, 4),
            ("requests", 1, 2),
        ]
        assert found["read"]["batches"] == 1
        labels = await desk.get(f"/api/v1/metrics/labels?metric=load&{span}")
        assert [tuple(row.values()) for row in labels["labels"]] == [
            ("agent", "web-1", 2),
            ("cpu", "0", 1),
            ("cpu", "1", 1),
        ]
        path = f"/api/v1/metrics/query?metric=load&{span}&step=10m"
        answer = await desk.get(f"{path}&aggregate=max&where={quote('cpu=1')}")
        assert answer["series"] == [
            {"labels": {"agent": "web-1", "cpu": "1"}, "kind": "gauge", "points": [[start, 3.0]]}
        ]
        assert (answer["step"], answer["aggregate"]) == ("10m", "max")
        total = await desk.get(f"{path}&aggregate=sum&total=true")
        assert total["series"] == [{"labels": {}, "kind": "gauge", "points": [[start, 6.0]]}]
        both = await desk.get(f"{path}&aggregate=sum&total=true&by=agent", 400)
        assert both["error"]["message"].startswith("total groups all series together")
        by = await desk.get(f"{path}&aggregate=quantile&q=1&by=agent")
        assert by["series"][0]["points"] == [[start, 3.0]]
        grown = await desk.get(f"/api/v1/metrics/query?metric=requests&{span}&step=10m&aggregate=increase")
        assert grown["series"][0]["points"] == [[start, 6.0]]
        logs = await desk.get(f"/api/v1/logs/search?words=FULL&severity=error&{span}")
        assert [row["message"] for row in logs["logs"]] == ["disk is full"]
        assert not logs["truncated"]


@pytest.mark.soak
async def test_ten_thousand_series_fit_into_the_memory_limit(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        start = desk.service.ambient.clock.wall_ns() // HOUR * HOUR - HOUR
        paths = [{"path": f"/{number}"} for number in range(10_000)]
        for step in range(20):
            records = [Counter("requests", step, start + step * MINUTE, labels) for labels in paths]
            seqs = step * len(paths), (step + 1) * len(paths) - 1
            assert (await desk.post(frame(*records, seq=seqs[0]), seqs=seqs)).status_code == 200
        span = f"since={quote(iso(start))}&until={quote(iso(start + 20 * MINUTE))}"
        for aggregate in ("rate", "last"):
            found = await desk.get(f"/api/v1/metrics/query?metric=requests&{span}&step=1m&aggregate={aggregate}")
            assert [len(found["series"]), sum(len(each["points"]) for each in found["series"])] == [10_000, 200_000]


async def test_invalid_queries_are_bad_requests(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        _, span = await filled(desk)
        missing = await desk.get(f"/api/v1/metrics/query?metric=laod&{span}", 404)
        assert missing["error"]["remedy"] == "did you mean load?"
        await desk.get(f"/api/v1/metrics/labels?metric=laod&{span}", 404)
        for wrong in ("step=1x", "aggregate=median", "where=cpu", "where=" + quote("cpu=~("), "q=0.5", "since=later"):
            refused = await desk.get(f"/api/v1/metrics/query?metric=load&{wrong}", 400)
            assert refused["error"]["kind"] == "invalid"
        await desk.get("/api/v1/metrics/query", 400)
        await desk.get(f"/api/v1/metrics/query?metric=load&agent=unknown&{span}", 404)
        await desk.get("/api/v1/logs/search?severity=loud", 400)
        await desk.get("/api/v1/logs/search?limit=0", 400)


@pytest.mark.parametrize("value", ["9" * 30, "9" * 5_000, "-1", "nan", "1e400", "9" * 400 + "h"])
async def test_numbers_and_times_out_of_range_are_bad_requests(tmp_path: Path, value: str) -> None:
    async with server_desk(tmp_path) as desk:
        for question in (
            "live?since_ns=",
            "live?series=",
            "live?points=",
            "conflicts?limit=",
            "logs/search?limit=",
            "logs/search?severity=",
            "logs/search?since=",
            "logs/search?until=",
            "metrics/list?since=",
            "metrics/list?until=",
            "metrics/labels?metric=load&since=",
            "metrics/query?metric=load&since=",
            "metrics/query?metric=load&until=",
            "metrics/query?metric=load&step=",
            "metrics/query?metric=load&aggregate=quantile&q=",
        ):
            refused = await desk.get(f"/api/v1/{question}{value}", 400)
            assert refused["error"]["reason"] == "bad_request"


async def test_an_unknown_parameter_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        _, span = await filled(desk)
        for path in (
            "metrics/query?metric=load&steps=1m",
            "metrics/list?metrics=load",
            "logs/search?word=x",
            "live?x=1",
        ):
            refused: dict[str, Any] = (await desk.get(f"/api/v1/{path}&{span if 'live' not in path else 'y=2'}", 400))[
                "error"
            ]
            assert refused["reason"] == "bad_request"
            assert refused["message"].startswith("unknown parameters: ")
        assert "known here: agent, aggregate, by, metric, q, since, step, total, until, where" in str(
            await desk.get(f"/api/v1/metrics/query?metric=load&steps=1m&{span}", 400)
        )
        assert "this path takes none" in str(await desk.get("/metrics?x=1", 400))
        refused = (await desk.ingest.post("/ingest/v1/batch?x=1&dry_run", content=frame())).json()["error"]
        assert refused["message"] == "unknown parameters: dry_run, x"
        for client in (desk.ingest, desk.private):  # a monitor may add parameters of its own
            assert [(await client.get(f"{path}?x=1")).status_code for path in ("/healthz", "/readyz")] == [200, 200]
