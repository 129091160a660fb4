"""``holdfast runs``: what the golden document does not show, such as damage, forks and questions."""

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import runs
from holdfast.objects import Client
from tests.unit.cli.desk import Desk


@runs.workflow(version="1")
async def order(ctx: runs.Context, item: str, *, broken: bool = False) -> Any:
    """Reserves, waits for a payment, ships; releases what it reserved when it is cancelled."""
    await ctx.step("reserve", str.upper, item)
    try:
        paid = await ctx.suspend("payment", amount=5)
    except runs.Cancelled:
        await ctx.step("release", str.lower, item)
        raise
    if broken:
        raise ValueError("the lorry is broken")
    await ctx.step("ship", dict, paid=paid)
    return {"shipped": item}


@runs.workflow(version="1")
async def nap(ctx: runs.Context) -> str:
    await ctx.sleep(hours=2)
    return "awake"


@runs.workflow()
async def bulky(ctx: runs.Context) -> int:
    return len(await ctx.step("fetch", bytes, 40_000))


class RunsDesk(Desk):
    noun = ("runs",)

    def start(self, workflow: runs.Workflow, *args: Any, **kwargs: Any) -> runs.Outcome:
        return self.do(lambda store: workflow.start(store, *args, **kwargs))

    def ship(self, run_id: str, **kwargs: Any) -> runs.Outcome:
        """An order from its beginning to its end."""
        self.start(order, "hat", run_id=run_id, **kwargs)
        return self.do(lambda store: order.resume(store, run_id, "payment", 5))

    def work(self) -> int:
        """Everything that is due, as a worker would."""
        return self.do(lambda store: runs.worker(store, [order, nap, bulky], until_idle=True)).called

    def documents(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.text(*words).splitlines()]


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunsDesk:
    return RunsDesk(tmp_path, capsys)


class TestList:
    def test_a_run_that_the_code_does_not_fit_any_more_says_so(self, desk: RunsDesk) -> None:
        @runs.workflow(version="2", name="order")
        async def changed(ctx: runs.Context, item: str) -> None: ...

        desk.start(order, "hat", run_id="stuck")
        with pytest.raises(runs.VersionMismatch):
            desk.start(changed, "hat", run_id="stuck")
        assert "an operator: VersionMismatch" in desk.text("list")
        status = desk.text("status", "stuck")
        assert re.search(
            r"blocked +the latest call ended in VersionMismatch: run stuck was started by version 1", status
        )
        assert re.search(r"to do +finish it with version 1, or fork it", status)


class TestDump:
    def test_earlier_generations(self, desk: RunsDesk) -> None:
        @runs.workflow()
        async def loop(ctx: runs.Context, turn: int) -> int:
            await ctx.step("turn", lambda: turn)
            if turn < 3:
                ctx.continue_as_new(turn + 1)
            return turn

        desk.start(loop, 1, run_id="r")
        turns = [desk.documents("dump", "r", "--generation", str(number))[1]["result"] for number in range(3)]
        assert turns == [1, 2, 3]
        assert desk.documents("dump", "r") == desk.documents("dump", "r", "--generation", "2")
        assert "has no generation 3" in desk.text("dump", "r", "--generation", "3", code=4)

    def test_a_damaged_journal_is_reported_with_its_offset(self, desk: RunsDesk) -> None:
        desk.ship("r")

        async def damage(store: Client) -> bytes:
            found = await store.get("runs/r/journal.jsonl")
            lines = found.body.splitlines(keepends=True)
            await store.put("runs/r/journal.jsonl", b"".join([*lines[:3], b"{broken\n", *lines[4:]]))
            return found.body

        desk.do(damage)
        for command in (["dump", "r"], ["status", "r"], ["tail", "r"]):
            assert "error: runs/r/journal.jsonl: line 4 (offset 3): not JSON" in desk.text(*command, code=11)


class TestReindex:
    def test_damaged_journals_are_named_and_do_not_stop_it(self, desk: RunsDesk) -> None:
        desk.ship("a")
        desk.do(lambda store: store.put("runs/b/journal.jsonl", b"nonsense\n"))
        shown = desk.text("reindex", code=11)
        assert "1 run; " in shown
        assert "b cannot be read: runs/b/journal.jsonl: line 1 (offset 0): not JSON" in shown
        assert "error: 1 journal cannot be read, the first: b" in shown


