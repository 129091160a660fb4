"""``holdfast metrics`` on a store in a folder, through the real command."""

import math
import time
from pathlib import Path

import pytest

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
