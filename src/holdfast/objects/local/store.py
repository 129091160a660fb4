"""Objects as plain files in a directory: the embedded default, for one machine and any number of processes.

An object is a file with exactly its bytes, on the path that its key names, so people and tools can look at it and even
copy files in. Its version is the hash of its bytes.

* A write is one function in a worker thread: it stages a file and fsyncs it, takes the lock of the path, compares the
  condition with the current object, renames the file into place, and fsyncs the directory. The names of the directories
  on the path are on disk before the rename.
* A lost race is answered after the object that won it is on disk, so that nothing is built on an object that a power
  failure takes back.
* Readers take no locks, and leave the event loop only for what is large or not in the page cache. Links below the root
  are never followed.
* A store works on either side of a fork: no lock is held between calls, and the descriptors that are kept open have no
  state that a fork could share.
* A caller that is cancelled during a write continues when the write has ended, with or without success.

Processes may be killed at any moment: an object is there whole, old or new, and an acknowledged write is kept.

Errors: ``Denied`` where the directory cannot be written; ``Unavailable`` on a full disk or an I/O error; ``Ambiguous``
when a write is in place but could not be fsynced; ``Invalid`` and ``Refused`` for a directory that cannot be a root.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path

from holdfast.base.aio import blocking, finishing
from holdfast.base.errors import Invalid, NotFound, Unavailable, check
from holdfast.objects.local.files import Directory, OpenFile, Operation, Staged, is_file
from holdfast.objects.local.locks import renaming
from holdfast.objects.local.names import Names, key_names
from holdfast.objects.local.root import Root
from holdfast.objects.local.tree import Location, Walk, WritableTree
from holdfast.objects.store import (
    NO_SUCH_OBJECT,
    OVERWRITE,
    PAGE_SIZE,
    VERSION_DIGITS,
    Addressed,
    Create,
    Entry,
    IfMatch,
    Lost,
    Meta,
    Mode,
    Object,
    Overwrite,
    Page,
    Part,
    Pieces,
    Store,
    Version,
    Written,
    check_key,
    check_prefix,
    content_version,
)

CACHED_BYTES = 64 * 1024
"""Objects up to this size are read on the event loop if they are in the page cache."""
TRIES = 100
"""How often a write is tried again because others remove the directories on its path."""


class LocalStore(Store):
    def __init__(self, root: Path, *, unsafe_network_filesystem: bool = False) -> None:
        self._root = Root(root, unsafe_network_filesystem=unsafe_network_filesystem)

    async def get(self, key: str) -> Object:
        found = self._get_cached(check_key(key))
        if found is None:
            return await blocking(self._get, key)
        await asyncio.sleep(0)  # a task that reads in a loop must not keep the others from running
        return found

    async def head(self, key: str) -> Meta:
        return await blocking(self._head, check_key(key))

    async def range(self, key: str, start: int, end: int) -> Part:
        if start < 0:
            raise Invalid(f"{key}: a range cannot start at {start}", remedy="count from 0")
        return await blocking(self._range, check_key(key), start, end)

    async def link(self, key: str, path: Path) -> int | None:
        return await blocking(self._link, check_key(key), path)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await finishing(self._put, check_key(key), body, mode)

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        check_key(key)
        staged = await finishing(self._stage, key)
        hasher = hashlib.sha256()
        try:
            async for piece in pieces():
                await finishing(self._append, key, staged, piece, hasher)
            await finishing(self._place_staged, key, staged)
        finally:
            await finishing(staged.close)
        return Written(Version(hasher.hexdigest()[:VERSION_DIGITS]))

    async def delete(self, key: str) -> None:
        await self.delete_many([key])

    async def delete_many(self, keys: Iterable[str]) -> None:
        if checked := [check_key(key) for key in keys]:
            await finishing(self._delete, checked)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        items = self._walk(check_prefix(prefix), after, delimiter)
        read: list[Entry | str] = []
        more = True
        while more:
            read += await blocking(_take, items, PAGE_SIZE + 1 - len(read))
            page, read = read[:PAGE_SIZE], read[PAGE_SIZE:]
            more = bool(read)
            yield _page(page)

    async def close(self) -> None:
        self._root.close()

    # --- reading, in a worker thread ---

    def _get_cached(self, key: str) -> Object | None:
        """On the event loop: handing a small read from the page cache to a thread costs more than the read."""
        if not self._root.checked:
            return None
        with self._opened("get", key) as file:
            body = file.read_cached() if file.size <= CACHED_BYTES else None
            return None if body is None else Object(key, body, file.status.st_mtime_ns, content_version(body))

    def _get(self, key: str) -> Object:
        with self._opened("get", key) as file:
            body = file.read(0, file.size)
            return Object(key, body, file.status.st_mtime_ns, content_version(body))

    def _head(self, key: str) -> Meta:
        with self._opened("head", key) as file:
            return Meta(key, file.size, file.status.st_mtime_ns, file.version())

    def _range(self, key: str, start: int, end: int) -> Part:
        with self._opened("range", key) as file:
            return Part(file.read(start, end), file.size, file.identity)

    @contextmanager
    def _opened(self, verb: str, key: str) -> Iterator[OpenFile]:
        with Operation(f"{verb} {key}", self._root.path):
            tree = self._root.reading()
            file = tree.open(key_names(key)) if tree is not None else None
            if file is None:
                raise NotFound(f"{key}: no such object", remedy=NO_SUCH_OBJECT)
            with file:
                yield file

    def _link(self, key: str, path: Path) -> int | None:
        with Operation(f"link {key}", self._root.path):
            tree, names = self._root.reading(), key_names(key)
            directory = tree.directory(names[:-1]) if tree is not None else None
            if directory is None:
                return None
            with directory:
                try:
                    os.link(names[-1], path, src_dir_fd=directory.descriptor, follow_symlinks=False)
                except OSError:
                    return None  # on another disk, owned by another user, or not under the object's usual name
            status = os.lstat(path)
            if is_file(status):
                return status.st_size
            os.unlink(path)
            return None

    def _walk(self, prefix: str, after: str | None, delimiter: bool) -> Iterator[Entry | str]:
        with Operation(f"list {prefix or 'all'}", self._root.path):
            tree = self._root.reading()
            if tree is not None:
                yield from Walk(tree).items(prefix, after=after, delimiter=delimiter)

    # --- writing, in a worker thread ---

    def _put(self, key: str, body: bytes, mode: Mode) -> Written | Lost:
        with Operation(f"put {key}", self._root.path) as operation:
            tree, names = self._root.writing(), key_names(key)
            directory = tree.durable_directory(names[:-1])
            if directory is not None and isinstance(mode, Create | Addressed) and _sync_existing(directory, names[-1]):
                return Lost()
            with tree.staging.stage() as staged:
                staged.write(body)
                won = _publish(tree, directory, names, mode, staged, operation)
            return Written(content_version(body)) if won else Lost()

    def _stage(self, key: str) -> Staged:
        with Operation(f"put {key}", self._root.path):
            return self._root.writing().staging.stage()

    def _append(self, key: str, staged: Staged, piece: bytes, hasher: "hashlib._Hash") -> None:
        with Operation(f"put {key}", self._root.path):
            staged.write(piece)
            hasher.update(piece)

    def _place_staged(self, key: str, staged: Staged) -> None:
        with Operation(f"put {key}", self._root.path) as operation:
            won = _publish(self._root.writing(), None, key_names(key), OVERWRITE, staged, operation)
            check(won, f"{key}: an unconditional write was lost")

    def _delete(self, keys: Sequence[str]) -> None:
        name = f"delete {keys[0]}" if len(keys) == 1 else f"delete {len(keys)} keys"
        with Operation(name, self._root.path):
            tree = self._root.writing()
            touched = {tree.remove(key_names(key)) for key in keys}
            deepest_first = sorted(touched, key=len, reverse=True)
            for names in {tree.prune(names) for names in deepest_first}:
                tree.nearest(names).sync()


def _sync_existing(directory: Directory, name: bytes) -> bool:
    """Whether the object is there under its usual name, which is then durable. A create that loses stages nothing."""
    file = directory.open_file(name)
    if file is None:
        return False
    with file:
        file.sync()
    directory.sync()
    return True


def _publish(
    tree: WritableTree,
    directory: Directory | None,
    names: Names,
    mode: Mode,
    staged: Staged,
    operation: Operation,
) -> bool:
    """Put a staged file in the place of the object, if the condition holds. On return the current object is durable.

    ``directory`` is the object's, if it exists and is durable. It may be removed at any time: the rename then fails.
    """
    staged.sync()
    makes = not isinstance(mode, IfMatch)
    try:
        for _ in range(TRIES):
            if directory is None and makes:
                directory = tree.make_durable_directory(names[:-1])
            if directory is not None:
                won = _compare_and_rename(tree, directory, names, mode, staged, operation)
                if won is not None:
                    return won
            elif not makes:
                tree.nearest(names).sync()
                return False
            directory = None
        raise Unavailable(f"{os.fsdecode(b'/'.join(names))}: the directories on this path come and go too fast")
    except BaseException:
        if makes and not operation.renamed:
            with suppress(OSError):
                tree.prune(names[:-1])
        raise


def _compare_and_rename(
    tree: WritableTree, directory: Directory, names: Names, mode: Mode, staged: Staged, operation: Operation
) -> bool | None:
    """Whether the condition held and the file was renamed. None if it is to be tried again, because a directory was
    removed, or made in the place of the object, meanwhile.
    """
    with ExitStack() as opened:
        with tree.locks.writing(names):
            location = tree.locate(directory, names)
            current: OpenFile | None = None
            if location.exists and not isinstance(mode, Overwrite):
                current = location.directory.open_file(location.name)
            if current is not None:
                opened.enter_context(current)
            won = _holds(mode, current)
            if won and not _renamed(staged, location, operation):
                return None
        # Outside the lock: fsyncs are slow.
        if won:
            location.directory.sync()
        elif current is not None:
            current.sync()
            location.directory.sync()
        else:  # the object was deleted, and perhaps its directory with it
            tree.nearest(names).sync()
        return won


def _holds(mode: Mode, current: OpenFile | None) -> bool:
    match mode:
        case Overwrite():
            return True
        case Create() | Addressed():
            return current is None
        case IfMatch(version):
            return current is not None and current.version() == version


def _renamed(staged: Staged, location: Location, operation: Operation) -> bool:
    operation.rename_called = True
    try:
        with renaming(location.directory) if location.exists else nullcontext():
            staged.place(location.directory, location.name)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        operation.rename_called = False
        return False
    operation.renamed = True
    return True


def _take(items: Iterator[Entry | str], count: int) -> list[Entry | str]:
    return list(islice(items, count))


def _page(items: Sequence[Entry | str]) -> Page:
    return Page(
        tuple(item for item in items if isinstance(item, Entry)),
        tuple(item for item in items if isinstance(item, str)),
    )
