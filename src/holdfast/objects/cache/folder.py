"""Objects as files of a cache directory. Blocking; called through ``aio.blocking``.

An entry is two files: the object's bytes, so that other programs can read them by path, and a small ``.meta`` file with
key, version, times and checksum, and a checksum of its own. The meta file is renamed into place last and removed first.
The data file's name contains its checksum, and it is linked, never replaced: a pinned path keeps its bytes.

Every file is checked before its bytes are used: completely on ``read``; on ``part`` and ``pin`` once per process and
file identity (inode, length, modification time). A file that fails is removed and counted as torn. There is no fsync:
after a power failure, the check finds the files that did not survive.

``OSError`` is raised to the caller. The size bound: ``space``.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from holdfast.base.codec import decode, encode
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.objects.cache.space import (
    DATA,
    META,
    Space,
    charged,
    opened,
    remove_unlocked,
    try_lock,
)
from holdfast.objects.store import Meta, Object, Part, Version

LAYOUT = "objects-1"
CHUNK_BYTES = 1024 * 1024
TICK_NS = 50_000_000
"""More than the resolution of file times on any local file system."""
CHECKED_MAX = 100_000
"""Identities of checked files that a process remembers; when there are more, all are dropped."""


@dataclass
class CacheStats:
    """Running totals of one cache in one process. Worker threads count too, hence the lock."""

    hits: int = 0
    """Answered from disk."""
    misses: int = 0
    """Answered by the store."""
    shared: int = 0
    """Answered by a request that another caller had begun."""
    evictions: int = 0
    torn: int = 0
    """Cached files that failed their check and were removed."""
    skipped: int = 0
    """Objects not kept: larger than the bound, no room beside pinned ones, or another process held the ledger."""
    failures: int = 0
    """Disk errors; the store answered the caller."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            setattr(self, name, getattr(self, name) + number)


class _Sidecar(NamedTuple):
    meta: Meta
    checksum: str


class _Entry(NamedTuple):
    """An entry whose data file is open."""

    meta: Meta
    checksum: str
    path: str
    file: int


class _Draft(NamedTuple):
    """Two locked files in tmp: the data with its full length and no bytes yet, the meta complete."""

    data: str
    data_file: int
    meta: str
    meta_file: int


