"""Many files are forced to disk at once, by forcing their filesystem: nobody is told too early, or kept waiting."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import disk
from holdfast.base.errors import Ambiguous, Unavailable
from holdfast.objects.local import LocalStore, root, together
from holdfast.objects.local.files import OpenFolder
from holdfast.objects.store import CREATE, Lost, Written
from tests.unit.objects.local_kit import open_below


class Filesystem:
    """It is forced to disk as a whole when the test says so, and that may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds = 0
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.error: OSError | None = None
        monkeypatch.setattr(disk, "_forced_as_a_whole", self._force)

    def _force(self, descriptor: int) -> OSError | None:
        self.rounds += 1
        self.begun.release()
        if not self.allowed.acquire(timeout=60):
            raise TimeoutError
        return self.error

    async def wait(self) -> None:
        """Until a round has begun that had not before."""
        while not self.begun.acquire(blocking=False):
            await asyncio.sleep(0.001)


@pytest.fixture
def filesystem(monkeypatch: pytest.MonkeyPatch) -> Iterator[Filesystem]:
    """All beyond the first is forced together, and nothing is late."""
    monkeypatch.setattr(root, "_has_journal", lambda _device: False)
    monkeypatch.setattr(root, "filesystem_type", lambda _device, _mounts: "ext4")
    monkeypatch.setattr(together, "FEW", 0)
    monkeypatch.setattr(together, "LATE_SECONDS", 60.0)
    filesystem = Filesystem(monkeypatch)
    yield filesystem
    for _ in range(1000):
        filesystem.allowed.release()


Writing = asyncio.Task[Written | Lost]


def write(store: LocalStore, *keys: str) -> list[Writing]:
    return [asyncio.ensure_future(store.put(key, key.encode(), CREATE)) for key in keys]


async def opened(path: Path) -> LocalStore:
    """A store whose own folder is made."""
    store = LocalStore(path)
    await asyncio.to_thread(store._root.writable)
    return store


async def test_bytes_names_and_folders_of_several_take_two_rounds(tmp_path: Path, filesystem: Filesystem) -> None:
    store = await opened(tmp_path)
    keys = [f"new/{number}/object" for number in range(5)]
    writers = write(store, *keys)
    await filesystem.wait()
    assert not any((tmp_path / key).exists() for key in keys)  # before their bytes are safe nobody sees them
    filesystem.allowed.release()
    await filesystem.wait()
    assert all((tmp_path / key).exists() for key in keys)
    assert not any(writer.done() for writer in writers)
    filesystem.allowed.release()
    assert all(isinstance(outcome, Written) for outcome in await asyncio.gather(*writers))
    assert filesystem.rounds == 2


async def test_who_comes_while_a_round_is_under_way_waits_for_the_next(tmp_path: Path, filesystem: Filesystem) -> None:
    store = await opened(tmp_path)
    (first,) = write(store, "a/1")
    await filesystem.wait()
    (second,) = write(store, "a/2")
    await asyncio.sleep(0.02)
    filesystem.allowed.release()
    await filesystem.wait()  # the first one's name, and the second one's bytes
    assert (tmp_path / "a/1").exists()
    assert not (tmp_path / "a/2").exists()
    filesystem.allowed.release()
    await first
    await filesystem.wait()
    assert not second.done()
    filesystem.allowed.release()
    await second
    assert filesystem.rounds == 3


async def test_a_round_that_fails_fails_for_all_in_it(
    tmp_path: Path, filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "REST_SECONDS", 0.0)
    store = await opened(tmp_path)
    unseen = write(store, "a/1", "a/2")
    await filesystem.wait()
    filesystem.error = OSError(errno.EIO, os.strerror(errno.EIO))
    filesystem.allowed.release()
    for writer in unseen:
        with pytest.raises(Unavailable):
            await writer
    filesystem.error = None
    filesystem.allowed.release()
    named = write(store, "b/1", "b/2")
    await filesystem.wait()
    await filesystem.wait()
    filesystem.error = OSError(errno.EIO, os.strerror(errno.EIO))
    filesystem.allowed.release()
    for writer in named:
        with pytest.raises(Ambiguous, match="gone after a power cut"):
            await writer


async def test_after_a_failure_everybody_is_forced_alone(tmp_path: Path, filesystem: Filesystem) -> None:
    """The system tells of it once: it may be about bytes that were to be safe with the next round."""
    store = await opened(tmp_path)
    (first,) = write(store, "a/1")
    await filesystem.wait()
    (second,) = write(store, "a/2")
    await asyncio.sleep(0.02)
    filesystem.error = OSError(errno.EIO, os.strerror(errno.EIO))
    filesystem.allowed.release()
    with pytest.raises(Unavailable):
        await first
    assert isinstance(await second, Written)
    assert isinstance(await store.put("a/3", b"", CREATE), Written)
    assert filesystem.rounds == 1
    assert await open_below(tmp_path) == 0


