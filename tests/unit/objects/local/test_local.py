"""The local store from outside: what is particular to it. What every store must do is in the laws."""

import errno
import os
import stat
from collections.abc import Awaitable
from pathlib import Path

import pytest

from holdfast.base.errors import Ambiguous, Invalid, Unavailable
from holdfast.objects.local import LocalStore
from holdfast.objects.local import store as local
from holdfast.objects.local.tree import Folders
from holdfast.objects.open import open_store
from holdfast.objects.store import (
    ADDRESSED,
    CREATE,
    OVERWRITE,
    Entry,
    IfMatch,
    Mode,
    Object,
    Page,
    Written,
    content_version,
)
from tests.unit.objects.local.local_kit import files, keys


async def test_a_file_that_was_copied_in_is_an_object_and_an_object_is_a_file(store: LocalStore, root: Path) -> None:
    (root / "notes").mkdir(parents=True)
    (root / "notes/today.md").write_bytes(b"hello")
    os.utime(root / "notes/today.md", ns=(5, 7))
    found = await store.get("notes/today.md")
    assert found == Object("notes/today.md", b"hello", 7, content_version(b"hello"))
    (page,) = [page async for page in store.list()]
    assert page == Page((Entry("notes/today.md", 5, 7),))
    assert isinstance(await store.put("notes/today.md", b"bye", IfMatch(found.version)), Written)
    assert (root / "notes/today.md").read_bytes() == b"bye"


async def test_reading_makes_nothing(store: LocalStore, root: Path) -> None:
    assert await store.find("a") is None
    assert [page async for page in store.list()] == [Page(())]
    assert not root.exists()


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "a/../b", "a\nb", "x" * 1025, "\ud800"])
async def test_keys_are_checked(store: LocalStore, root: Path, key: str) -> None:
    for call in (store.get(key), store.head(key), store.put(key, b""), store.delete(key), store.range(key, 0, 1)):
        with pytest.raises(Invalid):
            await call
    assert not root.exists()


@pytest.mark.parametrize(("count", "pages"), [(0, [0]), (6, [3, 3]), (7, [3, 3, 1])])
async def test_pages_are_full_and_only_a_first_page_is_empty(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, count: int, pages: list[int]
) -> None:
    monkeypatch.setattr(local, "PAGE_SIZE", 3)
    for number in range(count):
        await store.put(f"many/{number}", b"")
    assert [len(page.entries) async for page in store.list("many/")] == pages


async def test_what_is_no_object_is_not_listed(store: LocalStore, root: Path) -> None:
    await store.put("a/b", b"")
    (root / "a/50%").touch()
    (root / "a/%self").mkdir()
    (root / "a/link").symlink_to("b")
    (root / "a/loop").symlink_to("..")
    os.mkfifo(root / "a/pipe")
    os.close(os.open(os.fsencode(root) + b"/a/\xff", os.O_CREAT))
    assert await keys(store) == ["a/b"]
    for key in ("a/link", "a/loop", "a/pipe", "a"):
        assert await store.find(key) is None


