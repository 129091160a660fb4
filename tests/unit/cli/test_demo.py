"""``holdfast demo``: its claims are checked, a false one fails the command, and nothing is left behind."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import HoldfastError
from holdfast.cli.demo import witness
from holdfast.cli.demo.acts import Fleet, check_steps, victim
from holdfast.cli.demo.stage import Stage
from holdfast.cli.main import run
from holdfast.cli.output import Output
from holdfast.telemetry import Gauge

Capture = pytest.CaptureFixture[str]
SECOND_NS = 10**9


def stage_in(folder: Path) -> tuple[Stage, io.StringIO]:
    stdout = io.StringIO()
    return Stage(Output(as_json=False, stdout=stdout), folder, folder), stdout


@pytest.mark.timeout(600)  # of Spark, which starts twice, on a machine that may be busy
@pytest.mark.parametrize("master", ["local", pytest.param("local[2]", marks=pytest.mark.soak)])
def test_all_claims_hold(tmp_path: Path, capsys: Capture, master: str) -> None:
    folder = tmp_path / "kept"
    assert run(["demo", "--json", "--dir", str(folder), "--master", master]) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert len(set(report["claims"])) == len(report["claims"]) > 15
    assert sum(report["requests"].values()) > 100
    assert 0 < report["dollars"] < 0.1
    assert shown.err == ""
    assert {path.name for path in folder.iterdir()} >= {"runs", "accepted", "rollup", "commits", "claims"}


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


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine").write_text("precious")
    assert run(["demo", "--master", "local", "--dir", str(tmp_path)]) == 7
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} is not an empty folder\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_ctrl_c_ends_its_processes_and_removes_its_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo", "--master", "local"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "two collectors listen" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert len(process.stderr.read().splitlines()) <= 1
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.iterdir()) == []


class TestClaims:
    def test_one_that_does_not_hold_fails_with_exit_code_1(self, tmp_path: Path) -> None:
        stage, stdout = stage_in(tmp_path)
        with pytest.raises(HoldfastError, match="this does not hold: water is dry; found: wet") as caught:
            stage.check("water is dry", False, "wet")
        assert caught.value.exit_code == 1
        assert stdout.getvalue() == "  FAILED  water is dry\n"
        assert stage.claims == []

    @pytest.mark.parametrize("ran", [["a"], ["a", "b", "b", "b"], ["a", "b", "c"]], ids=" ".join)
    def test_steps_that_are_missing_repeated_or_unknown(self, tmp_path: Path, ran: list[str]) -> None:
        with pytest.raises(HoldfastError, match="this does not hold"):
            check_steps(stage_in(tmp_path)[0], ran, {"a", "b"}, 1)

    async def test_what_a_killed_process_printed_before_its_end_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "chatty.py").write_text("import time\nprint('a\\nb\\nc', flush=True)\ntime.sleep(60)\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        stage, _ = stage_in(tmp_path)
        start = stage.process
        monkeypatch.setattr(stage, "process", lambda name, *_: start(name, "chatty"))
        assert await victim(stage, "run", 1) == (["a", "b", "c"], {})

    async def test_a_process_that_fails_is_reported_with_its_last_line(self, tmp_path: Path) -> None:
        stage, _ = stage_in(tmp_path)
        async with stage.process("victim", "holdfast.cli.nothing") as process:
            with pytest.raises(
                HoldfastError, match=r"^the victim failed with exit code 1: .*No module named holdfast\.cli\."
            ):
                await process.succeed()


class TestWitness:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """One batch and the rollup of its two samples, as files."""
        for place in ("accepted/v1/agent=61/boot=62", "manifests/v1/date=2026-01-31/hour=12", "rollup", "raw"):
            (tmp_path / place).mkdir(parents=True)
        (tmp_path / "raw/a").write_bytes(b"frame")
        manifest = {"agent_id": "web-1", "seq_start": 0, "seq_end": 1, "raw_blob_key": "raw/a"}
        manifest["frame_sha256"] = hashlib.sha256(b"frame").hexdigest()
        (tmp_path / "accepted/v1/agent=61/boot=62/0-1.json").write_text(json.dumps(manifest))
        row = {"metric": "load", "agent": "web-1", "count": 2, "sum": 3.0, "min": 1.0, "max": 2.0}
        start = pa.array([0], pa.timestamp("us", tz="UTC"))
        table = pa.table({name: [value] for name, value in row.items()}).append_column("window_start", start)
        pq.write_table(table, tmp_path / "rollup/chunk")
        units = [{"chunks": [{"table": "rollup", "window": window, "key": "rollup/chunk"} for window in ("1m", "1h")]}]
        generation = tmp_path / "manifests/v1/date=2026-01-31/hour=12/rollup-00000001.json"
        generation.write_text(json.dumps({"units": units}))
        return tmp_path

    def test_it_finds_what_was_sent_and_a_lost_sample(self, root: Path) -> None:
        sent = Fleet("token", {"web-1": [Gauge("load", 1.0, SECOND_NS), Gauge("load", 2.0, 2 * SECOND_NS)]})
        assert set(witness.batches(root)) == {("web-1", 0, 1)}
        assert witness.rolled_up(root) == witness.sums(sent)
        fewer = Fleet("token", {"web-1": [Gauge("load", 1.0, SECOND_NS)]})
        assert witness.rolled_up(root) != witness.sums(fewer)

    def test_a_row_that_is_there_twice_is_not_one(self, root: Path) -> None:
        (path,) = root.glob("manifests/v1/*/*/*.json")
        generation = json.loads(path.read_bytes())
        path.write_text(json.dumps({"units": generation["units"] * 2}))
        assert all(len(figures) == 8 for figures in witness.rolled_up(root).values())

    def test_a_batch_whose_bytes_have_changed_is_not_counted(self, root: Path) -> None:
        (root / "raw/a").write_bytes(b"other")
        assert set(witness.batches(root)) == set()
