"""Where a local store may live, its layout, and the files of dead writers."""

import errno
import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, Refused
from holdfast.objects.local import LocalStore
from holdfast.objects.local import root as local_root
from holdfast.objects.local.locks import OPENING
from tests.unit.objects.local.local_kit import contents, keys, staged


async def test_a_file_is_no_root_and_a_link_may_be_one(root: Path) -> None:
    root.write_bytes(b"precious")
    for call in (LocalStore(root).put("a", b""), LocalStore(root / "below").put("a", b""), LocalStore(root).get("a")):
        with pytest.raises(Invalid, match=str(root)) as caught:
            await call
        assert caught.value.remedy is not None
    assert root.read_bytes() == b"precious"
    root.unlink()
    (root.parent / "disk").mkdir()
    root.symlink_to("disk")
    store = LocalStore(root)
    await store.put("a/b", b"1")
    assert await keys(store) == ["a/b"]
    assert (root.parent / "disk/a/b").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("layout", "error"),
    [
        ('{"format": "holdfast.local", "version": 2}', Incompatible),
        ('{"format": "holdfast.local", "version": 1, "fold": true}', Refused),
        ("{", Corrupt),
    ],
)
async def test_a_layout_that_cannot_be_used_is_refused(root: Path, layout: str, error: type[HoldfastError]) -> None:
    await LocalStore(root).put("a", b"")
    path = root / ".%holdfast/layout.json"
    assert json.loads(path.read_bytes()) == {"format": "holdfast.local", "version": 1}
    path.write_text(layout)
    for call in (LocalStore(root).get("a"), LocalStore(root).put("a", b"")):
        with pytest.raises(error):
            await call


@pytest.mark.parametrize("other", [OPENING.upper(), "opening-e\u0301"])
async def test_a_filesystem_that_takes_two_names_for_one_is_refused(root: Path, other: str) -> None:
    await LocalStore(root).put("Key", b"")
    (root / ".%holdfast/locks" / other).touch()  # as such a filesystem would show the lock
    with pytest.raises(Refused, match="takes two names for one"):
        await LocalStore(root).put("key", b"")


async def test_files_of_dead_writers_are_swept_and_those_of_live_ones_are_not(root: Path) -> None:
    await LocalStore(root).put("a", b"")
    staging = root / ".%holdfast/staging"
    (staging / "dead").write_bytes(b"half")
    with (staging / "alive").open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        await LocalStore(root).put("b", b"")
        assert staged(root) == ["alive"]
    await LocalStore(root).put("b", b"")
    assert staged(root) == []


async def test_a_network_filesystem_is_refused_unless_the_risk_is_accepted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = root.parent.stat().st_dev
    mounts = root.parent / "mountinfo"
    mounts.write_text(f"40 29 {os.major(device)}:{os.minor(device)} / /mnt rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(local_root, "MOUNTS", mounts)
    for call in (LocalStore(root).get("a"), LocalStore(root).put("a", b"")):
        with pytest.raises(Refused, match="nfs4") as caught:
            await call
        assert "unsafe_network_filesystem" in str(caught.value.remedy)
    assert not root.exists()
    flock = fcntl.flock

    def flock_files_only(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):  # as on NFS
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_files_only)
    store = LocalStore(root, unsafe_network_filesystem=True)
    for key in ("a", "a/b", "a"):
        await store.put(key, b"1")
    assert await contents(store) == {"a": b"1", "a/b": b"1"}