class Steps:
    """The calls of the system that make a write durable, in their order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[str] = []
        fsync, rename = os.fsync, os.rename

        def noted_fsync(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(root)
            self.taken.append("sync staged" if path.is_relative_to(".%holdfast/staging") else f"sync {path}")

        def noted_rename(old: bytes, new: bytes, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            folder = Path(f"/proc/self/fd/{dst_dir_fd}").readlink()
            self.taken.append(f"rename to {(folder / os.fsdecode(new)).relative_to(root)}")

        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "rename", noted_rename)

    async def of(self, call: Awaitable[object]) -> list[str]:
        self.taken.clear()
        await call
        return self.taken


async def test_what_is_answered_is_on_disk(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("warm", b"")
    steps = Steps(root, monkeypatch)
    if_one = IfMatch(content_version(b"1"))
    move = ["rename to x/%moving/y", "rename to x/y/%self", "sync x/y", "sync x"]
    assert await steps.of(store.put("x/y", b"1")) == ["sync .", "sync staged", "rename to x/y", "sync x"]
    assert await steps.of(store.put("x/z", b"1", CREATE)) == ["sync staged", "rename to x/z", "sync x"]
    assert await steps.of(store.put("x/y", b"2", if_one)) == ["sync staged", "rename to x/y", "sync x"]
    made = [*move, "sync x", "sync staged", "rename to x/y/z", "sync x/y"]
    assert await steps.of(store.put("x/y/z", b"3")) == made
    assert await steps.of(store.delete("x/y/z")) == ["sync x/y"]
    assert await steps.of(store.delete_many(["x/y", "x/z"])) == ["sync ."]
    assert await steps.of(store.delete("x/y")) == ["sync ."]


async def test_a_lost_race_is_answered_when_what_won_is_on_disk(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may have been killed before it fsynced the directories, or not have come to it yet."""
    await store.put("warm", b"")
    (root / "x/y").mkdir(parents=True)
    (root / "x/y/z").write_bytes(b"theirs")
    steps = Steps(root, monkeypatch)
    assert await steps.of(store.put("x/y/z", b"", CREATE)) == ["sync .", "sync x", "sync x/y/z", "sync x/y"]
    assert await steps.of(store.put("x/y/z", b"", ADDRESSED)) == ["sync x/y/z", "sync x/y"]
    other = IfMatch(content_version(b"another"))
    assert await steps.of(store.put("x/y/z", b"", other)) == ["sync staged", "sync x/y/z", "sync x/y"]
    await store.put("x/y/z/inner", b"")
    assert await steps.of(store.put("x/y/z", b"", CREATE)) == ["sync staged", "sync x/y/z/%self", "sync x/y/z"]
    # What won was a delete.
    assert await steps.of(store.put("x/y/none", b"", other)) == ["sync staged", "sync x/y"]
    assert await steps.of(store.put("x/none/none", b"", other)) == ["sync x"]


async def test_a_directory_that_was_made_anew_is_made_durable_anew(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its path, and often by its inode number too, it looks like the one before."""
    await store.put("x/a", b"")
    other = LocalStore(root)
    await other.put("warm", b"")
    steps = Steps(root, monkeypatch)
    for _ in range(20):
        await other.delete("x/a")
        (root / "x").mkdir()
        assert await steps.of(store.put("x/a", b"")) == ["sync .", "sync staged", "rename to x/a", "sync x"]


async def test_few_directories_are_remembered_and_none_after_the_end(store: LocalStore, root: Path) -> None:
    def descriptors() -> int:
        """Of files and directories of the store: the process may close others at any time."""
        paths = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return len([path for path in paths if path.startswith(str(root))])

    await store.put("a", b"")
    before = descriptors()
    for number in range(Folders.MOST + 10):
        await store.put(f"{number}/a", b"")
    assert descriptors() == before + Folders.MOST
    await store.close()
    assert descriptors() < before
    assert isinstance(await store.put("b", b"", CREATE), Written)
    await store.close()


async def test_deleting_works_on_a_disk_that_takes_no_file_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await LocalStore(root).put("a/b", b"1")
    opens = os.open

    def refuse_new_files(path: bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT and not os.access(path, os.F_OK, dir_fd=dir_fd):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return opens(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse_new_files)
    with pytest.raises(Unavailable, match="No space left"):
        await LocalStore(root).put("a/c", b"2")
    await LocalStore(root).delete("a/b")
    assert files(root) == []


@pytest.mark.parametrize("mode", [OVERWRITE, CREATE, IfMatch(content_version(b"1"))], ids=["overwrite", "create", "if"])
async def test_what_cannot_be_forced_to_disk_is_not_acknowledged(
    root: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """Reading back, as ``settle`` does after other open outcomes, would see the write and take it for safe."""
    async with open_store(f"file:{root}") as store:
        await store.put("other" if mode is CREATE else "key", b"1")
        fsync = os.fsync

        def fail_for_folders(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fail_for_folders)
        with pytest.raises(Ambiguous, match="gone after a power cut"):
            await store.put("key", b"2", mode)
        with pytest.raises(Unavailable, match="Input/output error"):
            await store.put("key", b"2", CREATE)
        monkeypatch.setattr(os, "fsync", fsync)
        assert isinstance(await store.put("key", b"2", CREATE), Written)


async def test_a_cleared_root_is_made_again(store: LocalStore, root: Path) -> None:
    await store.put("a", b"1")
    root.rename(root.with_name("elsewhere"))
    assert await store.find("a") is None
    assert isinstance(await store.put("a", b"2", CREATE), Written)
    assert (root / "a").read_bytes() == b"2"
