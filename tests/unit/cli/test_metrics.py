"""``holdfast metrics`` on a store in a folder, through the real command."""

import math
import time
from pathlib import Path

import pytest

from holdfast import pipeline
from holdfast.base.clock import iso
from holdfast.cli.telemetry.metrics import sparkline
from holdfast.objects import Client
from holdfast.telemetry.records import Gauge
from tests.unit.cli.desk import Desk
from tests.unit.pipeline.field import HOUR, SECOND, START, Field

MINUTE = 60 * SECOND
SPAN = ("--since", iso(START), "--until", iso(START + HOUR))


async def fill(store: Client) -> None:
    field, now = Field(store), time.time_ns()
    gauges = {n: Gauge("node_load1", float(n), START + n * MINUTE, {"cpu": str(n % 2)}) for n in range(6)}
    await field.accept("web", "0", gauges, at_ns=now)


class MetricsDesk(Desk):
    noun = ("metrics",)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> MetricsDesk:
    made = MetricsDesk(tmp_path, capsys)
    made.do(fill)
    return made


def test_values_are_shown_as_tables_plots_and_documents(desk: MetricsDesk) -> None:
    for _ in range(2):
        query = ("query", "node_load1", "--step", "1m", "--by", "cpu", "-a", "max", *SPAN)
        document = desk.json(*query)
        assert [(each["labels"], len(each["points"])) for each in document["series"]] == [
            ({"cpu": "0"}, 3),
            ({"cpu": "1"}, 3),
        ]
        lines = desk(*query)[1].splitlines()
        assert lines[0].split() == ["time", "series", "value"]
        assert lines[1].split() == ["2025-11-24T16:00:00Z", "cpu=0", "0"]
        assert len(lines) == 7
        csv = desk(*query, "--format", "csv")[1].splitlines()
        assert csv[:2] == ["time,series,value", "2025-11-24T16:00:00Z,cpu=0,0.0"]
        plot = desk(*query, "--plot")[1].splitlines()
        assert plot[0].split() == ["series", "plot", "min", "max", "last"]
        assert plot[1].startswith("cpu=0   ▁ ▅ █")
        assert plot[1].split()[-3:] == ["0", "4", "4"]
        desk.do(pipeline.run)


def test_a_label_that_no_series_has_is_named(desk: MetricsDesk) -> None:
    for _ in range(2):
        for options in (("-w", "cpuu=0"), ("--by", "cpuu"), ("-w", "cpu=0", "--by", "cpu", "--by", "cpuu")):
            remarks = desk("query", "node_load1", *options, *SPAN)[2].splitlines()
            assert remarks[-1] == "no series of node_load1 has the label cpuu; its labels are agent, cpu"
        assert desk("query", "node_load1", "-w", "cpu=7", *SPAN)[2].splitlines() == ["0 rows"]
        desk.do(pipeline.run)


def test_a_batch_that_cannot_be_read_is_reported(desk: MetricsDesk) -> None:
    async def spoil(store: Client) -> None:
        keys = [key async for key in store.keys("raw-blobs/")]
        await store.put(keys[0], b"nothing")

    desk.do(spoil)
    assert "1 batch could not be read, and the answer does not count them" in desk.text("list", *SPAN)


def test_lines_of_blocks() -> None:
    assert sparkline([0, 1, 3], [0.0, 7.0, math.nan], 0, 4, 1) == "▁█  "
    assert sparkline([0, 1], [5.0, 5.0], 0, 2, 1) == "▁▁"
    assert sparkline([0, 1, 2], [math.inf, -math.inf, 1.0], 0, 3, 1) == "█▁▁"
    assert sparkline([0, 1], [-1.7e308, 1.7e308], 0, 2, 1) == "▁█"
    assert sparkline([], [], 0, 3, 1) == "   "
    assert len(sparkline(range(1000), [1.0] * 1000, 0, 1000, 1)) <= 80
