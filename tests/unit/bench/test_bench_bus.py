"""The benchmark of the bus runs, its floor is the layout's, and its synthetic history is one that workers believe."""

import json
import sys
from pathlib import Path

import pytest

from bench.bus import __main__ as program
from bench.bus import history
from bench.bus.work import BenchOrder, floor_worker, publish
from holdfast.platform.open import open_platform
from tests.tidy.tree import leaks


async def test_the_floor_is_three_requests_per_event() -> None:
    async with open_platform("memory:") as hf:
        await publish(hf.bus(), 5)
        keys = [key async for key in hf.store.keys("events/default/")]
        before = hf.store.usage.requests()
        await floor_worker(hf.store, keys)
        assert hf.store.usage.requests() - before == 15


async def test_a_synthetic_history_costs_what_a_real_one_does() -> None:
    real = await history.costs(await history.real(700))
    synthetic = await history.costs(history.synthetic(700))
    assert {name: each["requests"] for name, each in real.items()} == {
        name: each["requests"] for name, each in synthetic.items()
    }
    assert real["idle_poll"]["requests"] == 2
    assert BenchOrder.type_name == "bench.order"


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bus.json"
    words = ["bench.bus", "--quick", "--store", "file", "--out", str(out), "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    program.main()
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures["throughput"]["file"]["2"]["ours"]["handled"] == program.QUICK_EVENTS
    assert "publish to handler" in capsys.readouterr().out
    assert not leaks(out.read_text(encoding="utf-8"))
