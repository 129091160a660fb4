"""``holdfast demo``: every act proves something, a failed proof fails the command, nothing is left behind."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.base import codec
from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.cli.acts import bill, kill, lease, lost, race, runs
from holdfast.cli.acts.programme import ACTS
from holdfast.cli.acts.stage import Act, ProofFailed, Stage, prove
from holdfast.cli.demo import run_demo
from holdfast.cli.main import run
from holdfast.cli.output import Output
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.register import Edited, Register
from holdfast.objects.uri import StoreSpec

Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def stage_in(folder: Path, kind: type[Stage] = Stage) -> Stage:
    return kind(StoreSpec.parse(f"file:{folder}"), Ambient.system())


@pytest.mark.timeout(600)  # it starts Spark twice, and collectors, and is to end well on a machine that is busy
def test_all_acts_are_proven(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "kept"
    assert run(["demo", "--json", "--dir", str(folder)]) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert report["ok"] is True
    assert [act["act"] for act in report["acts"]] == [act.title for act in ACTS]
    assert all(act["ok"] for act in report["acts"])
    assert sum(report["requests"].values()) > 1_000
    assert 0 < report["dollars"] < 0.1
    assert shown.err == ""
    whole_way = [act for act in report["acts"] if act["act"] == "The pipeline is killed, and goes on"]
    assert any("another driver goes on with" in line for line in whole_way[0]["told"])
    kept = {path.name for path in (folder / "demo").iterdir()}
    assert {"race", "kill", "lease", "bill"} <= kept


def test_without_java_it_says_so_before_it_begins(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(["demo", "--dir", str(tmp_path / "kept")]) != 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: Spark needs Java, and there is none\nhint: install Java 17 or newer")
    assert not (tmp_path / "kept").exists()


class Script:
    """A programme of the test's own."""

    def __init__(self) -> None:
        self.played: list[str] = []

    async def good(self, stage: Stage) -> str:
        self.played.append("good")
        async with stage.open() as store:
            await store.put("demo/x", b"{}")
        return "it held"

    async def bad(self, stage: Stage) -> str:
        self.played.append("bad")
        prove(len(self.played) > 9, "one is not more than nine")
        return "not reached"

    async def trouble(self, stage: Stage) -> str:
        self.played.append("trouble")
        raise Unavailable("the disk is full")

    def acts(self, *names: str) -> list[Act]:
        return [Act(name.title(), f"why {name}", getattr(self, name)) for name in names]


def play(folder: Path, acts: list[Act], *, as_json: bool = False, terminal: bool = False) -> tuple[str, str]:
    stdout, stderr = io.StringIO(), Terminal() if terminal else io.StringIO()
    out = Output(as_json=as_json, stdout=stdout, stderr=stderr)
    try:
        asyncio.run(run_demo(out, folder, acts=acts))
    finally:
        play.shown = stdout.getvalue(), stderr.getvalue()  # type: ignore[attr-defined]  # for calls that raise
    return stdout.getvalue(), stderr.getvalue()


class TestProgramme:
    def test_each_act_is_told_with_its_reason_and_its_figure(self, tmp_path: Path) -> None:
        stdout, stderr = play(tmp_path, Script().acts("good", "good"))
        assert stdout.splitlines()[1:-1] == [
            *("", "1/2  Good", "     why good", "     proven: it held"),
            *("", "2/2  Good", "     why good", "     proven: it held"),
            "",
        ]
        assert stdout.splitlines()[-1].startswith("All 2 proofs hold, in ")
        assert stderr == ""

    def test_a_failed_proof_fails_the_command_after_the_other_acts(self, tmp_path: Path) -> None:
        script = Script()
        with pytest.raises(HoldfastError, match="2 of 3 proofs failed: Bad, Trouble") as caught:
            play(tmp_path, script.acts("bad", "trouble", "good"))
        assert caught.value.exit_code == 1
        assert script.played == ["bad", "trouble", "good"]
        shown = play.shown[0]  # type: ignore[attr-defined]  # see above
        assert "     FAILED: one is not more than nine\n" in shown
        assert "     FAILED: Unavailable: the disk is full\n" in shown
        assert "proofs hold" not in shown

    def test_the_bill_is_the_sum_of_all_acts(self, tmp_path: Path) -> None:
        stdout, _ = play(tmp_path, Script().acts("good", "good"), as_json=True)
        # Each opening reads the format once, and each act writes once.
        assert json.loads(stdout)["requests"] == {"get": 2, "put": 2}

    def test_a_terminal_shows_what_is_going_on(self, tmp_path: Path) -> None:
        _, stderr = play(tmp_path, Script().acts("good"), terminal=True)
        assert "Good" in stderr
        assert "why good" in stderr

    def test_a_folder_in_use_is_refused(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "mine").write_text("precious")
        assert run(["demo", "--dir", str(tmp_path)]) == 7
        assert capsys.readouterr().err.startswith(f"error: {tmp_path} is not an empty folder\n")
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]