async def test_a_file_that_was_not_written_is_told_of_although_its_round_has_not_failed(
    tmp_path: Path, filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else was told of it."""
    filesystem.allowed.release(50)
    store = await opened(tmp_path)
    monkeypatch.setattr(disk, "lost_since", lambda _descriptor: OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(Unavailable):
        await store.put("a", b"1", CREATE)
    assert not (tmp_path / "a").exists()


async def test_the_system_is_asked_what_it_has_lost(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    for path in (tmp_path / "a", tmp_path):
        descriptor = os.open(path, os.O_RDONLY)
        assert disk.lost_since(descriptor) is None
        os.close(descriptor)
    lost = disk.lost_since(-1)
    assert lost is not None
    assert lost.errno == errno.EBADF


async def test_nobody_waits_for_a_round_that_is_late(
    tmp_path: Path, filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger has left much unwritten: files are forced alone, now and for a while."""
    monkeypatch.setattr(together, "LATE_SECONDS", 0.02)
    store = await opened(tmp_path)
    writers = write(store, *(f"new/{number}/object" for number in range(5)))
    await filesystem.wait()
    assert all(isinstance(outcome, Written) for outcome in await asyncio.gather(*writers))
    assert all(isinstance(outcome, Written) for outcome in await asyncio.gather(*write(store, "a", "b", "c")))
    assert filesystem.rounds == 1
    filesystem.allowed.release()
    await asyncio.sleep(0.05)
    assert isinstance(await store.put("d", b"", CREATE), Written)
    assert filesystem.rounds == 1  # it rests, although the late one has ended
    assert await open_below(tmp_path) == 0


async def test_after_the_rest_there_are_rounds_again(
    tmp_path: Path, filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "LATE_SECONDS", 0.02)
    monkeypatch.setattr(together, "REST_SECONDS", 0.0)
    store = await opened(tmp_path)
    assert isinstance(await store.put("a", b"", CREATE), Written)  # its round is late, and still under way
    assert isinstance(await store.put("b", b"", CREATE), Written)
    assert filesystem.rounds == 1
    filesystem.allowed.release(50)
    await asyncio.sleep(0.05)
    assert isinstance(await store.put("c", b"", CREATE), Written)
    assert filesystem.rounds > 1


async def test_a_few_are_forced_alone(tmp_path: Path, filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "FEW", 3)
    store = await opened(tmp_path)
    assert isinstance(await store.put("a/b", b"", CREATE), Written)
    assert filesystem.rounds == 0
    filesystem.allowed.release(50)
    await asyncio.gather(*write(store, *(f"c/{number}" for number in range(9))))
    assert filesystem.rounds > 0


async def test_nothing_stays_open(tmp_path: Path, filesystem: Filesystem) -> None:
    filesystem.allowed.release(50)
    store = await opened(tmp_path)
    await store.put("a", b"", CREATE)
    await asyncio.gather(*write(store, *(f"new/{number}/object" for number in range(9))))
    await asyncio.sleep(0.05)
    assert await open_below(tmp_path) == 0
    assert filesystem.rounds > 0


async def test_another_filesystem_below_the_root_is_not_covered(
    tmp_path: Path, filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenFolder, "device", property(lambda folder: folder.descriptor))
    store = await opened(tmp_path)
    assert isinstance(await asyncio.wait_for(store.put("a/b", b"", CREATE), 10), Written)
    assert filesystem.rounds == 0


@pytest.mark.parametrize(("kind", "journal"), [("ext4", True), ("xfs", False), ("btrfs", False), ("tmpfs", False)])
async def test_other_filesystems_are_not_forced_as_a_whole(
    tmp_path: Path, filesystem: Filesystem, monkeypatch: pytest.MonkeyPatch, kind: str, journal: bool
) -> None:
    monkeypatch.setattr(root, "_has_journal", lambda _device: journal)
    monkeypatch.setattr(root, "filesystem_type", lambda _device, _mounts: kind)
    store = await opened(tmp_path)
    await asyncio.gather(*write(store, *(f"a/{number}" for number in range(9))))
    assert filesystem.rounds == 0


async def test_the_whole_is_forced_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the disk's own memory once more after it."""
    forced: list[int] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    folder = os.open(tmp_path, os.O_RDONLY)
    ended: list[OSError | None] = []
    try:
        disk.force_filesystem(folder, ended.append)
        deadline = time.monotonic() + 60
        while not ended and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        assert ended == [None]
        assert forced == [folder]
    finally:
        os.close(folder)
    disk.force_filesystem(-1, ended.append)
    while len(ended) < 2:
        await asyncio.sleep(0.001)
    assert ended[1] is not None
    assert ended[1].errno == errno.EBADF
