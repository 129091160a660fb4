"""The size bound of a cache folder, kept across every process that shares it, and the files that it may evict.

    ledger                       bytes taken, as a decimal number; its lock admits one process at a time
    tmp/<id>                     a file being written, locked by its writer
    <aa>/<entry>.meta            what an entry is; its modification time is the entry's last use
    <aa>/<entry>.<sum>.data      the object's bytes; locked (shared) while somebody has it pinned

Space is taken before a byte is written: ``take`` runs under the ledger's lock, and what it makes has its full length
from the start. So the ledger may say too much, after a kill or a drop, but never too little, and the sum of all files
stays within the bound at every moment. A look at the folder itself happens only when the ledger says that the bound is
reached; it then frees a tenth of the bound at once, so that its cost is spread over many writes. Locks are the
kernel's: they end with the process that held them, so a file that nobody has locked is a file that nobody is using.

Nothing here waits for another process: a ledger that is taken is answered with None, and the object is not cached this
time. ``OSError`` goes to the caller.
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
"""Files are charged in whole blocks, so that many small ones count for what they take."""
KEPT_TENTHS = 9
"""How much of the bound stays filled after an eviction."""
META, DATA = ".meta", ".data"
PRIVATE = 0o600
"""Cached bytes are as secret as the bucket that they came from."""


def charged(size: int) -> int:
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock the file until it is closed or the process ends; False, at once, if somebody else holds it."""
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
        # Locks of the kernel keep processes apart; threads of this one are worth waiting for.
        self._mutex = threading.Lock()

    def take(self, size: int, make: Callable[[], T]) -> T | None:
        """Run ``make``, which adds files charged ``size`` in all; None if there is no room, or no say now."""
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
        """Evict what was used least recently until ``wanted`` fits; what all files together are charged afterwards."""
        # Files move from tmp into place, never back: looking there first sees each at least once.
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
        """Remove what killed writers left; what the living ones are charged."""
        taken = 0
        for path, status in _files(self.temporary):
            if not remove_unlocked([path]):
                taken += charged(status.st_size)
        return taken


class _Entry(NamedTuple):
    """Ordered by what should go first: fragments, then by last use."""

    whole: bool
    used_ns: int
    size: int
    paths: tuple[str, ...]

    def remove(self) -> bool:
        return remove_unlocked(self.paths)


def remove_unlocked(paths: Iterable[str]) -> bool:
    """Remove the files together, unless one of them is locked. A file that is gone already is as good as removed."""
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
        # The meta goes first: data without it is a fragment, while a meta without data would look like an entry.
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
