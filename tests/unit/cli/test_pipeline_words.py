"""What ``holdfast pipeline`` refuses before it begins: in a line with what to do, and without a run on record."""

import json
import socket
from pathlib import Path

import pytest

from holdfast.cli.main import run

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "--since", "1h", "--until", "2h", "--master", "inline"), "the range ends before it begins"),
        (("plan", "--since", "1h", "--until", "2h"), "the range ends before it begins"),
        (("run", "--every", "0s", "--master", "inline"), "--every leaves a pause of 0 s"),
        (("run", "--every", "1m", "--full"), "--every takes whatever is due, and --full is for one run"),
        (("run", "--every", "1m", "--since", "1h"), "and --since is for one run"),
        (("run", "--metrics", "127.0.0.1:0", "--master", "inline"), "--metrics is there between rounds"),
        (("run", "--deep"), "--deep and --scope are about an audit"),
        (("run", "reconcile", "--scope", "ingest"), "name the job: holdfast pipeline run audit"),
        (("run", "audit", "--scope", "everything"), "there is nothing called 'everything' to audit"),
        (("run", "audit", "--deep", "--every", "1h"), "and --deep is for one run"),
        (("run", "rolup"), "there is no job 'rolup'"),
        (("history", "rolup"), "there is no job 'rolup'\nhint: did you mean rollup?"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, capsys: Capture, words: tuple[str, ...], told: str) -> None:
    assert run(["pipeline", *words, "--store", f"file:{tmp_path / 'store'}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err
    assert not (tmp_path / "store" / "runs").exists()


def test_without_java_no_run_begins(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(["pipeline", "run", "--store", f"file:{tmp_path / 'store'}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: Spark needs Java, and there is none\nhint: install Java 17 or newer")
    assert not (tmp_path / "store" / "runs").exists()


def test_a_master_that_is_not_there_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        assert run(["pipeline", "run", "--master", master, "--store", f"file:{tmp_path / 'store'}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {master}: nobody answers there")
    assert not (tmp_path / "store" / "runs").exists()


def test_gc_beside_other_jobs_is_refused_where_it_has_credentials_of_its_own(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GC__ACCESS_KEY_ID", "gc")
    monkeypatch.setenv("HOLDFAST_GC__SECRET_ACCESS_KEY", "secret")
    assert run(["pipeline", "run", "reconcile", "gc", "--store", f"file:{tmp_path / 'store'}"]) == 2
    assert "hint: run it alone: holdfast pipeline run gc" in capsys.readouterr().err


def test_an_audit_is_as_deep_and_as_wide_as_it_is_told(tmp_path: Path, capsys: Capture) -> None:
    words = ["pipeline", "run", "audit", "--deep", "--scope", "runs", "--scope", "bus", "--master", "inline"]
    store = ["--store", f"file:{tmp_path / 'store'}"]
    assert run([*words, *store, "--json"]) == 0
    [ran] = json.loads(capsys.readouterr().out)
    assert run(["audit", "show", ran["audit_id"], *store, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["scopes"], record["one_in"]) == (["runs", "bus"], 1)
