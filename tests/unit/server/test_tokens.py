"""The token file: hashes alone, constant answers, edits by many, changes noticed."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.cli.main import run
from holdfast.server.tokens import TokenFile, add_token, read_tokens, revoke_token
from tests.unit.runs.desk import Watch

AMBIENT = Ambient.system()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


async def loaded(file: Path, watch: Watch | None = None) -> TokenFile:
    tokens = TokenFile(file, watch or Watch())
    await tokens.load()
    return tokens


async def test_the_file_has_only_the_hash_of_a_token(file: Path) -> None:
    token, secret = add_token(file, ("web-*", "db-?"), AMBIENT, note='the "frontends"')
    assert secret not in file.read_text()
    assert hashlib.sha256(secret.encode()).hexdigest() in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_tokens(file) == (token,)
    found = (await loaded(file)).authenticate(secret)
    assert found == token
    assert [agent for agent in ("web-1", "web-", "db-1", "db-12", "WEB-1") if token.allows(agent)] == [
        "web-1",
        "web-",
        "db-1",
    ]
    brackets, _ = add_token(file, ("db[1]", "[x]*"), AMBIENT)
    assert [agent for agent in ("db[1]", "[x]-7", "db1", "x-7") if brackets.allows(agent)] == ["db[1]", "[x]-7"]


async def test_other_texts_than_the_token_are_refused(file: Path) -> None:
    _, secret = add_token(file, ("*",), AMBIENT)
    tokens = await loaded(file)
    other = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    wrong = [other, secret + "0", secret.upper(), "", "hft_", " " + secret, "\ud800", "hft_00000000_" + "0" * 64]
    assert [tokens.authenticate(text) for text in wrong] == [None] * len(wrong)


async def test_two_tokens_are_valid_until_one_is_revoked(file: Path) -> None:
    first, old = add_token(file, ("*",), AMBIENT)
    tokens = await loaded(file)
    _, new = add_token(file, ("*",), AMBIENT)
    assert await tokens.refresh()
    assert tokens.authenticate(old) is not None
    assert tokens.authenticate(new) is not None
    revoke_token(file, first.token_id)
    assert await tokens.refresh()
    assert tokens.authenticate(old) is None
    assert tokens.authenticate(new) is not None
    assert not await tokens.refresh()
    watch = Watch()
    _, short = add_token(file, ("*",), Ambient(watch, AMBIENT.rng), lifetime_ns=10**9)
    tokens = await loaded(file, watch)
    assert tokens.authenticate(short) is not None
    watch.advance(seconds=2)
    assert tokens.authenticate(short) is None


async def test_an_unusable_file_leaves_the_tokens_unchanged(file: Path) -> None:
    _, secret = add_token(file, ("*",), AMBIENT)
    tokens = await loaded(file)
    kept = file.rename(file.with_name("kept"))
    for text in (None, "not toml [", "x = " + "[" * 100_000, "[other]\nx = 1\n", '[[token]]\nid = "a"\n'):
        if text is not None:
            file.write_text(text)
        assert not await tokens.refresh()
        assert tokens.problem is not None
        assert tokens.authenticate(secret) is not None
    kept.replace(file)
    assert not await tokens.refresh()
    assert vars(tokens)["problem"] is None
    file.unlink()
    add_token(file, ("*",), AMBIENT)
    assert await tokens.refresh()
    assert (tokens.problem, tokens.authenticate(secret)) == (None, None)


async def test_a_file_that_cannot_be_used_stops_a_collector(file: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        await loaded(file)
    with pytest.raises(Invalid, match="cannot be read: Is a directory") as caught:
        await loaded(file.parent)
    assert "--tokens PATH" in str(caught.value.remedy)
    file.write_text('[[token]]\nid = "a"\nagents = "web"\nsha256 = "00"\ncreated_at = "x"\n')
    with pytest.raises(Invalid, match="a token cannot be used"):
        await loaded(file)
    with pytest.raises(Invalid, match="at least one pattern"):
        add_token(file, (), AMBIENT)


def test_tokens_can_be_added_concurrently(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:  # the lock is one of files, so threads exclude each other as processes do
        added = list(pool.map(lambda _: add_token(file, ("web-*",))[0], range(24)))
    assert sorted(read_tokens(file), key=str) == sorted(added, key=str)
    assert os.listdir(file.parent) == [file.name]


def test_the_commands_add_list_and_revoke_a_token(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokens", "add", "--file", str(file), "--agents", "web-*", "--note", "me", "--expires-in", "90d"]) == 0
    secret = capsys.readouterr().out.strip()
    token_id = secret.split("_")[1]
    assert run(["tokens", "list", "--file", str(file)]) == 0
    listed = capsys.readouterr().out
    assert token_id in listed
    assert "valid" in listed
    assert secret not in listed
    assert run(["tokens", "revoke", token_id, "--file", str(file)]) == 0
    assert run(["tokens", "revoke", token_id, "--file", str(file)]) == 4
    assert read_tokens(file) == ()
    assert run(["tokens", "list"]) == 2


def test_the_command_accepts_several_patterns(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokens", "add", "--file", str(file), "--agents", "web-*, db-1", "--agents", "a?b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["agents"] == ["web-*", "db-1", "a?b"]
    assert run(["tokens", "add", "--file", str(file), "--agents", " ,"]) == 2
    assert "at least one pattern" in capsys.readouterr().err
    assert run(["tokens", "add", "--file", str(file), "--agents", "a b"]) == 2
    assert "'a b' has white space in it\nhint: separate patterns by commas" in capsys.readouterr().err


@pytest.mark.parametrize("there", [True, False])
def test_a_token_file_is_not_written_through_a_link(file: Path, tmp_path: Path, *, there: bool) -> None:
    token, _ = add_token(file, ("*",), AMBIENT)
    before = file.read_bytes()
    link = tmp_path / "elsewhere" / "link.toml"
    link.parent.mkdir()
    link.symlink_to(file if there else tmp_path / "planted.toml")
    for edit in (lambda: add_token(link, ("web-*",), AMBIENT), lambda: revoke_token(link, token.token_id)):
        with pytest.raises(Refused, match="is a link to"):
            edit()
    assert file.read_bytes() == before
    assert not (tmp_path / "planted.toml").exists()


def test_the_new_token_file_is_neither_one_that_others_hold_open_nor_a_link(file: Path, tmp_path: Path) -> None:
    planted, victim = file.with_name(f".{file.name}.part"), tmp_path / "victim"
    with planted.open("w+", encoding="utf-8") as held:
        planted.chmod(0o666)
        add_token(file, ("*",), AMBIENT)
        held.seek(0)
        assert held.read() == ""
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    victim.write_text("mine", encoding="utf-8")
    planted.symlink_to(victim)
    add_token(file, ("web-*",), AMBIENT)
    assert victim.read_text(encoding="utf-8") == "mine"
    assert not file.is_symlink()
    assert len(read_tokens(file)) == 2
    assert file.stat().st_mode & 0o777 == 0o640
