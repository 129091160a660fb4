"""Writes to a local store that fail, hang or race with a fork, and disks that cannot be written."""

import asyncio
import errno
import gc
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Unavailable
from holdfast.objects.local import LocalStore
from holdfast.objects.store import CREATE, OVERWRITE, Mode, Written, content_version
from tests.tidy.tree import ROOT
from tests.unit.objects.local.local_kit import contents, files, locks, staged

MiB = 1024 * 1024


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_a_cancelled_write_that_waits_for_a_lock_leaves_nothing(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.base.aio.PATIENCE_SECONDS", 0.01)
    await store.put("a/0", b"")
    before = open_files()
    with locks(root).writing((b"a", b"b")):
        cancelled = asyncio.ensure_future(store.put("a/b", b"mine", CREATE))
        while not staged(root):
            await asyncio.sleep(0.001)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert files(root) == ["a", "a/0"]
    del cancelled
    while staged(root) or open_files() > before:
        await asyncio.sleep(0.001)
    assert await contents(store) == {"a/0": b"", "a/b": b"mine"}


@pytest.mark.parametrize("mode", [OVERWRITE, CREATE], ids=["overwrite", "create"])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
async def test_a_write_that_fails_leaves_nothing(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, call: str
) -> None:
    """An fsync is tried once: the system reports a lost write once, so a second fsync would prove nothing."""
    await store.put("x/warm", b"")
    before = open_files()
    function, failed = getattr(os, call), 0

    def full(target: int | bytes, *args: object, **named: object) -> object:
        nonlocal failed
        if isinstance(target, int) and stat.S_ISDIR(os.fstat(target).st_mode):
            return function(target, *args, **named)
        failed += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(Unavailable, match="No space left"):
            await store.put("x/y/z/a", b"1", mode)
    assert failed == 1
    assert files(root) == ["x", "x/warm"]
    assert staged(root) == []
    await store.close()
    assert open_files() <= before
    assert isinstance(await store.put("x/y/z/a", b"1", CREATE), Written)


async def test_a_directory_that_could_not_be_fsynced_is_fsynced_by_the_next_writer(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("warm", b"")
    fsync, number, synced = os.fsync, root.stat().st_ino, list[int]()

    def fail(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    def recorded(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Unavailable, match="Input/output error"):
        await store.put("x/1", b"1", CREATE)
    monkeypatch.setattr(os, "fsync", recorded)
    assert isinstance(await store.put("x/2", b"2", CREATE), Written)
    assert number in synced


async def test_a_store_works_on_either_side_of_a_fork(store: LocalStore, root: Path) -> None:
    async def work(name: str) -> bool:
        found = [await store.put(f"x/{name}/{number}", b"", CREATE) for number in range(5)]
        version = content_version(b"")
        return all(outcome == Written(version) for outcome in found) and (await store.get("x/a")).body == b"1"

    await store.put("x/a", b"1")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if asyncio.run(work("child")) else 1
        finally:
            os._exit(status)
    assert await work("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(await contents(store)) == 11


async def test_deleting_works_on_a_disk_that_takes_no_more_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# Disks that cannot be written. What needs a mount of its own is left out where mounting is not allowed; the first case
# of each kind needs none.

AS_ROOT = os.geteuid() == 0
NAMESPACE = ["unshare", "--mount"] if AS_ROOT else ["unshare", "--mount", "--map-root-user"]
MOUNTS_ALLOWED = subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


def mounted(how: str) -> list[str]:
    return [*NAMESPACE, "sh", "-c", f'set -e; {how}; exec "$@"', "sh"]


FORBIDDEN = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if AS_ROOT else []
READ_ONLY = mounted("mount --bind {root} {root}; mount -o remount,ro,bind {root}")
SMALL = mounted("mount -t tmpfs -o size=1m tmpfs {root}")


def attempt(root: Path, within: list[str], *, size: int = 1, file_limit: int = 0) -> dict[str, Any]:
    command = [part.replace("{root}", str(root)) for part in within]
    program = [sys.executable, "-m", "tests.unit.objects.local.local_attempt", str(root), str(size), str(file_limit)]
    done = subprocess.run([*command, *program], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


@pytest.mark.parametrize("fresh", [False, True], ids=["in use", "fresh"])
@pytest.mark.parametrize("within", [FORBIDDEN, READ_ONLY][: 1 + MOUNTS_ALLOWED], ids=["forbidden", "read-only"])
async def test_a_directory_that_cannot_be_written_is_named_with_a_remedy(
    root: Path, within: list[str], fresh: bool
) -> None:
    root.mkdir()
    if not fresh:
        await LocalStore(root).put("old", b"")
    for folder in (root, *root.rglob("*/")):
        folder.chmod(0o555)
    outcome = attempt(root, within)
    assert outcome["kind"] == "denied"
    assert outcome["message"].startswith(f"put new/object: {root}")
    assert "\n" not in outcome["message"]
    assert str(root) in outcome["remedy"]
    assert outcome["keys"] == ([] if fresh else ["old"])
    assert outcome["staged"] == []


@pytest.mark.parametrize(
    ("within", "file_limit"), [([], MiB), (SMALL, 0)][: 1 + MOUNTS_ALLOWED], ids=["file limit", "small disk"]
)
def test_a_full_disk_leaves_nothing_half_written(root: Path, within: list[str], file_limit: int) -> None:
    root.mkdir()
    outcome = attempt(root, within, size=2 * MiB, file_limit=file_limit)
    assert outcome["kind"] == "unavailable"
    assert outcome["maybe_applied"] is False
    assert outcome["message"].startswith(f"put new/object: {root}: ")
    assert "make room" in outcome["remedy"]
    assert outcome["keys"] == outcome["staged"] == []
    assert attempt(root, within, size=MiB // 2, file_limit=file_limit)["keys"] == ["new/object"]
