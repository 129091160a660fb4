"""``holdfast runs tail``: a live run, followed by a process of its own."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import runs
from tests.unit.cli.runs_desk import RunsDesk, desk_in, order


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> RunsDesk:
    return desk_in(tmp_path, capsys)


def test_a_live_run_over_sealing_and_continue_as_new(desk: RunsDesk) -> None:
    """Every entry comes once and in order, in whatever pieces the follower happens to see."""

    @runs.workflow()
    async def chatter(ctx: runs.Context, turn: int) -> int:
        await ctx.suspend("go")
        for _ in range(40):
            await ctx.step("word", lambda: "x" * 1000)
        if turn == 1:
            ctx.continue_as_new(2)
        return turn

    def answer(number: int) -> runs.Outcome:
        return desk.do(lambda store: chatter.resume(store, "r", "go", number))

    assert desk.start(chatter, 1, run_id="r").status == "suspended"
    with _tail(desk, "--json") as process:
        assert process.stdout is not None
        seen: list[dict[str, object]] = []
        for number, status in enumerate(("suspended", "success")):
            while not seen or seen[-1]["type"] != "suspend":
                seen.append(json.loads(process.stdout.readline()))
            assert answer(number).status == status
            seen.append(json.loads(process.stdout.readline()))
        seen += [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    first = desk.documents("dump", "r", "--generation", "0")
    second = desk.documents("dump", "r")
    assert len(first) > 40
    assert seen == first + second


def test_a_follower_can_be_interrupted(desk: RunsDesk) -> None:
    desk.start(order, "hat", run_id="r")
    with _tail(desk) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert (process.returncode, rest) == (130, "")


def _tail(desk: RunsDesk, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "holdfast", "runs", "tail", "r", "--interval", "0.01", "--store", desk.uri]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
