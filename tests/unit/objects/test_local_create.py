"""Objects that are created where nothing is: files without a name until they have all their bytes, in new folders."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.objects.local import LocalStore
from holdfast.objects.local.fresh import Fresh
from holdfast.objects.local.locks import Locks
from holdfast.objects.store import ADDRESSED, CREATE, Lost, Mode, Written, content_version
from tests.unit.objects.local_kit import contents, files, staged, wishes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


pytestmark = pytest.mark.usefixtures("forced_by_threads")


def before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Have something happen just before the next call of a function of ``os``."""
    function = getattr(os, name)

    def first_act(*args: object, **named: object) -> object:
        monkeypatch.setattr(os, name, function)
        act()
        return function(*args, **named)

    monkeypatch.setattr(os, name, first_act)


@pytest.mark.parametrize("mode", [CREATE, ADDRESSED])
async def test_all_that_leads_to_an_object_is_on_disk_before_the_answer(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    await store.put("warm", b"")
    steps: list[str] = []
    fsync, link, mkdir = os.fsync, os.link, os.mkdir

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        found = os.fstat(descriptor)
        named = "sync named" if found.st_nlink else "sync bytes"
        steps.append(named if stat.S_ISREG(found.st_mode) else f"sync {path.relative_to(root)}")

    def noted_link(source: bytes, name: bytes, *, dst_dir_fd: int) -> None:
        link(source, name, dst_dir_fd=dst_dir_fd)
        steps.append(f"name {os.fsdecode(name)}")

    def noted_mkdir(path: bytes) -> None:
        mkdir(path)
        steps.append(f"make {Path(os.fsdecode(path)).relative_to(root)}")

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(os, "mkdir", noted_mkdir)
    assert await store.put("x/y/z", b"1", mode) == Written(content_version(b"1"))
    assert steps[:2] == ["make x", "make x/y"]
    assert sorted(steps[2:5]) == ["sync .", "sync bytes", "sync x"]  # at the same time
    assert steps[5] == "name z"
    assert sorted(steps[6:]) == ["sync named", "sync x/y"]  # the file too: it says itself that it has a name now
    steps.clear()
    await store.put("x/y/other", b"2", mode)
    assert steps[:2] == ["sync bytes", "name other"]
    assert sorted(steps[2:]) == ["sync named", "sync x/y"]
    assert await contents(store) == {"warm": b"", "x/y/z": b"1", "x/y/other": b"2"}
    assert staged(root) == []


class SlowRoot:
    """The root's own names are forced to disk when the test says so."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.broken = False
        fsync, number = os.fsync, root.stat().st_ino

        def slowly(descriptor: int) -> None:
            if os.fstat(descriptor).st_ino == number:
                self.begun.release()
                if not self.allowed.acquire(timeout=60):
                    raise TimeoutError
                if self.broken:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", slowly)

    async def wait(self) -> None:
        while not self.begun.acquire(blocking=False):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("key", ["x/2", "x/1"], ids=["beside it", "lost to it"])
async def test_nobody_is_answered_whose_folder_is_not_safe_yet(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Although it was somebody else who made it."""
    await store.put("warm", b"")
    slow = SlowRoot(root, monkeypatch)
    maker = asyncio.ensure_future(store.put("x/1", b"1", CREATE))
    await slow.wait()
    other = asyncio.ensure_future(store.put(key, b"2", CREATE))
    while not wishes(store):
        await asyncio.sleep(0.001)
        assert not other.done()
    slow.allowed.release()
    assert isinstance(await maker, Written)
    await slow.wait()
    assert not other.done()
    slow.allowed.release()
    assert await other == (Lost() if key == "x/1" else Written(content_version(b"2")))
    await store.put("x/3", b"3", CREATE)  # asks nothing more of the root
    assert not slow.begun.acquire(blocking=False)


async def test_a_folder_whose_name_could_not_be_forced_to_disk_is_forced_by_the_next(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("warm", b"")
    slow = SlowRoot(root, monkeypatch)
    slow.broken = True
    for _ in range(2):  # once for the object, once to give up
        slow.allowed.release()
    with pytest.raises(Unavailable, match="Input/output error"):
        await store.put("x/1", b"1", CREATE)
    assert await contents(store) == {"warm": b""}
    slow.broken = False
    while slow.begun.acquire(blocking=False):
        pass
    slow.allowed.release()
    assert isinstance(await store.put("x/2", b"2", CREATE), Written)
    assert slow.begun.acquire(blocking=False)


async def test_whoever_is_faster_has_won(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("x/warm", b"")
    before(monkeypatch, "link", lambda: (root / "x/a").write_bytes(b"theirs"))
    assert await store.put("x/a", b"ours", CREATE) == Lost()
    assert (await store.get("x/a")).body == b"theirs"


async def test_nobody_creates_an_object_that_is_on_the_move(store: LocalStore, root: Path) -> None:
    """Its plain name is free for a moment, while its mover holds the lock of its path."""
    await store.put("warm", b"")
    with Locks(os.fsencode(root / ".%holdfast/locks")).writing((b"a",)):
        rival = asyncio.create_task(store.put("a", b"ours", CREATE))
        await asyncio.sleep(0.05)  # time enough for a writer that does not wait
        (root / "%moving").mkdir()
        (root / "%moving/a").write_bytes(b"theirs")
    assert await rival == Lost()
    assert (await store.get("a")).body == b"theirs"
    assert files(root) == ["a", "a/%self", "warm"]


async def test_a_folder_that_is_removed_meanwhile_is_made_again(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("warm", b"")
    before(monkeypatch, "link", (root / "x").rmdir)
    assert isinstance(await store.put("x/a", b"1", CREATE), Written)
    assert files(root) == ["warm", "x", "x/a"]


@pytest.mark.parametrize(("name", "code"), [("open", errno.EOPNOTSUPP), ("link", errno.EPERM), ("link", errno.ENOENT)])
async def test_a_filesystem_without_such_files_is_used_all_the_same(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    await store.put("warm", b"")
    tried = 0
    function = getattr(os, name)

    def refuse(path: bytes, *args: int, **named: int) -> object:
        nonlocal tried
        if name == "open" and args[0] & os.O_TMPFILE != os.O_TMPFILE:
            return function(path, *args, **named)
        tried += 1
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, refuse)
    for key in ("x/a", "x/b", "y/c"):
        assert isinstance(await store.put(key, key.encode(), CREATE), Written)
        assert await store.put(key, b"other", CREATE) == Lost()
    assert tried == 1
    assert await contents(store) == {"warm": b"", "x/a": b"x/a", "x/b": b"x/b", "y/c": b"y/c"}


async def test_a_write_that_fails_leaves_no_folder(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("x/warm", b"")

    def full(descriptor: int, body: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Unavailable, match="No space left"):
            await store.put("x/y/z/a", b"1", CREATE)
    assert files(root) == ["x", "x/warm"]
    assert isinstance(await store.put("x/y/z/a", b"1", CREATE), Written)


async def test_an_error_names_the_object(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("x/warm", b"")

    def full(source: bytes, name: bytes, *, dst_dir_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(Unavailable, match=f"put x/a: {root}/x/a: No space left"):
        await store.put("x/a", b"1", CREATE)


def test_a_folder_is_new_until_all_who_made_it_are_safe() -> None:
    """It may have been removed in between, and made again."""
    fresh, folder = Fresh(), (b"a", b"b")
    fresh.enter(folder)
    fresh.enter(folder)
    assert fresh.above((*folder, b"c", b"d")) == [(b"a",)]
    assert fresh.above((b"a",)) == []
    fresh.leave([folder])
    assert fresh.above(folder) == [(b"a",)]
    fresh.enter((b"a",))
    assert fresh.above(folder) == [(b"a",), ()]
    fresh.leave([folder, (b"a",)])
    assert fresh.above(folder) == []


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent() -> None:
    fresh = Fresh()
    fresh._process = -1
    fresh._lock.acquire()
    fresh.enter((b"a",))
    assert fresh.above((b"a", b"b")) == [()]