class Pin:
    """Keeps a file in place until ``release``, which may come first if the caller is cancelled while a thread works."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._undo: Callable[[], None] | None = None
        self._released = False

    def hold(self, undo: Callable[[], None]) -> None:
        with self._lock:
            late = self._released
            if not late:
                self._undo = undo
        if late:
            undo()

    def release(self) -> None:
        with self._lock:
            self._released = True
            undo, self._undo = self._undo, None
        if undo is not None:
            undo()


class CacheFolder:
    def __init__(self, folder: Path, *, max_bytes: int, namespace: str, ambient: Ambient, stats: CacheStats) -> None:
        self._root = folder / LAYOUT
        self._namespace = namespace
        self._ambient = ambient
        self._stats = stats
        self._space = Space(self._root, max_bytes, lambda gone: stats.count("evictions", gone))
        self._checked: dict[str, tuple[int, int, int]] = {}

    def meta(self, key: str) -> Meta | None:
        """The entry's metadata, if both of its files are here."""
        with ExitStack() as files:
            found = self._open(key, files)
            if found is None:
                return None
            self._touch(key)
            return found.meta

    def read(self, key: str) -> Object | None:
        """The object, if it is here and its checksum matches."""
        with ExitStack() as files:
            found = self._open(key, files)
            if found is None:
                return None
            body = _read_all(found.file, found.meta.size)
            if _checksum(body) != found.checksum:
                self._torn(key, found.path)
                return None
            self._touch(key)
            return Object(key, body, found.meta.modified_ns, found.meta.version)

    def part(self, key: str, start: int, end: int) -> Part | None:
        """Bytes ``start`` to ``end``, cut at the object's end, if it is here."""
        with ExitStack() as files:
            found = self._open_checked(key, files)
            if found is None:
                return None
            self._touch(key)
            body = _read_all(found.file, max(0, min(end, found.meta.size) - start), start)
            return Part(body, found.meta.size, found.meta.version)

    def pin(self, key: str, pin: Pin) -> Path | None:
        """The object's file, in place until the pin is released; None if it is not here."""
        with ExitStack() as files:
            found = self._open_checked(key, files)
            if found is None or not try_lock(found.file, shared=True):
                return None
            try:
                there = os.stat(found.path)
            except FileNotFoundError:
                return None
            if not os.path.samestat(there, os.fstat(found.file)):
                return None  # evicted between opening and locking
            self._touch(key)
            pin.hold(files.pop_all().close)
            return Path(found.path)

    def keep(self, found: Object) -> bool:
        """Add the object, evicting others if needed; False if there was no room."""
        sidecar = _Sidecar(Meta(found.key, len(found.body), found.modified_ns, found.version), _checksum(found.body))
        description = self._describe(sidecar)
        with ExitStack() as files:
            draft = self._space.take(
                charged(len(found.body)) + charged(len(description)),
                lambda: self._draft(files, len(found.body), description),
            )
            if draft is None:
                return False
            _write_all(draft.data_file, found.body)
            data, meta = self._data_path(found.key, sidecar), self._meta_path(found.key)
            os.makedirs(os.path.dirname(meta), mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.link(draft.data, data)
            os.rename(draft.meta, meta)
        return True

    def drop(self, keys: Iterable[str]) -> None:
        """Drop the objects. A pinned file stays readable by its path for its holder."""
        for key in keys:
            sidecar = self._sidecar(key)
            if sidecar is not None:
                _remove(self._meta_path(key))
                remove_unlocked([self._data_path(key, sidecar)])

    def _open_checked(self, key: str, files: ExitStack) -> _Entry | None:
        found = self._open(key, files)
        if found is None:
            return None
        status = os.fstat(found.file)
        identity = status.st_ino, status.st_size, status.st_mtime_ns
        if self._checked.get(found.path) != identity:
            if _checksum_of(found.file) != found.checksum:
                self._torn(key, found.path)
                return None
            # A change within the same tick of the file system's clock would not change the modification time.
            if self._ambient.clock.wall_ns() - status.st_mtime_ns > TICK_NS:
                if len(self._checked) >= CHECKED_MAX:
                    self._checked.clear()
                self._checked[found.path] = identity
        return found

    def _open(self, key: str, files: ExitStack) -> _Entry | None:
        """The entry, with its data file open until ``files`` is closed, if both files are here and match."""
        sidecar = self._sidecar(key)
        if sidecar is None:
            return None
        path = self._data_path(key, sidecar)
        try:
            file = files.enter_context(opened(path))
        except FileNotFoundError:
            return None  # being evicted, or left by a killed process: the next eviction removes the rest
        if os.fstat(file).st_size != sidecar.meta.size:
            self._torn(key, path)
            return None
        return _Entry(sidecar.meta, sidecar.checksum, path, file)

    def _sidecar(self, key: str) -> _Sidecar | None:
        path = self._meta_path(key)
        try:
            with opened(path) as file:
                text = _read_all(file, os.fstat(file).st_size)
        except FileNotFoundError:
            return None
        sidecar = _parse(text, self._namespace, key)
        if sidecar is None:
            self._stats.count("torn")
            _remove(path)
        return sidecar

    def _torn(self, key: str, data: str) -> None:
        """Remove an entry that failed its check, pinned or not."""
        self._stats.count("torn")
        _remove(self._meta_path(key))
        _remove(data)

    def _touch(self, key: str) -> None:
        now = self._ambient.clock.wall_ns()
        try:
            os.utime(self._meta_path(key), ns=(now, now))
        except FileNotFoundError:
            return  # evicted since it was opened; the open file is still good
        except OSError:  # a read-only cache still answers reads
            self._stats.count("failures")

    def _draft(self, files: ExitStack, size: int, description: bytes) -> _Draft:
        paths: list[str] = []
        descriptors: list[int] = []
        for suffix, length in ((DATA, size), (META, 0)):
            path = str(self._space.temporary / (self._ambient.ids.unique() + suffix))
            descriptor = files.enter_context(opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            files.callback(_remove, path)
            try_lock(descriptor)
            os.ftruncate(descriptor, length)
            paths.append(path)
            descriptors.append(descriptor)
        _write_all(descriptors[1], description)
        now = self._ambient.clock.wall_ns()
        os.utime(descriptors[1], ns=(now, now))
        return _Draft(paths[0], descriptors[0], paths[1], descriptors[1])

    def _describe(self, sidecar: _Sidecar) -> bytes:
        meta = sidecar.meta
        text = encode(
            {
                "namespace": self._namespace,
                "key": meta.key,
                "size": meta.size,
                "modified_ns": meta.modified_ns,
                "version": meta.version,
                "checksum": sidecar.checksum,
            }
        )
        return _checksum(text).encode() + b"\n" + text

    def _meta_path(self, key: str) -> str:
        return self._stem(key) + META

    def _data_path(self, key: str, sidecar: _Sidecar) -> str:
        return f"{self._stem(key)}.{sidecar.checksum}{DATA}"

    def _stem(self, key: str) -> str:
        name = _checksum(f"{self._namespace}\0{key}".encode("utf-8", "surrogatepass"))
        return f"{self._root}/{name[:2]}/{name}"


def _parse(text: bytes, namespace: str, key: str) -> _Sidecar | None:
    """The meta file's content; None if it is damaged or of another object."""
    checksum, _, document = text.partition(b"\n")
    if checksum != _checksum(document).encode():
        return None
    try:
        fields = decode(document, key=key)
        if (fields["namespace"], fields["key"]) != (namespace, key):
            return None
        meta = Meta(key, int(fields["size"]), int(fields["modified_ns"]), Version(str(fields["version"])))
        return _Sidecar(meta, str(fields["checksum"]))
    except (Corrupt, KeyError, TypeError, ValueError):
        return None


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def _checksum_of(descriptor: int) -> str:
    hashing = hashlib.blake2b(digest_size=16)
    position = 0
    while chunk := os.pread(descriptor, CHUNK_BYTES, position):
        hashing.update(chunk)
        position += len(chunk)
    return hashing.hexdigest()


def _read_all(descriptor: int, size: int, position: int = 0) -> bytes:
    """Up to ``size`` bytes; one system call returns at most two gigabytes."""
    first = os.pread(descriptor, size, position)
    parts = [first]
    got = len(first)
    while got < size and (more := os.pread(descriptor, size - got, position + got)):
        parts.append(more)
        got += len(more)
    return first if len(parts) == 1 else b"".join(parts)


def _write_all(descriptor: int, body: bytes) -> None:
    rest = memoryview(body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
