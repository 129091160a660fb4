"""Links below the root of a local store are never followed: not by reads, writes, deletes, listings or the sweep."""

import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.objects.local import LocalStore
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, IfMatch, Lost, Mode, content_version
from tests.unit.objects.local.local_kit import keys

SECRET = b"secret"
THEIRS = IfMatch(content_version(SECRET))


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
    """Whose directory ``x`` is a link to ``outside``."""
    (root / "y").mkdir(parents=True)
    (root / "y/file").write_bytes(b"ours")
    (root / "x").symlink_to(outside)
    return LocalStore(root)


def untouched(outside: Path) -> bool:
    found = {str(path.relative_to(outside)): path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    folders = [path.name for path in outside.rglob("*/") if path.is_dir()]
    return found == {"file": SECRET, "deep/file": SECRET} and folders == ["deep"]


async def test_nothing_is_read_or_listed_through_a_link(store: LocalStore, tmp_path: Path) -> None:
    for key in ("x/file", "x/deep/file"):
        for read in (store.get(key), store.head(key), store.range(key, 0, 3)):
            with pytest.raises(NotFound):
                await read
        assert await store.link(key, tmp_path / "linked") is None
        assert not (tmp_path / "linked").exists()
    assert [await keys(store, prefix) for prefix in ("", "x/", "x/deep/")] == [["y/file"], [], []]


@pytest.mark.parametrize("key", ["x/file", "x/new", "x/deep/file", "x/more/new"])
@pytest.mark.parametrize("mode", [OVERWRITE, CREATE, ADDRESSED], ids=["overwrite", "create", "addressed"])
async def test_nothing_is_written_through_a_link(store: LocalStore, outside: Path, key: str, mode: Mode) -> None:
    with pytest.raises(Invalid, match="neither a file nor a directory"):
        await store.put(key, b"new", mode)
    assert await store.put(key, b"new", THEIRS) == Lost()
    assert untouched(outside)


@pytest.mark.parametrize("key", ["x/file", "x/deep/file"])
async def test_nothing_is_deleted_through_a_link(store: LocalStore, root: Path, outside: Path, key: str) -> None:
    (outside / "deep/empty").mkdir()
    await store.delete_many([key, "x/deep/empty/none"])
    assert (outside / "deep/empty").is_dir()
    (outside / "deep/empty").rmdir()
    assert untouched(outside)
    assert (root / "x").is_symlink()


@pytest.mark.parametrize("inside", [b"%self", b"%moving"])
async def test_a_place_of_a_moved_object_is_no_link(root: Path, outside: Path, inside: bytes) -> None:
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


@pytest.mark.parametrize("name", ["", "staging", "locks"])
@pytest.mark.parametrize("act", [lambda store: store.put("a", b"1"), lambda store: store.delete("y/file")])
async def test_the_directories_of_the_store_itself_are_no_links(
    root: Path, outside: Path, name: str, act: Callable[[LocalStore], object]
) -> None:
    """The sweep would remove files there, and a staged file would be written there."""
    await LocalStore(root).put("y/file", b"ours")
    (root / ".%holdfast" / name).rename(outside.parent / "away")
    (root / ".%holdfast" / name).symlink_to(outside)
    with pytest.raises(Refused, match=f"{re.escape(str(root))}: {re.escape(name or '.%holdfast')} .* is a link"):
        await act(LocalStore(root))  # type: ignore[misc]  # awaitable
    assert untouched(outside)
    assert (root / "y/file").read_bytes() == b"ours"


async def test_the_layout_is_not_read_through_a_link(root: Path, outside: Path) -> None:
    """Another layout maps keys to other names: objects would seem to be gone, and others be written beside them."""
    await LocalStore(root).put("a", b"1")
    layout = root / ".%holdfast/layout.json"
    layout.rename(outside / "layout.json")
    layout.symlink_to(outside / "layout.json")
    for call in (LocalStore(root).get("a"), LocalStore(root).put("a", b"2")):
        with pytest.raises(Refused, match=r"layout\.json"):
            await call


async def test_a_link_among_staged_files_is_left_alone(root: Path, outside: Path) -> None:
    await LocalStore(root).put("a", b"1")
    (root / ".%holdfast/staging/link").symlink_to(outside / "file")
    (root / ".%holdfast/staging/folder").symlink_to(outside)
    await LocalStore(root).put("a", b"2")
    assert untouched(outside)


async def test_a_lock_is_no_link(root: Path, outside: Path) -> None:
    """Opening it would create a file outside."""
    await LocalStore(root).put("a", b"1")
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
async def test_a_swap_during_a_write_or_a_delete_leads_nowhere(
    root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode | None, module: object, call: str
) -> None:
    """Before the call, an attacker replaces a directory by a link."""
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
        await store.put("x/deep/new" if mode is CREATE else "x/deep/file", b"new", mode)
    assert (root / "x").is_symlink()
    assert untouched(outside)
