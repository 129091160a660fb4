"""``holdfast collector`` refuses to start where it could not work, in one clear line, and ends on a signal."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.ids import Ambient
from holdfast.cli.main import run
from holdfast.cli.telemetry import collector as command
from holdfast.server.run import Serving
from holdfast.server.tokens import add_token
from tests.integration.servers import free_port
from tests.tidy.tree import ROOT

ANYWHERE = ("--listen", "127.0.0.1:0", "--private", "127.0.0.1:0")
TLS = ROOT / "tests/golden/tls"


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
        self.warned: list[str] = []
        """By the latest collector."""

    def collector(self, *words: str, store: str = "memory:") -> tuple[int, dict[str, Any]]:
        """The exit code and the last document on standard error or output."""
        code = run(["collector", "--store", store, "--json", *words])
        captured = self._capsys.readouterr()
        lines = [json.loads(line) for line in (captured.out + captured.err).splitlines()]
        self.warned = [line["message"] for line in lines if line.get("level") == "warning"]
        return code, lines[-1].get("error", lines[0])


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


def test_what_is_missing_or_wrong_is_said(console: Console, tokens: Path, tmp_path: Path, taken: str) -> None:
    given = ("--tokens", str(tokens))
    cases = [
        ((*ANYWHERE,), 2, "token file"),
        ((*ANYWHERE, "--tokens", str(tmp_path / "none")), 4, "does not exist"),
        (("--listen", "8080", *given), 2, "not an address"),
        (("--listen", taken, "--private", "127.0.0.1:0", *given), 7, "cannot listen"),
        ((*ANYWHERE, *given, "--acceptance", "perhaps"), 2, "--acceptance"),
        ((*ANYWHERE, *given, "--acceptance", "local_spool"), 2, "--spool is missing"),
        ((*ANYWHERE, *given, "--spool", str(tmp_path)), 2, "uses no spool"),
        ((*ANYWHERE, *given, "--authority-id", "a1"), 7, "a1 is expected"),
        ((*ANYWHERE, *given, "--tls-key", str(tokens)), 2, "without --tls-certificate"),
    ]
    for words, code, text in cases:
        found, error = console.collector(*words)
        assert (found, text in error["message"]) == (code, True), (words, error)


def test_one_port_for_both_listeners_is_refused_before_anything_begins(
    console: Console, tokens: Path, tmp_path: Path
) -> None:
    port = free_port()
    store, given = tmp_path / "store", ("--tokens", str(tokens))
    for listen, private in [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"), ("0.0.0.0", "127.0.0.1")]:
        words = ("--listen", f"{listen}:{port}", "--private", f"{private}:{port}")
        code, error = console.collector(*words, *given, store=f"file:{store}")
        assert (code, error["message"].count(f":{port}")) == (2, 2), error
        assert "--listen and --private" in error["message"]
    assert not store.exists()


def test_an_address_of_another_machine_is_called_that(console: Console, tokens: Path) -> None:
    words = ("--listen", "203.0.113.5:8080", "--private", "127.0.0.1:0", "--tokens", str(tokens))
    code, error = console.collector(*words)
    assert (code, error["remedy"]) == (2, "name an address of this machine")


def test_a_spool_that_cannot_be_is_named_with_its_option(console: Console, tokens: Path, tmp_path: Path) -> None:
    words = (*ANYWHERE, "--tokens", str(tokens), "--acceptance", "local_spool", "--spool")
    for spool, code, text in [
        (str(tokens), 2, "Not a directory"),
        ("/proc/x", 2, "no folder can be created there"),
        ("/sys/x", 6, "permitted"),
    ]:
        found, error = console.collector(*words, spool)
        assert (found, error["message"].startswith(f"--spool {spool}: ")) == (code, True), error
        assert text in error["message"]
        assert "folder" in error["remedy"]


def test_of_a_certificate_and_its_key_the_one_that_is_wrong_is_named(
    console: Console, tokens: Path, tmp_path: Path
) -> None:
    torn = {name: tmp_path / f"torn-{name}" for name in ("certificate.pem", "key.pem")}
    for name, path in torn.items():
        path.write_text("".join((TLS / name).read_text().splitlines(keepends=True)[::2]))
    certificate, key, none = TLS / "certificate.pem", TLS / "key.pem", tmp_path / "none"
    cases = [
        (certificate, none, 4, f"--tls-key {none}: the file does not exist"),
        (none, key, 4, f"--tls-certificate {none}: the file does not exist"),
        (certificate, tmp_path, 2, f"--tls-key {tmp_path}: cannot be read: Is a directory"),
        (certificate, None, 2, f"--tls-certificate {certificate}: it contains a certificate but no key"),
        (tokens, key, 2, f"--tls-certificate {tokens}: it contains no certificate"),
        (certificate, certificate, 2, f"--tls-key {certificate}: it contains no private key"),
        (certificate, TLS / "second-key.pem", 2, "second-key.pem: it is not the key of the first certificate"),
        (torn["certificate.pem"], key, 2, f"--tls-certificate {torn['certificate.pem']}: its content is damaged"),
        (certificate, torn["key.pem"], 2, f"--tls-key {torn['key.pem']}: its content is damaged"),
    ]
    for chain, secret, code, text in cases:
        words = ("--tls-certificate", str(chain), *(("--tls-key", str(secret)) if secret else ()))
        found, error = console.collector(*ANYWHERE, "--tokens", str(tokens), *words, store=f"file:{tmp_path / 'store'}")
        assert (found, text in error["message"]) == (code, True), error
        assert "_ssl.c" not in error["message"]
        assert error["remedy"]
    assert not (tmp_path / "store").exists()


def test_a_key_with_a_password_is_refused_without_a_prompt(console: Console, tokens: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", TLS / "key.pem", "-aes256", "-passout", "pass:secret", "-out", locked], check=True
    )
    words = ("--tls-certificate", str(TLS / "certificate.pem"), "--tls-key", str(locked))
    code, error = console.collector(*ANYWHERE, "--tokens", str(tokens), *words)
    assert (code, error["message"].startswith(f"--tls-key {locked}: the key is encrypted")) == (2, True), error


def test_what_is_refused_leaves_nothing(
    console: Console, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, words = f"file:{tmp_path / 'store'}", (*ANYWHERE, "--tokens", str(tokens))
    spooling = (*words, "--acceptance", "local_spool")
    assert console.collector(*words, "--authority-id", "a1", store=store)[0] == 7
    assert console.collector(*spooling, store=store)[0] == 2
    assert not (tmp_path / "store").exists()
    end_at_once(monkeypatch)
    code, _ = console.collector(*spooling, "--spool", str(tmp_path / "spool"), store=store)
    assert code == 0
    code, error = console.collector(*spooling, "--spool", str(tmp_path / "other"), store=store)
    assert (code, f"--spool {tmp_path / 'other'} has none" in error["message"]) == (7, True), error
    assert not (tmp_path / "other").exists()
    code, _ = console.collector(*words, store=f"file:{tmp_path / 'second'}")
    assert code == 0
    code, error = console.collector(*spooling, "--spool", str(tmp_path / "other"), store=f"file:{tmp_path / 'second'}")
    assert (code, "accepted by s3_manifest" in error["message"]) == (7, True), error
    assert not (tmp_path / "other").exists()


def test_a_name_that_cannot_be_printed_is_refused(console: Console, tokens: Path) -> None:
    for name, text in [("a\nb", "cannot be printed"), ("", "this is empty"), ("n" * 121, "at most 120")]:
        code, error = console.collector(*ANYWHERE, "--tokens", str(tokens), "--collector-id", name)
        assert (code, error["message"].startswith("--collector-id: ")) == (2, True), error
        assert text in error["message"]


def test_what_is_hardly_meant_is_warned_of(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end_at_once(monkeypatch)
    empty = tmp_path / "empty.toml"
    empty.touch()

    def warnings(path: Path, store: str) -> tuple[int, list[str]]:
        assert run(["collector", "--store", store, "--json", *ANYWHERE, "--tokens", str(path)]) == 0
        said = capsys.readouterr()
        lines = [json.loads(line) for line in said.err.splitlines()]
        warned = [line["message"] for line in lines if line["level"] == "warning"]
        return json.loads(said.out)["tokens"], [each for each in warned if "has not been examined" not in each]

    count, (warning,) = warnings(empty, f"file:{tmp_path / 'store'}")
    assert (count, f"{empty} has no valid token" in warning) == (0, True)
    count, (gone,) = warnings(tokens, "memory:")
    assert (count, "lost when this process ends" in gone) == (1, True)
    assert warnings(tokens, f"file:{tmp_path / 'store'}") == (1, [])


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
    [warned] = [each for each in console.warned if "accepts again what the original has" in each]
    assert all(str(tmp_path / name) in warned for name in ("original", "copy"))
    (tmp_path / "copy").rename(tmp_path / "original")
    assert console.collector(*words, "--unsafe-any-place", store=f"file:{tmp_path / 'original'}")[0] == 0
    assert [each for each in console.warned if "authority" in each] == []


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
