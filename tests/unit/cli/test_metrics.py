"""``holdfast metrics`` and ``holdfast logs`` on a store in a folder, through the real command."""

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.clock import iso
from holdfast.cli.main import run
from holdfast.cli.telemetry.metrics import sparkline
from holdfast.objects.open import open_store
from holdfast.telemetry.records import Counter, Gauge, Log
from tests.unit.pipeline.field import HOUR, SECOND, START, Field

MINUTE = 60 * SECOND
SPAN = ("--since", iso(START), "--until", iso(START + HOUR))


class Desk:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "store").mkdir()
        self.uri = f"file:{folder / 'store'}"
        self._capsys = capsys

    def fill(self) -> None:
        async def work() -> None:
            async with open_store(self.uri) as store:
                field, now = Field(store), time.time_ns()
                gauges = {n: Gauge("node_load1", float(n), START + n * MINUTE, {"cpu": str(n % 2)}) for n in range(6)}
                logs = {10: Log("disk\x1b is full", START, 17, {"unit": "fs"}), 11: Log("all is well", START + SECOND)}
                await field.accept("web", "0", {**gauges, **logs}, at_ns=now)
                counters = {n: Counter("requests", 5 * n, START + n * MINUTE) for n in range(6)}
                await field.accept("db", "0", counters, at_ns=now)

        asyncio.run(work())

    def derive(self) -> None:
        async def work() -> None:
            async with open_store(self.uri) as store:
                await pipeline.run(store)

        asyncio.run(work())

    def json(self, *words: str) -> Any:
        assert run([*words, *SPAN, "--store", self.uri, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def text(self, *words: str, code: int = 0, span: tuple[str, ...] = SPAN) -> str:
        assert run([*words, *span, "--store", self.uri]) == code
        captured = self._capsys.readouterr()
        return captured.err if code else captured.out


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(tmp_path, capsys)
    made.fill()
    return made


def test_values_are_shown_as_tables_plots_and_documents(desk: Desk) -> None:
    for _ in range(2):
        query = ("metrics", "query", "node_load1", "--step", "1m", "--by", "cpu", "-a", "max")
        document = desk.json(*query)
        assert [(each["labels"], len(each["points"])) for each in document["series"]] == [
            ({"cpu": "0"}, 3),
            ({"cpu": "1"}, 3),
        ]
        lines = desk.text(*query).splitlines()
        assert lines[0].split() == ["time", "series", "value"]
        assert lines[1].split() == ["2025-11-24T16:00:00Z", "cpu=0", "0"]
        assert len(lines) == 7
        csv = desk.text(*query, "--format", "csv").splitlines()
        assert csv[:2] == ["time,series,value", "2025-11-24T16:00:00Z,cpu=0,0.0"]
        plot = desk.text(*query, "--plot").splitlines()
        assert plot[0].split() == ["series", "plot", "min", "max", "last"]
        assert plot[1].startswith("cpu=0   ▁ ▅ █")
        assert plot[1].split()[-3:] == ["0", "4", "4"]
        desk.derive()


def test_totals_quantiles_and_conditions(desk: Desk) -> None:
    total = desk.json("metrics", "query", "node_load1", "--step", "1h", "--total", "-a", "sum")
    assert total["series"][0]["points"] == [[START, 15.0]]
    median = desk.json("metrics", "query", "node_load1", "--step", "1h", "--total", "-q", "0.5")
    assert median["aggregate"] == "quantile"
    assert median["series"][0]["points"][0][1] == pytest.approx(2.0, rel=0.01)
    one = desk.json("metrics", "query", "node_load1", "--step", "1h", "-w", "cpu=~1|7", "--agent", "web", "-a", "count")
    assert one["series"][0]["points"] == [[START, 3.0]]
    rate = desk.json("metrics", "query", "requests", "--step", "10m", "-a", "increase")
    assert rate["series"][0]["points"] == [[START, 25.0]]


def test_logs_are_found(desk: Desk) -> None:
    for _ in range(2):
        found = desk.json("logs", "search", "disk", "FULL", "--severity", "warn")
        assert [row["message"] for row in found["logs"]] == ["disk\x1b is full"]
        table = desk.text("logs", "search", "--where", "unit=fs").splitlines()
        assert table[1].split() == ["2025-11-24T16:00:00Z", "web", "17", "disk\\x1b", "is", "full", "unit=fs"]
        assert len(desk.text("logs", "search", "--format", "jsonl").splitlines()) == 2
        desk.derive()


def test_a_batch_that_cannot_be_read_is_told(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    async def spoil() -> None:
        async with open_store(desk.uri) as store:
            keys = [key async for key in store.keys("raw-blobs/")]
            await store.put(keys[0], b"nothing")

    asyncio.run(spoil())
    assert run(["metrics", "list", *SPAN, "--store", desk.uri]) == 0
    assert "1 batch could not be read and is left out" in capsys.readouterr().err


def test_lines_of_blocks() -> None:
    assert sparkline([0, 1, 3], [0.0, 7.0, math.nan], 0, 4, 1) == "▁█  "
    assert sparkline([0, 1], [5.0, 5.0], 0, 2, 1) == "▁▁"
    assert sparkline([0, 1, 2], [math.inf, -math.inf, 1.0], 0, 3, 1) == "█▁▁"
    assert sparkline([0, 1], [-1.7e308, 1.7e308], 0, 2, 1) == "▁█"
    assert sparkline([], [], 0, 3, 1) == "   "
    assert len(sparkline(range(1000), [1.0] * 1000, 0, 1000, 1)) <= 80
