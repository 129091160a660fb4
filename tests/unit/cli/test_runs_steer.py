"""``holdfast runs fork|cancel|retry|resume|delete``: runs changed without their code."""

import io
from pathlib import Path

import pytest

from tests.unit.cli.runs_desk import RunsDesk, bulky, desk_in, nap, order


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunsDesk:
    return desk_in(tmp_path, capsys)


def status(desk: RunsDesk, run_id: str) -> str:
    return str(desk.document("status", run_id)["status"])


class TestResume:
    def test_an_event_that_comes_early(self, desk: RunsDesk) -> None:
        desk.start(nap, run_id="n")
        reported = desk.document("resume", "n", "payment")
        assert (reported["status"], reported["waiting"], reported["event"]) == ("sleeping", False, "payment")
        assert "which waits for sleep; the event is kept" in desk.holdfast("resume", "n", "other", "1")
        assert "does not exist" in desk.holdfast("resume", "r", "payment", "5", code=4)


class TestDelete:
    def test_payloads_that_a_fork_needs(self, desk: RunsDesk) -> None:
        desk.start(bulky, run_id="r")
        desk.holdfast("fork", "r", "--after-step", "fetch", "--new-run-id", "f")
        assert "its forks need: f" in desk.holdfast("delete", "r", code=7)
        assert "r was deleted, except for payloads that f need" in desk.holdfast("delete", "r", "--force")
        assert desk.work() == 1
        assert desk.document("status", "f")["result"] == 40_000

    def test_all_that_ended_long_ago(self, desk: RunsDesk, monkeypatch: pytest.MonkeyPatch) -> None:
        desk.ship("a")
        desk.start(order, "hat", run_id="failed", broken=True)
        desk.do(lambda store: order.resume(store, "failed", "payment", 5))
        desk.start(order, "hat", run_id="open")
        assert desk.holdfast("delete", "--older-than", "1d", "--yes") == "0 of 0 runs deleted\n"
        shown = desk.holdfast("delete", "--older-than", "0s", "--dry-run")
        assert [line.split()[0] for line in shown.splitlines()] == ["run", "failed", "a", "2"]
        assert shown.endswith("2 runs would be deleted\n")
        assert [run["run_id"] for run in desk.document("delete", "--older-than", "0s", "--dry-run")] == ["failed", "a"]
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        shown = desk.holdfast("delete", "--older-than", "0s", code=7)
        assert shown == "error: 2 runs would be deleted, and input is no terminal\nhint: confirm with --yes\n"
        assert len(desk.document("list")) == 3
        shown = desk.holdfast("delete", "--older-than", "0s", "--status", "failed", "--yes")
        assert shown == "failed was deleted\n1 of 1 run deleted\n"
        assert desk.document("delete", "--older-than", "0s", "--yes")[0]["run_id"] == "a"
        assert [run["run_id"] for run in desk.document("list")] == ["open"]

    @pytest.mark.parametrize(("answer", "left", "code"), [("n\n", 1, 1), ("y\n", 0, 0)])
    def test_it_asks(self, desk: RunsDesk, monkeypatch: pytest.MonkeyPatch, answer: str, left: int, code: int) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        desk.ship("a")
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        shown = desk.holdfast("delete", "--older-than", "0s", code=code)
        assert "Delete 1 run for good? [y/N]: " in shown
        assert len(desk.document("list")) == left
