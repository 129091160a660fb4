"""``holdfast collector`` refuses to start where it could not work, in one clear line, and ends as it is told."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.ids import Ambient
from holdfast.cli import collector as command
from holdfast.cli.main import run
from holdfast.server.run import Serving
from holdfast.server.tokens import add_token

ANYWHERE = ("--listen", "127.0.0.1:0", "--private", "127.0.0.1:0")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    add_token(tmp_path / "tokens.toml", ("*",), Ambient.system())
    return tmp_path / "tokens.toml"


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield f"127.0.0.1:{holder.getsockname()[1]}"


class Console:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def collector(self, *words: str, store: str = "memory:") -> tuple[int, dict[str, Any]]:
        """The exit code and the last document on standard error or output."""
        code = run(["collector", "--store", store, "--json", *words])
        captured = self._capsys.readouterr()
        lines = [json.loads(line) for line in (captured.out + captured.err).splitlines()]
        return code, lines[-1].get("error", lines[0])


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


def test_what_is_missing_or_wrong_is_said(console: Console, tokens: Path, tmp_path: Path, taken: str) -> None:
    given = ("--tokens", str(tokens))
    cases = [
        ((*ANYWHERE,), 2, "token file"),
        ((*ANYWHERE, "--tokens", str(tmp_path / "none")), 4, "does not exist"),
        (("--listen", "8080", *given), 2, "no address"),
        (("--listen", taken, "--private", "127.0.0.1:0", *given), 7, "cannot be listened at"),
        ((*ANYWHERE, *given, "--acceptance", "perhaps"), 2, "--acceptance"),
        ((*ANYWHERE, *given, "--acceptance", "local_spool"), 2, "no folder"),
        ((*ANYWHERE, *given, "--spool", str(tmp_path)), 2, "of no use"),
        ((*ANYWHERE, *given, "--authority-id", "a1"), 7, "a1 is expected"),
        ((*ANYWHERE, *given, "--tls-key", str(tokens)), 2, "no certificate"),
        ((*ANYWHERE, *given, "--tls-certificate", str(tokens)), 2, "no certificate with its key"),
    ]
    for words, code, text in cases:
        found, error = console.collector(*words)
        assert (found, text in error["message"]) == (code, True), (words, error)


def test_a_copy_of_a_store_is_refused_and_the_override_is_called_unsafe(
    console: Console, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_at_once(monkeypatch)
    words = (*ANYWHERE, "--tokens", str(tokens))
    code, about = console.collector(*words, store=f"file:{tmp_path / 'original'}")
    assert (code, about["acceptance"], about["certified"]) == (0, "s3_manifest", False)
    (tmp_path / "original").rename(tmp_path / "copy")
    code, error = console.collector(*words, store=f"file:{tmp_path / 'copy'}")
    assert (code, error["kind"]) == (7, "refused")
    code, again = console.collector(*words, "--unsafe-any-place", store=f"file:{tmp_path / 'copy'}")
    assert (code, again["authority_id"]) == (0, about["authority_id"])


def test_people_see_where_it_listens(
    tokens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end_at_once(monkeypatch)
    assert run(["collector", "--store", "memory:", *ANYWHERE, "--tokens", str(tokens), "--collector-id", "c1"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("c1 takes batches at http://127.0.0.1:")
    assert "holdfast doctor --certify" in said.err
    assert json.loads(said.err.splitlines()[-1])["message"] == "ended"


def end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as it says that it listens, it is asked to end."""
    announce = command._announce

    def and_end(out: Any, serving: Serving) -> None:
        announce(out, serving)
        assert command.figures(serving).startswith("0 batches accepted")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(command, "_announce", and_end)
