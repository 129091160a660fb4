"""Disk cache for immutable objects, shared by the processes of a machine. A part of ``Client``.

``immutable`` says which keys may be cached: those that are unique by construction, whose bytes never change while they
exist. A cached object may be returned after another client has deleted it; but its bytes are right. A write or
delete through the same client removes the object from the cache before the call returns.

    <directory>/objects-2/<aa>/<hash of namespace and key>/<checksum>.<version>    the object's bytes
    <directory>/objects-2/tmp/<id>                                                 a file that is being written
    <directory>/objects-2/growth                                                   see ``_make_room``

A file's modification time is the object's, its access time is the last use. A file is written under ``tmp`` and renamed
into place, and never changes. There is no fsync: every process compares a file with its checksum before the first use,
so a file that a power failure has damaged is removed and fetched again.

``max_bytes`` holds for the files that are in place when a scan begins; those that several processes write during the
scan may exceed it for a moment.

The cache never raises an error of the disk. It logs the error, and the store answers instead.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from holdfast.base.aio import blocking, finishing
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.store import Object, Part, Version

P = ParamSpec("P")
T = TypeVar("T")

Fetch = Callable[[str], Awaitable[Object]]
"""Reads an object from the store."""

LAYOUT = "objects-2"
BLOCK_BYTES = 4096
"""Files are charged in whole blocks, as they use the disk."""
KEPT_TENTHS = 8
"""How many tenths of the bound stay filled after a scan, the new file included."""
ABANDONED_S = 3600
"""A file under ``tmp`` that is older was left by a killed process."""
NAME_BYTES = 255
VERIFIED_MAX = 100_000
"""Paths of verified files that a process remembers; when there are more, all are dropped."""

_log = logger("objects")


class _Entry(NamedTuple):
    """A cached object whose file is open and verified."""

    file: FileIO
    path: Path
    size: int
    modified_ns: int
    version: Version


class DiskCache:
    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        namespace: str,
        immutable: Callable[[str], bool],
        ambient: Ambient,
    ) -> None:
        """``namespace`` keeps stores apart that share the directory."""
        self._root = directory / LAYOUT
        self._temporary = self._root / "tmp"
        self._max_bytes = max_bytes
        self._namespace = namespace
        self._immutable = immutable
        self._ambient = ambient
        self._verified: set[Path] = set()
        self._disabled = False
        """Set when a file could not be removed: then every read asks the store, because the file may be outdated."""
        self._problem: str | None = None
        """The last error of the disk, which is logged once."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def covers(self, key: str) -> bool:
        """Whether the object under this key may be cached."""
        return not self._disabled and self._immutable(key)

    async def contains(self, key: str) -> bool:
        """Whether a read of the key would be answered from disk now."""
        return self.covers(key) and await self._disk(self._has, key) is True

    async def get(self, key: str, fetch: Fetch) -> Object:
        """The object from disk, or from the store. Of callers that ask at the same time, one sends a request."""
        async with self._lock(key):
            found = await self._disk(self._read, key)
            return found if found is not None else await self._fetch(key, fetch)

    async def range(self, key: str, start: int, end: int, ask: Callable[[], Awaitable[Part]]) -> Part:
        """Bytes ``start`` to ``end`` of a cached object, or the answer of the store, which is not cached."""
        part = await self._disk(self._read_part, key, start, end)
        return part if part is not None else await ask()

    async def link(self, key: str, path: Path, fetch: Fetch) -> int:
        """Make ``path`` a hard link to the object's file, or a copy if it is on another disk. Returns the size."""
        async with self._lock(key):
            size = await self._disk(self._link, key, path)
            if size is not None:
                return size
            found = await self._fetch(key, fetch)
            if await self._disk(self._link, key, path) is None:
                await blocking(path.write_bytes, found.body)
            return len(found.body)

    @asynccontextmanager
    async def changing(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Around a write or delete. Reads of these objects wait until it has ended and they are not cached any more."""
        covered = sorted({key for key in keys if self.covers(key)})
        async with AsyncExitStack() as locked:
            for key in covered:
                await locked.enter_async_context(self._lock(key))
            try:
                yield
            finally:
                await self._remove(covered)

    async def discard(self, keys: Iterable[str]) -> None:
        """Remove objects that another client has changed after all."""
        async with self.changing(keys):
            pass

    async def _fetch(self, key: str, fetch: Fetch) -> Object:
        found = await fetch(key)
        await self._disk(self._write, found)
        return found

    def _lock(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def _disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The result of ``work``, which runs in a thread; None after an error of the disk."""
        try:
            return await finishing(work, *args, **kwargs)
        except OSError as error:
            if error.strerror != self._problem:
                self._problem = error.strerror
                _log.warning("the disk cache in %s cannot be used: %s", self._root.parent, error)
            return None

    async def _remove(self, keys: list[str]) -> None:
        if keys and await self._disk(self._remove_all, keys) is None:
            self._disabled = True

    # --- in a worker thread ---

    def _has(self, key: str) -> bool:
        entry = self._open(key)
        if entry is not None:
            entry.file.close()
        return entry is not None

    def _read(self, key: str) -> Object | None:
        entry = self._open(key)
        if entry is None:
            return None
        with entry.file as file:
            return Object(key, file.readall(), entry.modified_ns, entry.version)

    def _read_part(self, key: str, start: int, end: int) -> Part | None:
        entry = self._open(key)
        if entry is None:
            return None
        with entry.file as file:
            file.seek(start)
            return Part(file.read(max(0, min(end, entry.size) - start)), entry.size, entry.version)

    def _link(self, key: str, path: Path) -> int | None:
        entry = self._open(key)
        if entry is None:
            return None
        with entry.file as file:
            try:
                path.hardlink_to(entry.path)
            except OSError:  # on another disk, or evicted since it was opened
                with path.open("xb") as copy:
                    shutil.copyfileobj(file, copy)
        return entry.size

    def _open(self, key: str) -> _Entry | None:
        """The cached object, open at its start; None if it is not here or damaged."""
        for path in _children(self._folder(key)):
            try:
                file = FileIO(path)
            except FileNotFoundError:
                continue  # evicted since it was listed
            checksum, _, version = path.name.partition(".")
            if not self._is_intact(file, path, checksum):
                file.close()
                _remove(path)
                continue
            status = os.fstat(file.fileno())
            with suppress(OSError):  # evicted, or of another user: a use that is not noted does no harm
                os.utime(path, ns=(self._ambient.clock.wall_ns(), status.st_mtime_ns))
            return _Entry(file, path, status.st_size, status.st_mtime_ns, Version(unquote(version)))
        return None

    def _is_intact(self, file: FileIO, path: Path, checksum: str) -> bool:
        if path in self._verified:
            return True
        if hashlib.file_digest(file, _hasher).hexdigest() != checksum:
            return False
        file.seek(0)
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified.add(path)
        return True

    def _write(self, found: Object) -> None:
        """Add the object, unless it is large for the bound or its version is too long for a file name."""
        name = f"{_hasher(found.body).hexdigest()}.{quote(found.version, safe='')}"
        size = _charge(len(found.body))
        if size > self._max_bytes // 2 or len(name) > NAME_BYTES:
            return
        self._temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make_room(size)
        draft = self._temporary / self._ambient.ids.unique()
        try:
            draft.touch(mode=0o600, exist_ok=False)
            draft.write_bytes(found.body)
            os.utime(draft, ns=(self._ambient.clock.wall_ns(), found.modified_ns))
            folder = self._folder(found.key)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.rename(folder / name)
        finally:
            draft.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Note that ``size`` bytes will be written. If that makes a tenth of the bound since the last scan, scan again.

        ``growth`` has one byte for each block that was written since then. Processes append to it without a lock.
        """
        with (self._root / "growth").open("ab", buffering=0) as growth:
            growth.write(bytes(size // BLOCK_BYTES))
            if growth.tell() * BLOCK_BYTES <= self._max_bytes // 10:
                return
            growth.truncate(0)
        self._evict(self._max_bytes * KEPT_TENTHS // 10 - size)

    def _evict(self, goal: int) -> None:
        """Remove the files used longest ago until the others take at most ``goal`` bytes."""
        taken = 0
        for path, status in _statuses(self._temporary.iterdir()):
            if self._ambient.clock.wall_ns() - status.st_ctime_ns > ABANDONED_S * 10**9:
                path.unlink(missing_ok=True)
            else:
                taken += _charge(status.st_size)
        files = [
            (status.st_atime_ns, _charge(status.st_size), path) for path, status in _statuses(self._root.glob("??/*/*"))
        ]
        taken += sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if taken <= goal:
                return
            _remove(path)
            taken -= size

    def _remove_all(self, keys: list[str]) -> bool:
        for key in keys:
            for path in _children(self._folder(key)):
                _remove(path)
        return True

    def _folder(self, key: str) -> Path:
        name = _hasher(f"{self._namespace}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()
        return self._root / name[:2] / name


def _hasher(data: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _charge(size: int) -> int:
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _statuses(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in paths:
        with suppress(FileNotFoundError):  # another process has removed it
            yield path, path.stat()


def _remove(path: Path) -> None:
    """Remove a file, and its directory if that was the last one in it."""
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()
