"""Objects as plain files in a folder: the embedded default, for one machine and any number of processes.

An object is a file with exactly its bytes, on the path that its key names, so people and tools can look at it and even
copy files in. Its version is the hash of its bytes.

* A write goes to a file aside, is forced to disk, and is renamed into place under the lock of its path, after its
  condition was compared with what stands there; what is created where nothing is has a shorter way (``writing``). The
  folder, and the names of new folders, are forced to disk before anybody is told.
* A lost race is answered after what won it is safe on disk, so that nobody builds on something a power cut takes back.
* Readers take no locks, and leave the loop only for what is large or not in the system's memory.
* A store works on either side of a fork: no lock is kept between calls, and what is kept open (``known``) is only to
  know one's own files again.
* A caller that is cancelled in the middle of a write goes on when the write has ended, one way or the other.

Processes may be killed at any moment: an object is there whole, old or new, and what was answered stays.

Errors: ``Denied`` where the folder cannot be written; ``Unavailable`` on a full disk or an I/O error; ``Ambiguous``
when a write is in place but could not be forced to disk; ``Invalid`` and ``Refused`` for a root that cannot be one.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path

from holdfast.base.aio import blocking, finishing, outlasting
from holdfast.base.clock import Clock, SystemClock
from holdfast.base.errors import Invalid, NotFound, Unavailable, check
from holdfast.objects.local.errors import Explained
from holdfast.objects.local.files import Growing, OpenFile, is_file
from holdfast.objects.local.hashes import Hashes
from holdfast.objects.local.known import LARGEST_BYTES, Known
from holdfast.objects.local.paths import Names
from holdfast.objects.local.root import Root
from holdfast.objects.local.tree import Tree
from holdfast.objects.local.walk import walk
from holdfast.objects.local.writing import AT_ONCE_BYTES, Placed, Write
from holdfast.objects.memory import content_version
from holdfast.objects.store import (
    OVERWRITE,
    Addressed,
    Create,
    Entry,
    IfMatch,
    Lost,
    Meta,
    Mode,
    Object,
    Page,
    Part,
    Pieces,
    Store,
    Written,
    check_key,
    check_prefix,
)

PAGE_SIZE = 1000
GLANCE_BYTES = 64 * 1024


class LocalStore(Store):
    def __init__(self, root: Path, *, clock: Clock | None = None, unsafe_network_filesystem: bool = False) -> None:
        clock = clock if clock is not None else SystemClock()
        self._root = Root(root, clock, unsafe_network_filesystem=unsafe_network_filesystem)
        self._known = Known()
        self._hashes = Hashes()

    async def get(self, key: str) -> Object:
        found = self._glance(check_key(key))
        if found is None:
            return await blocking(self._get, key)
        await asyncio.sleep(0)  # whoever reads in a circle must let others have their turn
        return found

    async def head(self, key: str) -> Meta:
        return await blocking(self._head, check_key(key))

    async def range(self, key: str, start: int, end: int) -> Part:
        if start < 0:
            raise Invalid(f"{key}: a range cannot start at {start}")
        return await blocking(self._range, check_key(key), start, end)

    async def link(self, key: str, path: Path) -> int | None:
        check_key(key)
        tree = self._root.known
        if tree is None:
            return await blocking(self._link, key, path)
        await asyncio.sleep(0)  # as above
        return _linked(tree, key, path)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await outlasting(self._put(check_key(key), body, mode))

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        check_key(key)
        growing = await blocking(self._begin, key)
        try:
            async for piece in pieces():
                await blocking(self._grow, key, growing, piece)
            outcome = await outlasting(self._placed(key, growing))
        finally:
            await blocking(growing.discard)
        check(isinstance(outcome, Written), f"{key}: an unconditional write was lost")
        return outcome  # type: ignore[return-value]  # checked

    async def delete(self, key: str) -> None:
        await self.delete_many([key])

    async def delete_many(self, keys: Iterable[str]) -> None:
        if wanted := [check_key(key) for key in keys]:
            await finishing(self._delete, wanted)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        items = self._walk(check_prefix(prefix), after, delimiter)
        ahead: list[Entry | str] = []
        more = True
        while more:
            ahead += await blocking(_take, items, PAGE_SIZE + 1 - len(ahead))
            page, ahead = ahead[:PAGE_SIZE], ahead[PAGE_SIZE:]
            more = bool(ahead)
            yield _page(page)

    async def close(self) -> None:
        self._known.close()

    def _glance(self, key: str) -> Object | None:
        """What can be said at once: a thread for a small file in the system's memory costs more than reading it."""
        with Explained(f"get {key}", self._root.path):
            tree = self._root.at_hand()
            if tree is None:
                return None
            file = tree.open(tree.names(key))
            if file is None:
                raise NotFound(f"{key}: no such object")
            with file:
                body = file.read_at_hand() if file.size <= GLANCE_BYTES else None
                return _object(key, body, file) if body is not None else None

    def _get(self, key: str) -> Object:
        with self._opened("get", key) as file:
            return _object(key, file.read(0, file.size), file)

    def _head(self, key: str) -> Meta:
        with self._opened("head", key) as file:
            return Meta(key, file.size, file.modified_ns, file.version())

    def _range(self, key: str, start: int, end: int) -> Part:
        with self._opened("range", key) as file:
            return Part(file.read(start, end), file.size, file.identity)

    def _link(self, key: str, path: Path) -> int | None:
        return _linked(self._root.readable(), key, path)

    @contextmanager
    def _opened(self, verb: str, key: str) -> Iterator[OpenFile]:
        with Explained(f"{verb} {key}", self._root.path):
            tree = self._root.readable()
            file = tree.open(tree.names(key))
            if file is None:
                raise NotFound(f"{key}: no such object")
            with file:
                yield file

    async def _put(self, key: str, body: bytes, mode: Mode) -> Written | Lost:
        with Explained(f"put {key}", self._root.path) as change:
            async with await self._write(key, change) as write:
                if isinstance(mode, (Create, Addressed)) and await write.create(body):
                    small = len(body) <= AT_ONCE_BYTES
                    return Written(content_version(body) if small else await finishing(content_version, body))
                return await self._by_a_thread(write, partial(self._replace, write, key, body, mode))

    async def _write(self, key: str, change: Explained) -> Write:
        tree = self._root.prepared
        if tree is None:
            tree = await blocking(self._root.writable)
        return Write(tree, tree.names(key), change)

    async def _by_a_thread(self, write: Write, place: Callable[[], Placed]) -> Written | Lost:
        """It forces the folder too, at less cost, unless others are writing with whom that may be shared."""
        if write.tree.syncs.writers == 1:
            return await finishing(lambda: write.force_here(place()))
        return await write.force(await finishing(place))

    def _replace(self, write: Write, key: str, body: bytes, mode: Mode) -> Placed:
        if write.lost_already(mode):
            return write.lost()
        # What is compared before it is replaced has a version that its writer knows: it will be written again.
        again = isinstance(mode, IfMatch)
        version = self._hashes.version(key, body) if again else content_version(body)
        with self._root.stage(body) as staged:
            placed = write.place(staged, mode, self._known)
            if placed is not None and again and len(body) <= LARGEST_BYTES:
                self._known.keep(write.tree.at(placed[0].names), staged.keep(), staged.found, version)
        if placed is None:
            return write.lost()
        spot, folder = placed
        return Placed(Written(version), spot.folder, folder)

    def _begin(self, key: str) -> Growing:
        with Explained(f"put {key}", self._root.path):
            self._root.writable()
            return self._root.begin()

    def _grow(self, key: str, growing: Growing, piece: bytes) -> None:
        with Explained(f"put {key}", self._root.path):
            growing.write(piece)

    async def _placed(self, key: str, growing: Growing) -> Written | Lost:
        with Explained(f"put {key}", self._root.path) as change:
            async with await self._write(key, change) as write:
                return await self._by_a_thread(write, partial(self._place, write, growing))

    def _place(self, write: Write, growing: Growing) -> Placed:
        staged, version = growing.finish()
        with staged:
            placed = write.place(staged, OVERWRITE, self._known)
        if placed is None:
            raise Unavailable(f"{os.fsdecode(write.tree.at(write.names))}: it could not be given its place")
        spot, folder = placed
        return Placed(Written(version), spot.folder, folder)

    def _delete(self, keys: Sequence[str]) -> None:
        with Explained(f"delete {keys[0]}" if len(keys) == 1 else f"delete {len(keys)} keys", self._root.path):
            tree = self._root.erasable()
            folders = {_remove(tree, tree.names(key)) for key in keys}
            deepest_first = sorted(folders, key=len, reverse=True)
            for folder in {tree.prune(folder) for folder in deepest_first}:
                tree.sync(folder)

    def _walk(self, prefix: str, after: str | None, delimiter: bool) -> Iterator[Entry | str]:
        with Explained(f"list {prefix or 'all'}", self._root.path):
            yield from walk(self._root.readable(), prefix, after=after, delimiter=delimiter)


def _linked(tree: Tree, key: str, path: Path) -> int | None:
    """It returns at once."""
    try:
        os.link(tree.at(tree.names(key)), path, follow_symlinks=False)
    except OSError:
        return None  # on another disk, somebody else's, or not where objects usually stand
    found = os.lstat(path)
    if is_file(found):
        return found.st_size
    os.unlink(path)
    return None


def _object(key: str, body: bytes, file: OpenFile) -> Object:
    return Object(key, body, file.modified_ns, content_version(body))


def _remove(tree: Tree, names: Names) -> Names:
    """Remove an object if it is there; the folder that it is not in now."""
    with tree.locks.writing(names):
        spot = tree.settle(names)
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            os.unlink(tree.at(spot.names))
    return spot.folder


def _take(items: Iterator[Entry | str], count: int) -> list[Entry | str]:
    return list(islice(items, count))


def _page(items: Sequence[Entry | str]) -> Page:
    return Page(
        tuple(item for item in items if isinstance(item, Entry)),
        tuple(item for item in items if isinstance(item, str)),
    )
