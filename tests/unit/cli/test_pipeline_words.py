"""What ``holdfast pipeline`` refuses before it begins: in a line with what to do, and without a run on record."""

import json
import socket
from pathlib import Path

import pytest

from holdfast import pipeline
from holdfast.base.errors import Invalid
from holdfast.cli.main import run
from holdfast.objects.open import open_store

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
        (("run", "audit", "--since", "1h"), "--since means nothing to audit\nhint: leave it out, or name a job"),
        (("run", "gc", "--until", "1h"), "--until means nothing to gc"),
        (("run", "feed", "--since", "1h"), "name a job that takes it: reconcile, rollup, merge, index"),
        (
            ("run", "merge", "--full"),
            "--full means nothing to merge\nhint: leave it out, or name a job that takes it: rec",
        ),
        (("run", "audit", "--inventory", "x"), "--events or --inventory means nothing to audit"),
        (("run", "reconcile", "--settle", "1m"), "--settle means nothing to reconcile"),
        (("plan", "feed", "--since", "1h"), "--since means nothing to feed"),
        (
            ("run", "--conf", "spark.a=b", "--master", "inline"),
            "--conf spark.a=b is about Spark, and inline is without it",
        ),
        (("run", "rolup"), "there is no job 'rolup'"),
        (("history", "rolup"), "there is no job 'rolup'\nhint: did you mean rollup?"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, capsys: Capture, words: tuple[str, ...], told: str) -> None:
    assert run(["pipeline", *words, "--store", f"file:{tmp_path}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err
    assert not (tmp_path / "store" / "runs").exists()


def test_without_java_no_run_begins(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(["pipeline", "run", "--store", f"file:{tmp_path}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: Spark needs Java, and there is none\nhint: install Java 17 or newer")
    assert not (tmp_path / "store" / "runs").exists()


def test_a_master_that_is_not_there_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        assert run(["pipeline", "run", "--master", master, "--store", f"file:{tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {master}: nobody answers there")
    assert not (tmp_path / "store" / "runs").exists()


def test_gc_beside_other_jobs_is_refused_where_it_has_credentials_of_its_own(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GC__ACCESS_KEY_ID", "gc")
    monkeypatch.setenv("HOLDFAST_GC__SECRET_ACCESS_KEY", "secret")
    assert run(["pipeline", "run", "reconcile", "gc", "--store", f"file:{tmp_path}"]) == 2
    assert "hint: run it alone: holdfast pipeline run gc" in capsys.readouterr().err


def test_an_audit_is_as_deep_and_as_wide_as_it_is_told(tmp_path: Path, capsys: Capture) -> None:
    words = ["pipeline", "run", "audit", "--deep", "--scope", "runs", "--scope", "bus", "--master", "inline"]
    store = ["--store", f"file:{tmp_path}"]
    assert run([*words, *store, "--json"]) == 0
    [ran] = json.loads(capsys.readouterr().out)
    assert run(["audit", "show", ran["audit_id"], *store, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["scopes"], record["one_in"]) == (["runs", "bus"], 1)


async def test_what_no_job_takes_of_a_request_is_refused() -> None:
    async with open_store("memory:") as store:
        with pytest.raises(Invalid, match="sinc_ns means nothing to reconcile, rollup, merge, index, feed"):
            await pipeline.run(store, request={"sinc_ns": 1})
        with pytest.raises(Invalid, match="full means nothing to merge"):
            await pipeline.run(store, ["merge"], request={"full": True})
        assert await pipeline.run(store, ["merge"], request={"full": None}) == []


@pytest.mark.parametrize("setting", ["7s=30d", "10s=soon", "0s=1d", "90m=1d"])
def test_a_retention_of_what_can_be_no_window_is_refused(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("HOLDFAST_RETENTION__ROLLUPS", setting)
    for words in (("gc", "plan"), ("pipeline", "run", "--master", "inline")):
        assert run([*words, "--store", f"file:{tmp_path}"]) == 2
        assert f"retention.rollups: {setting!r}: " in capsys.readouterr().err
