"""``holdfast pipeline`` on a store in a folder, through the real command, without Spark."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from holdfast.cli.main import run
from holdfast.objects import Client
from holdfast.pipeline.errors import SparkFailed
from holdfast.telemetry.accept.layout import ACCEPTED_BY_TIME
from tests.unit.cli.desk import Desk
from tests.unit.pipeline.field import Field


class PipelineDesk(Desk):
    noun = ("pipeline",)

    def fill(self, seed: int, gap: int = 0, *, refer: bool = True) -> list[str]:
        """Accept batches; keys of their manifests. Without ``refer``, as a collector that died right after."""

        async def work(store: Client) -> list[str]:
            field = Field(store)
            await field.season(seed, agents=2, batches=3, gap=gap)
            if not refer:
                await store.delete_many([key async for key in store.keys(ACCEPTED_BY_TIME)])
            return [each.key for each in field.manifests]

        return self.do(work)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> PipelineDesk:
    return PipelineDesk(tmp_path, capsys)


def test_run_says_what_every_job_read_and_wrote(desk: PipelineDesk) -> None:
    desk.fill(1)
    ran = desk.json("run", "--master", "local")
    assert [(each["job"], each["status"]) for each in ran] == [
        ("reconcile", "success"),
        ("derive", "success"),
        ("feed", "success"),
    ]
    assert ran[0]["batches"] == 6
    assert ran[1]["records"] > 0
    assert len(ran[1]["hours"]) > 0  # the day is none of the hours
    assert ran[1]["days"] >= 1
    code, out, err = desk("run", "--master", "local")
    assert code == 0
    assert re.fullmatch(r"running reconcile, derive, feed for file:\S+ in this process\nnothing was due\n", err)
    assert out == ""


def test_a_plan_shows_what_would_be_done_and_does_nothing(desk: PipelineDesk) -> None:
    desk.fill(2)
    assert desk.json("plan") == [
        {"job": "reconcile", "hour": "", "generation": 0, "units": 0, "to_make": 0, "inputs": 6}
    ]
    desk.json("run", "reconcile", "--master", "local")
    planned = desk.json("plan", "derive")
    assert {each["job"] for each in planned} == {"rollup"}
    assert all(each["to_make"] == 1 for each in planned)
    desk.json("run", "--master", "local")
    code, _, err = desk("plan")
    assert (code, err) == (0, "nothing is due\n")


def test_the_plan_of_an_audit_is_its_queries_as_the_engine_would_run_them(desk: PipelineDesk) -> None:
    desk.fill(2)
    steps = desk.json("plan", "audit", "--master", "local")
    assert [each["step"] for each in steps] == ["objects", "claims", "findings", "record"]
    assert "accepted/v1/" in steps[0]["does"]
    assert "claims ANTI JOIN objects" in steps[2]["sql"]
    assert "ANTI" in steps[2]["plan"]
    code, out, err = desk("plan", "audit", "--master", "local")
    assert (code, err) == (0, "")
    assert out.startswith("-- objects: list ")
    assert desk.json("history") == []
    code, _, err = desk("plan", "--master", "local")
    assert code == 2
    assert "the plan of one job" in err


@pytest.mark.parametrize(
    ("job", "steps", "looked_at", "sql", "plan"),
    [
        ("gc", "objects subjects named swept", "swept", "blobs ANTI JOIN referred", "ANTI"),
        ("reconcile", "found looked again around others listed written", "others", "max(seq_end) OVER", "WINDOW"),
        ("derive", "current_units listed places units late day_units", "units", "JOIN places ON", "JOIN"),
    ],
)
def test_the_plan_of_a_job_is_its_queries_as_the_engine_would_run_them(
    desk: PipelineDesk, job: str, steps: str, looked_at: str, sql: str, plan: str
) -> None:
    desk.fill(2)
    planned = {each["step"]: each for each in desk.json("plan", job, "--master", "local")}
    assert list(planned) == steps.split()
    assert sql in planned[looked_at]["sql"]
    assert plan in planned[looked_at]["plan"]
    assert desk.json("history") == []


def test_a_file_that_is_no_notification_is_named_and_the_others_are_taken(desk: PipelineDesk, tmp_path: Path) -> None:
    keys = desk.fill(2, refer=False)
    folder = tmp_path / "events"
    folder.mkdir()
    for name, key in zip(("a.json", "c.json"), keys, strict=False):
        record = {"eventName": "ObjectCreated:Put", "s3": {"object": {"key": quote_plus(key)}}}
        (folder / name).write_text(json.dumps({"Records": [record]}))
    (folder / "b.json").write_text("rubbish")
    (folder / "d.json").write_text('{"hello": 1}')
    code, out, err = desk("run", "reconcile", "--events", str(folder), "--master", "local", "--json")
    assert (code, json.loads(out)[0]["looked_at"]) == (2, 2)
    reported = json.loads(err)["error"]["message"]
    assert f"skipped, the others were reconciled: {folder / 'b.json'}: neither" in reported
    assert f"; {folder / 'd.json'}: no notification of S3" in reported


def test_the_end_of_a_time_alone_is_a_time_too(desk: PipelineDesk) -> None:
    desk.fill(2)
    [ran] = desk.json("run", "reconcile", "--until", "1990-01-01", "--master", "local")
    assert ran["looked_at"] == 0
    [ran] = desk.json("run", "reconcile", "--until", "1m", "--master", "local")
    assert ran["batches"] == 6


def test_status_and_history(desk: PipelineDesk) -> None:
    assert desk.json("status")["lag_s"] is None
    desk.fill(3)
    desk.json("run", "reconcile", "--master", "local")
    found = desk.json("status")
    assert found["lag_s"] >= 0
    assert found["due"]["rollup"] != []
    desk.json("run", "--master", "local")
    assert desk.json("status")["due"] == {"rollup": [], "daily": []}
    jobs = [each["job"] for each in desk.json("history")]
    assert sorted(jobs) == ["derive", "feed", "reconcile"]
    [rollup] = desk.json("history", "derive")
    assert (rollup["status"], rollup["sessions"]) == ("success", 1)
    code, out, _ = desk("status")
    assert code == 0
    assert "rollup due" in out


def test_missing_java_is_one_clear_line_and_no_run_on_record(
    desk: PipelineDesk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    desk.fill(5)
    code, out, err = desk("run")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: Java cannot be run at {tmp_path}")
    assert "--master local" in err
    assert desk.json("history") == []
    assert [each["status"] for each in desk.json("run", "--master", "local")] == ["success"] * 3


def test_a_store_in_memory_cannot_be_sparks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--store", "memory:", "pipeline", "run", "--master", "local[1]"]) == 2
    assert "--master local" in capsys.readouterr().err


def test_as_a_service_it_serves_figures_and_ends_when_asked(desk: PipelineDesk, tmp_path: Path) -> None:
    desk.fill(4)
    command = [sys.executable, "-m", "holdfast", "--store", desk.uri, "pipeline", "run", "--master", "local"]
    service = subprocess.Popen(
        [*command, "--every", "1s", "--settle", "0s", "--metrics", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert service.stdout is not None
    assert service.stderr is not None
    try:
        address = re.search(r"http://(\S+)/metrics", service.stderr.readline())
        assert address is not None
        lines = [service.stdout.readline() for _ in range(3)]  # the table of the first round: its head, and two jobs
        assert [line.split()[0] for line in lines] == ["job", "reconcile", "derive"]
        figures = ""
        while "holdfast_pipeline_lag_seconds " not in figures:  # the first round scans everything, the next by time
            time.sleep(0.1)
            with urllib.request.urlopen(f"http://{address[1]}/metrics", timeout=60) as answer:
                figures = answer.read().decode()
        with urllib.request.urlopen(f"http://{address[1]}/health", timeout=60) as answer:
            health = json.loads(answer.read())
    finally:
        service.send_signal(signal.SIGTERM)
        service.communicate(timeout=100)
    assert service.returncode == 0
    assert 'holdfast_pipeline_runs_total{job="derive",status="success"} 1.0' in figures
    counted = re.search(r'holdfast_pipeline_batches_total{job="reconcile"} ([0-9.]+)', figures)
    assert counted is not None
    assert float(counted[1]) >= 6
    assert health["healthy"] is True


def test_the_start_of_spark_and_a_wrong_master_are_said_at_once(
    desk: PipelineDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(master: str, *_: object, **__: object) -> None:
        raise SparkFailed(f"{master} is down")

    monkeypatch.setattr("holdfast.pipeline.engine.session.check_ready", lambda _: None)
    monkeypatch.setattr("holdfast.pipeline.engine.session.start", start)
    assert "'yarnx' is not a Spark master" in desk("run", "--master", "yarnx")[2], "before the store is looked for"
    desk.fill(5)
    _, _, err = desk("run", "reconcile", "--master", "local[1]")
    lines = err.splitlines()
    assert re.fullmatch(r"running reconcile for file:\S+ on Spark at local\[1\]", lines[0])
    assert lines[1] == "starting Spark at local[1]"
    assert "local[1] is down" in lines[2]