class Sabotaged(Stage):
    """Somebody takes one from every counter before it is looked at."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Client]:
        async with open_store(self.spec, ambient=self.ambient) as store:
            async for key in store.keys("demo/"):
                document = codec.decode((await store.get(key)).body, key=key)
                document["value"] -= 1
                await store.put(key, codec.encode(document))
            yield store


class TestProofsCanFail:
    async def test_a_sum_that_is_one_short(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(race, "PROCESSES", 2)
        monkeypatch.setattr(race, "TURNS", 3)
        with pytest.raises(ProofFailed, match="6 increments were acknowledged, the counter says 5"):
            await race.exact_sum(stage_in(tmp_path, Sabotaged))

    async def test_an_acknowledged_increment_that_is_gone(self, tmp_path: Path) -> None:
        class TakesTwenty(Sabotaged):
            @asynccontextmanager
            async def open(self) -> AsyncIterator[Client]:
                for _ in range(20):  # more than may have landed without a word
                    async with super().open():
                        pass
                async with open_store(self.spec, ambient=self.ambient) as store:
                    yield store

        with pytest.raises(ProofFailed, match="increments were acknowledged, the counter says"):
            await kill.nothing_lost(stage_in(tmp_path, TakesTwenty))

    async def test_a_process_that_fails_is_heard(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(ProofFailed, match=r"process process-1 said ''.*; .*"):
            await race.exact_sum(stage_in(tmp_path / "file"))

    async def test_a_run_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(ProofFailed, match="the run's process ended by itself; "):
            await runs.survives(stage_in(tmp_path / "file"))

    async def test_a_turn_that_was_not_recorded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "KILLS", 0)
        monkeypatch.setattr(runs, "TURNS", 31)
        with pytest.raises(ProofFailed, match="the run says 465"):
            await runs.survives(stage_in(tmp_path))

    async def test_an_edit_that_costs_more(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Forgetful(Register[int]):
            async def edit(self, operation_id: str, change: Any) -> Edited[int]:
                self._last = None
                return await super().edit(operation_id, change)

        monkeypatch.setattr(bill, "Register", Forgetful)
        with pytest.raises(ProofFailed, match="100 edits cost 100 GETs"):
            await bill.requests(stage_in(tmp_path))


class TestActs:
    async def test_lost_responses(self, tmp_path: Path) -> None:
        stage = stage_in(tmp_path)
        figure = await lost.settled(stage)
        assert figure == "a bare client takes 20 of its own 20 writes for lost races; ours counts 40 exactly"
        assert stage.spent["put"] > 60

    async def test_the_lease(self, tmp_path: Path) -> None:
        assert (await lease.old_owner_fenced(stage_in(tmp_path))).startswith("epoch 1 to 2;")


def test_ctrl_c_ends_its_processes_and_removes_its_folder(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo", "--master", "inline"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.startswith("1/"):
                break
        me = psutil.Process(process.pid)
        while not (children := me.children()):  # the second act starts processes
            assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert len(process.stderr.read().splitlines()) <= 1
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.iterdir()) == []
