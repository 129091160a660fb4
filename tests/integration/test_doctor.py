"""``holdfast doctor`` as people run it: on a real server, and against everything that can be wrong with a store."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run
from holdfast.objects.conformance.laws import LAWS
from tests.integration.s3_model import S3Model
from tests.integration.scripted_server import HANG_UP, Answer, Reply, ScriptedServer, error_body
from tests.integration.servers import S3Server, free_port

QUICK = ["--races", "4", "--rounds", "3", "--keys", "30"]


def doctor(
    *arguments: str,
    environ: dict[str, str] | None = None,
    file_limit: int | None = None,
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    return subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", *arguments],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        preexec_fn=limit,
    )


def keys_of(server: S3Server) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": "us-east-1",
    }


PROMPT = {"HOLDFAST_RETRY__BASE_MS": "1", "HOLDFAST_RETRY__MAX_MS": "10"}
"""A server that has ended is not waited for."""
RACING_LAWS = {law.name for law in LAWS if law.races}


class TestOnAServer:
    def test_a_good_store_is_certified_and_left_clean(self, s3_server: S3Server, bucket: str) -> None:
        uri = f"s3://{bucket}/team?endpoint={s3_server.endpoint}&allow_http=true"
        result = doctor(uri, "--certify", "--json", environ=keys_of(s3_server))
        assert (result.returncode, result.stderr) == (0, "")
        report = json.loads(result.stdout)
        assert [(law["law"], law["verdict"]) for law in report["laws"]] == [(law.name, "kept") for law in LAWS]
        observed = {law["law"]: law["overlapping"] for law in report["laws"] if law["overlapping"] is not None}
        assert set(observed) == RACING_LAWS
        assert min(observed.values()) >= report["overlapping_wanted"]
        assert s3_server.keys(bucket) == ["team/meta/certificate.json"]

    @pytest.mark.parametrize(("kill", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "kill"])
    def test_an_interrupted_examination_cleans_up(
        self, s3_server: S3Server, bucket: str, kill: signal.Signals, code: int
    ) -> None:
        uri = f"s3://{bucket}?endpoint={s3_server.endpoint}&allow_http=true"
        command = [sys.executable, "-m", "holdfast", "doctor", uri, "--rounds", "100000"]
        environ = {**os.environ, **keys_of(s3_server)}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True) as process:
            while all(key.endswith("/probe") for key in s3_server.keys(bucket)):
                assert process.poll() is None
            process.send_signal(kill)
            stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == code
        assert stdout == ""
        assert "cleaning up under holdfast-doctor-" in stderr
        assert "Traceback" not in stderr
        assert s3_server.keys(bucket) == []


KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}


async def report_on(model: S3Model, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a doctor on a server with this model."""
    async with ScriptedServer(model) as server:
        uri = f"s3://bucket?endpoint={server.endpoint}&allow_http=true"
        result = await asyncio.to_thread(doctor, uri, "--json", *arguments, environ=KEYS | PROMPT)
    return result.returncode, json.loads(result.stdout)


class TestOnAModel:
    """Servers with faults, over HTTP, at the default effort."""

    @pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 10))])
    async def test_a_server_that_races_one_write_in_twenty_is_refused(self, seed: int) -> None:
        code, report = await report_on(S3Model(races=0.05, seed=seed))
        assert code == 1
        assert set(report["broken"]) & RACING_LAWS
        assert set(report["broken"]) <= RACING_LAWS

    @pytest.mark.parametrize(
        "answer", [HANG_UP, Answer(500, error_body("InternalError"))], ids=["closes connections", "answers 500"]
    )
    async def test_a_server_that_ends_in_the_middle_leaves_the_verdicts_so_far(self, answer: Reply) -> None:
        code, report = await report_on(S3Model(dies_after=150, answer_then=answer), *QUICK)
        verdicts = [law["verdict"] for law in report["laws"]]
        assert code == 5
        assert report["broken"] == []
        assert verdicts[0] == "kept"
        assert verdicts[-1] == "unjudged"
        assert verdicts == sorted(verdicts)
        assert report["leftovers"] is not None

    async def test_a_law_that_broke_before_the_end_stays_broken(self) -> None:
        code, report = await report_on(S3Model(races=1.0, dies_after=1_000))
        assert code == 1
        assert report["broken"]
        assert "unjudged" in [law["verdict"] for law in report["laws"]]


@pytest.mark.parametrize(
    ("reply", "code", "words", "remedy"),
    [
        (Answer(404, error_body("NoSuchBucket")), 4, "s3://bucket: no such bucket at {endpoint}", "create the bucket"),
        (
            Answer(403, error_body("InvalidAccessKeyId", "no such key")),
            6,
            "refused access (403 InvalidAccessKeyId: no such key)",
            "credentials",
        ),
        (None, 5, "cannot connect to {endpoint}: connection refused", "check the endpoint"),
    ],
    ids=["no bucket", "refused", "no server"],
)
async def test_an_error_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    reply: Answer | None,
    code: int,
    words: str,
    remedy: str,
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    async with AsyncExitStack() as open_now:
        endpoint = f"http://127.0.0.1:{free_port()}"
        if reply is not None:
            endpoint = (await open_now.enter_async_context(ScriptedServer(reply))).endpoint
        exit_code = await asyncio.to_thread(run, ["doctor", f"s3://bucket?endpoint={endpoint}&allow_http=true"])
    shown = capsys.readouterr()
    assert (exit_code, shown.out) == (code, "")
    error, hint = shown.err.splitlines()
    assert error.startswith("error: ")
    assert words.format(endpoint=endpoint) in error
    assert hint.startswith("hint: ")
    assert remedy in hint


def test_a_disk_that_becomes_full(tmp_path: Path) -> None:
    """The large body does not fit. That is not a broken promise, and no success either."""
    result = doctor(f"file:{tmp_path / 'store'}", "--json", *QUICK, file_limit=1_000_000)
    assert result.returncode == 5
    report = json.loads(result.stdout)
    assert (report["ok"], report["broken"], report["unjudged"]) == (False, [], ["large-body"])
    error = json.loads(result.stderr)["error"]
    assert error["kind"] == "unavailable"
    assert "1 of 16 laws could not be judged; large-body: " in error["message"]
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and ".%holdfast" not in path.parts]
    assert left == []
