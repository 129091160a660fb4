"""What ``holdfast pipeline`` refuses before it begins: in a line with what to do, and without a run on record."""

import socket
from pathlib import Path

import pytest

from holdfast import pipeline
from holdfast.base.errors import Invalid
from holdfast.cli.main import run
from holdfast.objects.open import open_store

Capture = pytest.CaptureFixture[str]


def test_a_master_that_is_not_there_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        assert run(["pipeline", "run", "--master", master, "--store", f"file:{tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {master}: no Spark master answers there")
    assert not (tmp_path / "store" / "runs").exists()


def test_gc_beside_other_jobs_is_refused_where_it_has_credentials_of_its_own(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GC__ACCESS_KEY_ID", "gc")
    monkeypatch.setenv("HOLDFAST_GC__SECRET_ACCESS_KEY", "secret")
    assert run(["pipeline", "run", "reconcile", "gc", "--store", f"file:{tmp_path}"]) == 2
    assert "hint: run it alone: holdfast pipeline run gc" in capsys.readouterr().err


async def test_what_no_job_takes_of_a_request_is_refused() -> None:
    async with open_store("memory:") as store:
        with pytest.raises(Invalid, match="sinc_ns means nothing to reconcile, derive, feed"):
            await pipeline.run(store, request={"sinc_ns": 1})
        with pytest.raises(Invalid, match="full means nothing to derive"):
            await pipeline.run(store, ["derive"], request={"full": True})
        assert await pipeline.run(store, ["derive"], request={"full": None}) == []


@pytest.mark.parametrize("setting", ["7s=30d", "10s=soon", "0s=1d", "90m=1d"])
def test_a_retention_of_what_can_be_no_window_is_refused(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("HOLDFAST_RETENTION__ROLLUPS", setting)
    for words in (("gc", "plan"), ("pipeline", "run", "--master", "local")):
        assert run([*words, "--store", f"file:{tmp_path}"]) == 2
        assert f"retention.rollups: {setting!r}: " in capsys.readouterr().err
