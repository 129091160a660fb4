"""Where a local store may live, what it makes there, and what it says where it cannot."""

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Corrupt, Incompatible, Invalid, Refused
from holdfast.objects.local import LocalStore
from holdfast.objects.local import root as local_root
from holdfast.objects.local.files import Folder
from holdfast.objects.store import OVERWRITE
from tests.unit.objects.local.local_kit import contents, files, keys, staged

PROJECT = Path(__file__).parents[4]
MiB = 1024 * 1024


async def test_a_file_is_no_root(root: Path) -> None:
    root.write_bytes(b"precious")
    for store in (LocalStore(root), LocalStore(root / "below")):
        with pytest.raises(Invalid, match=str(root)) as caught:
            await store.put("a", b"")
        assert caught.value.remedy is not None
    with pytest.raises(Invalid):
        await LocalStore(root).get("a")
    assert root.read_bytes() == b"precious"


async def test_a_root_may_be_reached_through_a_link(root: Path) -> None:
    (root.parent / "disk").mkdir()
    root.symlink_to("disk")
    store = LocalStore(root)
    await store.put("a/b", b"1")
    assert await keys(store) == ["a/b"]
    assert (root.parent / "disk/a/b").read_bytes() == b"1"


# Layout


async def test_the_layout_of_a_newer_client_is_refused(root: Path) -> None:
    await LocalStore(root).put("a", b"")
    layout = root / ".%holdfast/layout.json"
    assert json.loads(layout.read_bytes()) == {"format": "holdfast.local", "version": 1, "fold": False}
    layout.write_text('{"format": "holdfast.local", "version": 2}')
    for call in (LocalStore(root).get("a"), LocalStore(root).put("a", b"")):
        with pytest.raises(Incompatible):
            await call
    layout.write_text("{")
    with pytest.raises(Corrupt):
        await LocalStore(root).get("a")


async def test_before_there_is_a_layout_plain_files_are_found(root: Path) -> None:
    store = LocalStore(root)
    assert await store.find("a") is None
    root.mkdir()
    (root / "a").write_bytes(b"copied in")
    assert (await store.get("a")).body == b"copied in"
    assert await store.link("a", root / "b") == 9
    assert await contents(store) == {"a": b"copied in", "b": b"copied in"}


async def test_a_store_that_another_writer_makes_meanwhile_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    look = Folder.look
    other = LocalStore(root)

    def made_before(folder: Folder, name: bytes) -> os.stat_result | None:
        monkeypatch.setattr(Folder, "look", look)
        other._put("a", b"1", OVERWRITE)
        return look(folder, name)

    store = LocalStore(root)
    monkeypatch.setattr(Folder, "look", made_before)
    assert (await store.get("a")).body == b"1"


async def test_where_names_are_folded_keys_are_kept_apart(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_root, "_SAME_IF_FOLDED", [local_root._PROBE])  # every filesystem seems to fold
    wanted = sorted(["Key", "key", "KEY/a", "key/a", "é", "e\u0301"])
    for key in wanted:
        await LocalStore(root).put(key, key.encode())
    assert files(root) == sorted(
        ["%4b%45%59", "%4b%45%59/a", "%4bey", "key", "key/%self", "key/a", "%c3%a9", "e%cc%81"]
    )
    monkeypatch.undo()
    store = LocalStore(root)  # the layout stays, wherever the store is copied
    assert await contents(store) == {key: key.encode() for key in wanted}


async def test_a_store_is_refused_where_its_names_would_run_together(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await LocalStore(root).put("Key", b"")
    monkeypatch.setattr(local_root, "_SAME_IF_FOLDED", [local_root._PROBE])
    with pytest.raises(Refused, match="this one is not"):
        await LocalStore(root).put("key", b"")


# Staging


async def test_what_dead_writers_left_is_swept_and_what_live_ones_write_is_not(root: Path) -> None:
    await LocalStore(root).put("a", b"")
    staging = root / ".%holdfast/staging"
    (staging / "dead").write_bytes(b"half")
    with (staging / "alive").open("wb") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        await LocalStore(root).put("b", b"")
        assert staged(root) == ["alive"]
    await LocalStore(root).put("b", b"")
    assert staged(root) == []


# Network filesystems


async def test_a_network_filesystem_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = root.parent.stat().st_dev
    mounts = root.parent / "mountinfo"
    mounts.write_text(f"40 29 {os.major(device)}:{os.minor(device)} / /mnt rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(local_root, "MOUNTS", mounts)
    for call in (LocalStore(root).get("a"), LocalStore(root).put("a", b"")):
        with pytest.raises(Refused, match="nfs4") as caught:
            await call
        assert "unsafe_network_filesystem" in str(caught.value.remedy)
    assert not root.exists()
    await LocalStore(root, unsafe_network_filesystem=True).put("a", b"1")
    assert (root / "a").read_bytes() == b"1"


async def test_folders_that_cannot_be_locked_are_used_all_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where the option accepts the risk."""
    flock = fcntl.flock

    def flock_files_only(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_files_only)
    store = LocalStore(root)
    for key in ("a", "a/b", "a"):
        await store.put(key, b"1")
    assert await contents(store) == {"a": b"1", "a/b": b"1"}


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
    done = subprocess.run([*command, *program], cwd=PROJECT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


@pytest.mark.parametrize("fresh", [False, True], ids=["in use", "fresh"])
@pytest.mark.parametrize("within", [FORBIDDEN, READ_ONLY][: 1 + MOUNTS_ALLOWED], ids=["forbidden", "read-only"])
async def test_a_folder_that_cannot_be_written_is_named_with_a_remedy(
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
