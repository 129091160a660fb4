"""Links below the root of a local store are never followed: not by reads, writes, deletes, listings or the sweep."""

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.objects.local import LocalStore
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, IfMatch, Lost, Mode, content_version
from tests.unit.objects.local.local_kit import keys

SECRET = b"secret"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that is no part of the store."""
    folder = tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    (folder / "file").write_bytes(SECRET)
    (folder / "deep/file").write_bytes(SECRET)
    return folder


@pytest.fixture
def store(root: Path, outside: Path) -> LocalStore:
    """Its directory ``x`` is a link to ``outside``."""
    (root / "y").mkdir(parents=True)
    (root / "y/file").write_bytes(b"ours")
    (root / "x").symlink_to(outside)
    return LocalStore(root)


def untouched(outside: Path) -> bool:
    found = {str(path.relative_to(outside)): path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    folders = [path.name for path in outside.rglob("*/") if path.is_dir()]
    return found == {"file": SECRET, "deep/file": SECRET} and folders == ["deep"]


async def test_nothing_is_read_or_listed_through_a_link(store: LocalStore, root: Path, tmp_path: Path) -> None:
    (root / "y/link").symlink_to("file")
    (root / "y/loop").symlink_to("..")
    for key in ("x/file", "x/deep/file", "y/link"):
        for read in (store.get(key), store.head(key), store.range(key, 0, 3)):
            with pytest.raises(NotFound):
                await read
        assert await store.link(key, tmp_path / "linked") is None
        assert not (tmp_path / "linked").exists()
    assert [await keys(store, prefix) for prefix in ("", "x/", "x/deep/")] == [["y/file"], [], []]


@pytest.mark.parametrize("key", ["x/file", "x/new", "x/deep/file", "x/more/new"])
async def test_nothing_is_written_or_deleted_through_a_link(
    store: LocalStore, root: Path, outside: Path, key: str
) -> None:
    for mode in (OVERWRITE, CREATE, ADDRESSED):
        with pytest.raises(Invalid, match="neither a file nor a directory"):
            await store.put(key, b"new", mode)
    assert await store.put(key, b"new", IfMatch(content_version(SECRET))) == Lost()
    (outside / "deep/empty").mkdir()
    await store.delete_many([key, "x/deep/empty/none"])
    (outside / "deep/empty").rmdir()
    assert untouched(outside)
    assert (root / "x").is_symlink()


@pytest.mark.parametrize("inside", [b"%self", b"%moving"])
async def test_a_moved_object_is_not_found_through_a_link(root: Path, outside: Path, inside: bytes) -> None:
    store = LocalStore(root)
    await store.put("a/b", b"1")
    link = root / ("a/%self" if inside == b"%self" else "%moving")
    link.symlink_to(outside / "file" if inside == b"%self" else outside)
    (outside / "a").write_bytes(SECRET)
    assert await store.find("a") is None
    assert await keys(store) == ["a/b"]
    await store.delete("a")
    assert (outside / "a").read_bytes() == SECRET
    (outside / "a").unlink()
    assert untouched(outside)


@pytest.mark.parametrize("name", ["", "staging", "locks", "layout.json"])
@pytest.mark.parametrize("act", [lambda store: store.put("a", b"1"), lambda store: store.delete("y/file")])
async def test_a_link_in_the_place_of_the_stores_own_files_is_refused(
    root: Path, outside: Path, name: str, act: Callable[[LocalStore], object]
) -> None:
    """The sweep would remove files there, a staged file would be written there, another layout would hide objects."""
    await LocalStore(root).put("y/file", b"ours")
    (root / ".%holdfast" / name).rename(outside.parent / "away")
    (root / ".%holdfast" / name).symlink_to(outside / "file" if name == "layout.json" else outside)
    with pytest.raises(Refused, match=f"{re.escape(str(root))}: {re.escape(name or '.%holdfast')} .* is a link"):
        await act(LocalStore(root))  # type: ignore[misc]  # awaitable
    if name in ("", "layout.json"):
        with pytest.raises(Refused, match="is a link"):
            await LocalStore(root).get("y/file")
    assert untouched(outside)
    assert (root / "y/file").read_bytes() == b"ours"


async def test_links_among_staged_files_are_left_alone_and_a_lock_is_no_link(root: Path, outside: Path) -> None:
    await LocalStore(root).put("a", b"1")
    (root / ".%holdfast/staging/link").symlink_to(outside / "file")
    (root / ".%holdfast/staging/folder").symlink_to(outside)
    await LocalStore(root).put("a", b"2")
    for number in range(256):
        path = root / f".%holdfast/locks/{number:02x}"
        path.unlink(missing_ok=True)
        path.symlink_to(outside / "made")
    with pytest.raises(Refused, match="symbolic link"):
        await LocalStore(root).put("a", b"2")
    assert untouched(outside)


WRITES: list[tuple[Mode | None, object, str]] = [
    (mode, module, call)
    for mode in (OVERWRITE, CREATE, IfMatch(content_version(b"ours")))
    for module, call in ((os, "fsync"), (fcntl, "flock"), (os, "rename"))
]


@pytest.mark.parametrize(("mode", "module", "call"), [*WRITES, (None, fcntl, "flock")])
async def test_a_directory_that_becomes_a_link_during_a_call_is_not_followed(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode | None, module: object, call: str
) -> None:
    """Before the system call, an attacker replaces a directory by a link."""
    store = LocalStore(root)
    await store.put("x/file", b"ours")
    await store.put("x/deep/file", b"ours")
    function = getattr(module, call)

    def swap_first(*args: object, **named: object) -> object:
        monkeypatch.setattr(module, call, function)
        (root / "x").rename(root / "away")
        (root / "x").symlink_to(outside)
        return function(*args, **named)

    monkeypatch.setattr(module, call, swap_first)
    if mode is None:
        await store.delete("x/deep/file")
    else:
        with suppress(Invalid):  # if the link was there before the directory was opened
            await store.put("x/deep/new" if mode is CREATE else "x/deep/file", b"new", mode)
    assert (root / "x").is_symlink()
    assert untouched(outside)