class TestResume:
    def test_an_event_that_comes_early(self, desk: RunsDesk) -> None:
        desk.start(nap, run_id="n")
        reported = desk.json("resume", "n", "payment")
        assert (reported["status"], reported["waiting"], reported["event"]) == ("sleeping", False, "payment")
        assert "which waits for sleep; the event is kept" in desk.text("resume", "n", "other", "1")
        assert "does not exist" in desk.text("resume", "r", "payment", "5", code=4)

    def test_an_answer_that_is_given_twice_answers_one_question(self, desk: RunsDesk) -> None:
        @runs.workflow()
        async def four_eyes(ctx: runs.Context) -> Any:
            return [await ctx.suspend("approval"), await ctx.suspend("approval")]

        desk.start(four_eyes, run_id="f")
        assert "delivered approval to f, which waits for it" in desk.text("resume", "f", "approval", "true")
        assert "approval was already delivered to f" in desk.text("resume", "f", "approval", "true")
        assert desk.json("resume", "f", "approval", "true")["again"]
        desk.do(lambda store: runs.worker(store, [four_eyes], until_idle=True))
        assert desk.json("status", "f")["status"] == "suspended"


class TestDelete:
    def test_a_fork_does_not_need_its_source(self, desk: RunsDesk) -> None:
        desk.start(bulky, run_id="r")
        desk.text("fork", "r", "--after-step", "fetch", "--new-run-id", "f")
        assert "r was deleted" in desk.text("delete", "r")
        assert desk.work() == 1
        assert desk.json("status", "f")["result"] == 40_000

    def test_all_that_ended_long_ago(self, desk: RunsDesk, monkeypatch: pytest.MonkeyPatch) -> None:
        desk.ship("a")
        desk.start(order, "hat", run_id="failed", broken=True)
        desk.do(lambda store: order.resume(store, "failed", "payment", 5))
        desk.start(order, "hat", run_id="open")
        assert desk.text("delete", "--older-than", "1d", "--yes") == "0 of 0 runs deleted\n"
        shown = desk.text("delete", "--older-than", "0s", "--dry-run")
        assert [line.split()[0] for line in shown.splitlines()] == ["run", "failed", "a", "2"]
        assert shown.endswith("2 runs would be deleted\n")
        assert [run["run_id"] for run in desk.json("delete", "--older-than", "0s", "--dry-run")] == ["failed", "a"]
        assert desk.text("delete", "a", "--dry-run") == "a would be deleted\n1 of 1 run would be deleted\n"
        shown = desk.text("delete", "open", "a", "--dry-run", code=7)
        assert "open would be left: run open is suspended\na would be deleted\n1 of 2 runs would be deleted\n" in shown
        assert "open would be deleted" in desk.text("delete", "open", "--force", "--dry-run")
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        shown = desk.text("delete", "--older-than", "0s", code=7)
        assert shown.startswith("error: Delete 2 runs for good? Standard input is no terminal")
        assert shown.endswith("hint: add --yes\n")
        assert len(desk.json("list")) == 3
        shown = desk.text("delete", "--older-than", "0s", "--status", "failed", "--yes")
        assert shown == "failed was deleted\n1 of 1 run deleted\n"
        assert desk.json("delete", "--older-than", "0s", "--yes")[0]["run_id"] == "a"
        assert [run["run_id"] for run in desk.json("list")] == ["open"]

    @pytest.mark.parametrize(("answer", "left", "code"), [("n\n", 1, 1), ("y\n", 0, 0)])
    def test_it_asks(self, desk: RunsDesk, monkeypatch: pytest.MonkeyPatch, answer: str, left: int, code: int) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        desk.ship("a")
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        shown = desk.text("delete", "--older-than", "0s", code=code)
        assert "Delete 1 run for good? [y/N]: " in shown
        assert len(desk.json("list")) == left


def test_a_follower_can_be_interrupted(desk: RunsDesk) -> None:
    desk.start(order, "hat", run_id="r")
    command = [sys.executable, "-m", "holdfast", "runs", "tail", "r", "--interval", "0.01", "--store", desk.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split()[3:] for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert lines == [["start", "order"], ["step", "reserve", "=", '"HAT"'], ["suspend", "payment"]]
    assert (process.returncode, rest) == (130, "")
