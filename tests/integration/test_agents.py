"""Real agents against real collectors: killed in a loop, in conflict, in quarantine; judged by objects alone."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run
from holdfast.telemetry.frame import decode
from holdfast.telemetry.records import Log
from tests.integration.collectors import Running, collectors, end, make_token
from tests.integration.run_places import Place, folder
from tests.tidy.tree import ROOT

TIMEOUT_S = 60


@dataclass
class Desk:
    root: Path
    place: Place
    token: Path
    running: list[Running]

    @property
    def urls(self) -> str:
        return ",".join(each.ingest for each in self.running)

    @property
    def log(self) -> Path:
        return self.root / "app.log"

    def command(self, *options: str, queue: str = "queue") -> list[str]:
        options = ("--token-file", str(self.token), "--queue", str(self.root / queue), *options)
        return [
            "--config",
            str(self.root / "agent.toml"),
            "agent",
            "--collector",
            self.urls,
            "--agent-id",
            "web-1",
            *options,
        ]

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *self.command()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOLDFAST_AGENT__INTERVAL_MS": "100", "HOLDFAST_AGENT__BATCH_MS": "0"},
        )

    def records(self) -> dict[int, object]:
        """Every record that was accepted, by its number: from manifests and blobs, and nothing else."""
        contents = self.place.contents()
        found: dict[int, object] = {}
        for key, body in contents.items():
            if key.startswith("accepted/v1/"):
                for each in decode(contents[json.loads(body)["raw_blob_key"]]).records():
                    assert each.seq not in found, f"number {each.seq} is in two batches"
                    found[each.seq] = each.record
        return found

    def accepted(self) -> int:
        return sum(key.startswith("accepted/v1/") for key in self.place.contents())


@pytest.fixture
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    place = folder(tmp_path / "store")
    token = tmp_path / "token"
    token.write_text(make_token(tmp_path / "tokens.toml", "web-*"))
    (tmp_path / "agent.toml").write_text(f'[[agent.logs]]\npath = "{tmp_path / "app.log"}"\nfrom_start = true\n')
    with collectors(place, tmp_path / "tokens.toml", *[()] * getattr(request, "param", 1)) as running:
        yield Desk(tmp_path, place, token, running)


def until(happened: object, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not happened():  # type: ignore[operator]  # a callable without arguments
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("desk", [2], indirect=True)
def test_an_agent_that_is_killed_again_and_again_loses_nothing(desk: Desk) -> None:
    written = 0
    for life in range(4):
        agent = desk.start()
        before = desk.accepted()
        with desk.log.open("a") as log:
            for _ in range(30):
                log.write(f"line {written}\n")
                written += 1
                log.flush()
        if life == 2:
            end(desk.running[0].process, kill=True)
        wanted = before + life
        until(lambda wanted=wanted: desk.accepted() > wanted, "a batch")
        agent.kill()
        agent.communicate()
    agent = desk.start()
    assert agent.stdout is not None
    agent.stdout.readline()
    until(lambda: f"line {written - 1}" in messages(desk), "the last line")
    agent.send_signal(signal.SIGTERM)
    agent.communicate(timeout=TIMEOUT_S)
    assert agent.returncode == 0
    records = desk.records()
    assert sorted(records) == list(range(len(records)))
    assert [text for text in messages(desk) if text.startswith("line")] == [
        f"line {number}" for number in range(written)
    ]
    assert parked(desk.root / "queue") == []


def rows(queue: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(queue / "queue.sqlite")) as database:
        return [row[0] for row in database.execute(query)]


def parked(queue: Path) -> list[Any]:
    return rows(queue, "SELECT seq_start FROM batches WHERE reason IS NOT NULL")


def messages(desk: Desk) -> list[str]:
    return [record.message for _, record in sorted(desk.records().items()) if isinstance(record, Log)]


def test_a_conflict_is_parked_resolved_and_dropped(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", desk.place.uri]
    assert run(desk.command("--once")) == 0
    shutil.copytree(desk.root / "queue", desk.root / "clone")
    assert run(desk.command("--once")) == 0
    assert run(desk.command("--once", queue="clone")) == 0
    assert "1 parked" in capsys.readouterr().out
    assert run(["--json", "agent", "parked", "list", "--queue", str(desk.root / "clone")]) == 0
    (batch,) = json.loads(capsys.readouterr().out)
    assert batch["reason"] == "identity_conflict"
    assert run(["--json", "agent", "parked", "show", batch["numbers"], "--queue", str(desk.root / "clone")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert run(["--json", *store, "conflicts", "show", shown["frame_sha256"][:12]]) == 0
    conflict = json.loads(capsys.readouterr().out)
    assert conflict["submitted_frame_sha256"] == shown["frame_sha256"]
    assert conflict["accepted_frame_sha256"] != shown["frame_sha256"]
    assert (
        run(
            [
                *store,
                "conflicts",
                "resolve",
                shown["frame_sha256"][:12],
                "--existing-is-authoritative",
                "--why",
                "clone",
            ]
        )
        == 0
    )
    assert run(desk.command("--once", queue="clone")) in (0, 5)
    until(lambda: not parked(desk.root / "clone"), "the drop")
    assert "an operator decided" in capsys.readouterr().err


def test_a_quarantined_agent_keeps_its_batches_until_the_hold_is_lifted(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", desk.place.uri]
    assert run(desk.command("--once")) == 0
    shutil.copytree(desk.root / "queue", desk.root / "clone")
    assert run(desk.command("--once")) == 0
    assert run(desk.command("--once", queue="clone")) == 0
    (boot,) = rows(desk.root / "queue", "SELECT boot_id FROM queue")
    capsys.readouterr()
    assert run(["--json", *store, "conflicts", "list", "--unresolved"]) == 0
    (conflict,) = json.loads(capsys.readouterr().out)
    command = [*store, "conflicts", "resolve", conflict["submitted"], "--quarantine-identity", "--why", "a clone"]
    assert run(command) == 0
    before = desk.accepted()
    until(lambda: run(desk.command("--once")) == 5, "the refusal")
    held = desk.accepted()
    assert "identity_quarantined" in capsys.readouterr().err
    assert run(desk.command("--once")) == 5
    assert desk.accepted() == held
    assert held >= before
    assert run([*store, "conflicts", "lift", "web-1", boot, "--why", "clone is gone"]) == 0
    until(lambda: run(desk.command("--once")) == 0, "the acceptance")
    assert desk.accepted() > held
    records = desk.records()
    assert sorted(records) == list(range(len(records)))


def test_errors_of_certificates_name_the_setting_that_mends_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, token, tls = folder(tmp_path / "store"), tmp_path / "token", ROOT / "tests" / "golden" / "tls"
    token.write_text(make_token(tmp_path / "tokens.toml", "web-*"))
    (tmp_path / "agent.toml").touch()
    options = ("--tls-certificate", str(tls / "certificate.pem"), "--tls-key", str(tls / "key.pem"))
    with collectors(place, tmp_path / "tokens.toml", options) as running:
        desk = Desk(tmp_path, place, token, running)
        assert run(desk.command("--once")) == 5
        said = capsys.readouterr().err.splitlines()
        assert f"{desk.urls} does not take batches (untrusted): its certificate is not trusted" in said[0]
        assert said[-1].startswith("hint: name the file of its CA in agent.ca_file (HOLDFAST_AGENT__CA_FILE)")
        monkeypatch.setenv("HOLDFAST_AGENT__CA_FILE", str(tmp_path / "agent.toml"))
        assert run(desk.command("--once")) == 2
        assert f"agent.ca_file {tmp_path / 'agent.toml'}: there is no certificate in it" in capsys.readouterr().err
        monkeypatch.setenv("HOLDFAST_AGENT__CA_FILE", str(tls / "certificate.pem"))
        by_plain_http = [part.replace("https://", "http://") for part in desk.command("--once")]
        assert run(by_plain_http) == 5
        said = capsys.readouterr().err.splitlines()
        assert "(no_answer)" in said[0]
        assert "the port may speak TLS: use https://" in said[0]
        monkeypatch.setenv("HOLDFAST_AGENT__CA_FILE", str(tls / "second-certificate.pem"))
        assert run(desk.command("--once")) == 5
        said = capsys.readouterr().err.splitlines()
        assert f"{tls / 'second-certificate.pem'} does not contain the issuer of this certificate" in said[-1]
        monkeypatch.setenv("HOLDFAST_AGENT__CA_FILE", str(tls / "certificate.pem"))
        by_another_name = [part.replace("https://127.0.0.1", "https://localhost") for part in desk.command("--once")]
        assert run(by_another_name) == 5
        said = capsys.readouterr().err.splitlines()
        assert "does not take batches (wrong_name): its certificate is for another name: Hostname mismatch" in said[0]
        assert said[-1].startswith("hint: give the collector's URL with a name that is in its certificate")
        assert run(desk.command("--once")) == 0


BAD_INPUT = [
    (("--token-file", "{root}/nothing"), 2, "token file {root}/nothing cannot be read: No such file or directory"),
    (("--token-file", "{root}/wrong"), 5, "(unauthenticated)"),
    (("--collector", "ftp://host"), 2, "'ftp://host' is not the URL of a collector"),
    (("--collector", "http://10.0.0.1:8080"), 2, "--collector: http://10.0.0.1 is another machine"),
    (("--collector", "http://127.1:8080"), 2, "--collector: http://127.1 is another machine"),  # not certainly this one
    (("--collector", "http://127.0.0.1:1"), 5, "does not take batches (no_answer)"),
    (("--agent-id", "web-2"), 7, "the queue is that of agent web-1, not of web-2"),
    (("--queue", "{root}/token"), 2, "{root}/token: File exists"),
]


def test_an_address_that_takes_no_batches_is_named(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    one = desk.running[0]
    cases = [
        (
            one.private,
            "does not take batches (wrong_address): 404",
            "hint: give the address of the collector's --listen",
        ),
        (
            one.ingest.replace("http:", "https:"),
            "does not take batches (no_answer): the port may speak plain HTTP: use http://",
            "hint: check the URL of the collector",
        ),
    ]
    for url, problem, hint in cases:
        assert run([*desk.command("--once"), "--collector", url]) == 5
        said = capsys.readouterr().err.splitlines()
        assert problem in said[0]
        assert said[-1].startswith(hint)


def test_bad_input_is_one_clear_line_and_loses_nothing(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    (desk.root / "wrong").write_text("wrong")
    assert run(desk.command("--once")) == 0
    before = sorted(path.name for path in (desk.root / "queue").iterdir())
    for (option, value), code, line in BAD_INPUT:
        capsys.readouterr()
        assert run([*desk.command("--once"), option, value.format(root=desk.root)]) == code
        error = capsys.readouterr().err
        assert line.format(root=desk.root) in error
        assert sum(text.startswith("error: ") for text in error.splitlines()) == 1
        assert ("`holdfast tokens list`" in error) == (line == "(unauthenticated)")
    assert sorted(path.name for path in (desk.root / "queue").iterdir()) == before
    unsafe = [part.replace("http://127.0.0.1", "http://127.1") for part in desk.command("--once")]
    assert run([*unsafe, "--unsafe-plain-http"]) == 0
    assert sorted(desk.records()) == list(range(len(desk.records())))
