"""The size bound of a cache directory, for all processes that share it, and eviction.

    ledger                       bytes used, as a decimal number; locked by one process at a time
    tmp/<id>                     a file being written, locked by its writer
    <aa>/<entry>.meta            an entry's metadata; its modification time is the last use
    <aa>/<entry>.<sum>.data      the object's bytes; locked (shared) while it is pinned

Space is reserved before a byte is written: ``take`` runs under the ledger's lock, and the files it makes have their
full length from the start. So the ledger may overstate, after a kill or a drop, but never understate, and all files
together stay within the bound at every moment. The directory is scanned only when the ledger reaches the bound;
eviction then frees a tenth of the bound, so that the cost of a scan is spread over many writes. Locks are ``flock``:
they end with the process, so an unlocked file is not in use.

Nothing here waits for another process: if the ledger is locked, ``take`` returns None and the object is not cached.
``OSError`` is raised to the caller.
"""

import fcntl
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

BLOCK_BYTES = 4096
"""Files are charged in whole blocks, as they use the disk."""
KEPT_TENTHS = 9
"""How much of the bound stays filled after an eviction."""
META, DATA = ".meta", ".data"
PRIVATE = 0o600
"""Cached bytes are as secret as the store that they came from."""


def charged(size: int) -> int:
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock the file until it is closed or the process ends; False, at once, if it is locked."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def opened(path: Path | str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags, PRIVATE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Space:
    def __init__(self, root: Path, max_bytes: int, evicted: Callable[[int], None]) -> None:
        self.root = root
        self.temporary = root / "tmp"
        self.max_bytes = max_bytes
        self._evicted = evicted
        # flock excludes other processes; threads of this one wait for each other.
        self._mutex = threading.Lock()

    def take(self, size: int, make: Callable[[], T]) -> T | None:
        """Run ``make``, which adds files charged ``size`` in all; None if there is no room, or the ledger is locked."""
        if size > self.max_bytes:
            return None
        self.temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._mutex, opened(self.root / "ledger", os.O_RDWR | os.O_CREAT) as ledger:
            if not try_lock(ledger):
                return None
            taken = _read(ledger)
            if taken is None or taken + size > self.max_bytes:
                taken = self._free(size)
                _write(ledger, taken)
            if taken + size > self.max_bytes:
                return None
            _write(ledger, taken + size)  # first: a kill before the files are there only overstates
            return make()

    def _free(self, wanted: int) -> int:
        """Evict the least recently used entries until ``wanted`` fits. Returns the charge of all files afterwards."""
        # Files move from tmp into place, never back: scanning tmp first sees each file at least once.
        taken = self._clear_temporary()
        entries = [entry for shard in _folders(self.root) if shard.name != "tmp" for entry in _entries(shard)]
        taken += sum(entry.size for entry in entries)
        goal = min(self.max_bytes * KEPT_TENTHS // 10, self.max_bytes - wanted)
        gone = 0
        for entry in sorted(entries):
            if taken <= goal:
                break
            if entry.remove():
                taken -= entry.size
                gone += entry.whole
        self._evicted(gone)
        return taken

    def _clear_temporary(self) -> int:
        """Remove the files of killed writers. Returns the charge of the others."""
        taken = 0
        for path, status in _files(self.temporary):
            if not remove_unlocked([path]):
                taken += charged(status.st_size)
        return taken


class _Entry(NamedTuple):
    """Ordered by eviction: fragments first, then by last use."""

    whole: bool
    used_ns: int
    size: int
    paths: tuple[str, ...]

    def remove(self) -> bool:
        return remove_unlocked(self.paths)


def remove_unlocked(paths: Iterable[str]) -> bool:
    """Remove the files together, unless one of them is locked. A missing file counts as removed."""
    with ExitStack() as held:
        there: list[str] = []
        for path in paths:
            with suppress(FileNotFoundError):
                if not try_lock(held.enter_context(opened(path))):
                    return False
                there.append(path)
        for path in there:
            with suppress(FileNotFoundError):
                os.unlink(path)
    return True


def _entries(shard: "os.DirEntry[str]") -> Iterator[_Entry]:
    groups: dict[str, list[tuple[str, os.stat_result]]] = defaultdict(list)
    for path, status in _files(shard.path):
        groups[os.path.basename(path).partition(".")[0]].append((path, status))
    for files in groups.values():
        # Remove the meta file first: data without it is a fragment, but meta without data would look like an entry.
        files.sort(key=lambda file: not file[0].endswith(META))
        whole = len(files) > 1 and files[0][0].endswith(META)
        size = sum(charged(status.st_size) for _, status in files)
        yield _Entry(whole, files[0][1].st_mtime_ns, size, tuple(path for path, _ in files))


def _folders(root: Path) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(root) as found:
        yield from (item for item in found if item.is_dir(follow_symlinks=False))


def _files(folder: Path | str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as found:
        for item in found:
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since it was listed
            yield item.path, status


def _read(ledger: int) -> int | None:
    text = os.pread(ledger, 32, 0)
    return int(text) if text.strip().isdigit() else None


def _write(ledger: int, taken: int) -> None:
    os.pwrite(ledger, b"%020d\n" % taken, 0)
