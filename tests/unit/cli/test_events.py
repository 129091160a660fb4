"""``holdfast events`` and ``holdfast worker`` on a store in a folder, through the real command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.desk import Desk

HANDLERS = """
import asyncio, pathlib
from holdfast.bus import DeadLetter, Event, Schedule, on

class Paid(Event):
    order: str

class Tick(Event):
    pass

@on(Paid, id="ship")
async def ship(ctx, event):
    if event.order == "bad":
        raise DeadLetter("no such order")
    if event.order == "slow":
        pathlib.Path("begun").touch()
        await asyncio.sleep(60)

HANDLERS = [ship, Schedule("0 3 * * *", Tick())]
nothing = 5
"""


class EventsDesk(Desk):
    def publish(self, order: str, *options: str) -> str:
        payload = json.dumps({"order": order})
        return str(self.json("events", "publish", "paid", payload, *options)["id"])

    def work(self) -> Any:
        return self.json("worker", "bus_cli_handlers:HANDLERS", "--until-idle")


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> EventsDesk:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bus_cli_handlers", raising=False)
    (tmp_path / "bus_cli_handlers.py").write_text(HANDLERS, encoding="utf-8")
    return EventsDesk(tmp_path, capsys)


def test_tail_and_cleanup(desk: EventsDesk) -> None:
    for order in ("o1", "o2", "o3"):
        desk.publish(order)
    assert desk.text("events", "tail", "--once", "--lines", "2").count("paid") == 2
    assert desk.text("events", "tail", "--once", "--since", "1h").count("paid") == 3
    assert desk.text("events", "tail", "--once", "--since", "0s") == ""
    assert desk.json("events", "cleanup", "--before", "0s")["events"] == 0  # no handler has ever looked at them
    everything = ("events", "cleanup", "--before", "0s", "--unsafe-unsettled")
    assert desk.json(*everything, "--dry-run")["events"] == 3
    assert desk.json("events", "cleanup", "--unsafe-unsettled")["events"] == 0
    assert desk.json(*everything)["events"] == 3
    assert desk.json("events", "list") == []


def test_a_tail_begins_with_a_few_and_goes_on(desk: EventsDesk) -> None:
    for number in range(12):
        desk.publish(f"o{number}")
    command = [sys.executable, "-m", "holdfast", "events", "tail", "--interval", "0.05", "--store", desk.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(10)]
        later = desk.publish("later")
        assert later in process.stdout.readline()
        process.terminate()
    assert '"o2"' in first[0]
    assert '"o11"' in first[-1]


def test_a_bad_schedule_and_an_empty_list_say_what_to_do(desk: EventsDesk) -> None:
    broken = (
        "from holdfast.bus import Event, Schedule\nclass CliTick(Event): ...\nALL = [Schedule('61 * * * *', CliTick())]"
    )
    (desk.folder / "bus_cli_schedule.py").write_text(broken, encoding="utf-8")
    said = desk.text("worker", "bus_cli_schedule:ALL", code=2)
    assert "'61 * * * *' is not a cron expression" in said
    assert "importable" not in said
    (desk.folder / "bus_cli_empty.py").write_text("ALL = []", encoding="utf-8")
    assert "bus_cli_empty:ALL is empty" in desk.text("worker", "bus_cli_empty:ALL", code=2)


@pytest.mark.parametrize("body", ["1 / 0", "raise SystemExit(3)", "def", "import nowhere_at_all"])
def test_a_module_that_cannot_be_imported_is_named(desk: EventsDesk, body: str) -> None:
    name = f"bus_cli_broken_{abs(hash(body))}"
    (desk.folder / f"{name}.py").write_text(body, encoding="utf-8")
    assert f"error: {name}:HANDLERS: " in desk.text("worker", f"{name}:HANDLERS", code=2)
