"""Objects as plain files in a directory: the embedded default, for one machine and any number of processes.

An object is a file with exactly its bytes, on the path that its key names, so people and tools can look at it and even
copy files in. Its version is the hash of its bytes.

* A write is one function in a worker thread: it stages a file and fsyncs it, takes the lock of the path, compares the
  condition with what stands there, renames the file into place, and fsyncs the directory. The names of the directories
  on the path are on disk before that.
* A lost race is answered after the object that won it is on disk, so that nothing is built on an object that a power
  cut takes back.
* Readers take no locks, and leave the loop only for what is large or not in the page cache. Links below the root are
  never followed.
* A store works on either side of a fork: no lock is held between calls, and the descriptors that are kept open have no
  state that a fork could share.
* A caller that is cancelled during a write continues when the write has ended, with or without success.

Processes may be killed at any moment: an object is there whole, old or new, and what was answered stays.

Errors: ``Denied`` where the directory cannot be written; ``Unavailable`` on a full disk or an I/O error; ``Ambiguous``
when a write is in place but could not be fsynced; ``Invalid`` and ``Refused`` for a root that cannot be one.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path

from holdfast.base.aio import blocking, finishing
from holdfast.base.clock import Clock, SystemClock
from holdfast.base.errors import Invalid, NotFound, Unavailable, check
from holdfast.objects.local.files import Attempt, OpenFile, Staged, is_file
from holdfast.objects.local.locks import renaming
from holdfast.objects.local.names import Names
from holdfast.objects.local.root import Root
from holdfast.objects.local.tree import Spot, Tree, Walk
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
"""Objects up to this size are read on the loop if they are in the page cache."""
TRIES = 100
"""How often a write is tried again because others remove the directories on its path."""


class LocalStore(Store):
    def __init__(self, root: Path, *, clock: Clock | None = None, unsafe_network_filesystem: bool = False) -> None:
        clock = clock if clock is not None else SystemClock()
        self._root = Root(root, clock, unsafe_network_filesystem=unsafe_network_filesystem)

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
            await finishing(self._place, key, staged)
        finally:
            await finishing(staged.close)
        return Written(Version(hasher.hexdigest()[:VERSION_DIGITS]))

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
        self._root.close()

    # Reading, in a worker thread

    def _get_cached(self, key: str) -> Object | None:
        """On the loop: handing a small read from the page cache to a thread costs more than the read."""
        if not self._root.known:
            return None
        with self._opened("get", key) as file:
            body = file.read_cached() if file.size <= CACHED_BYTES else None
            return None if body is None else Object(key, body, file.found.st_mtime_ns, content_version(body))

    def _get(self, key: str) -> Object:
        with self._opened("get", key) as file:
            body = file.read(0, file.size)
            return Object(key, body, file.found.st_mtime_ns, content_version(body))

    def _head(self, key: str) -> Meta:
        with self._opened("head", key) as file:
            return Meta(key, file.size, file.found.st_mtime_ns, file.version())

    def _range(self, key: str, start: int, end: int) -> Part:
        with self._opened("range", key) as file:
            return Part(file.read(start, end), file.size, file.identity)

    @contextmanager
    def _opened(self, verb: str, key: str) -> Iterator[OpenFile]:
        with Attempt(f"{verb} {key}", self._root.path), ExitStack() as opened:
            tree = self._root.reading()
            file = tree.open(tree.names(key)) if tree is not None else None
            if file is None:
                raise NotFound(f"{key}: no such object", remedy=NO_SUCH_OBJECT)
            yield opened.enter_context(file)

    def _link(self, key: str, path: Path) -> int | None:
        with Attempt(f"link {key}", self._root.path), ExitStack() as opened:
            tree = self._root.reading()
            names = tree.names(key) if tree is not None else ()
            folder = tree.folder(names[:-1]) if tree is not None else None
            if folder is None:
                return None
            opened.enter_context(folder)
            try:
                os.link(names[-1], path, src_dir_fd=folder.descriptor, follow_symlinks=False)
            except OSError:
                return None  # on another disk, owned by another user, or not in the object's usual place
            found = os.lstat(path)
            if is_file(found):
                return found.st_size
            os.unlink(path)
            return None

    def _walk(self, prefix: str, after: str | None, delimiter: bool) -> Iterator[Entry | str]:
        with Attempt(f"list {prefix or 'all'}", self._root.path):
            tree = self._root.reading()
            if tree is not None:
                yield from Walk(tree).items(prefix, after=after, delimiter=delimiter)

    # Writing, in a worker thread

    def _put(self, key: str, body: bytes, mode: Mode) -> Written | Lost:
        with Attempt(f"put {key}", self._root.path) as attempt, ExitStack() as opened:
            tree = self._root.writing()

            def stage() -> Staged:
                staged = opened.enter_context(tree.staging.stage())
                staged.write(body)
                staged.sync()
                return staged

            won = _write(tree, tree.names(key), mode, stage, attempt)
            return Written(content_version(body)) if won else Lost()

    def _stage(self, key: str) -> Staged:
        with Attempt(f"put {key}", self._root.path):
            return self._root.writing().staging.stage()

    def _append(self, key: str, staged: Staged, piece: bytes, hasher: "hashlib._Hash") -> None:
        with Attempt(f"put {key}", self._root.path):
            staged.write(piece)
            hasher.update(piece)

    def _place(self, key: str, staged: Staged) -> None:
        with Attempt(f"put {key}", self._root.path) as attempt:
            tree = self._root.writing()
            staged.sync()
            won = _write(tree, tree.names(key), OVERWRITE, lambda: staged, attempt)
            check(won, f"{key}: an unconditional write was lost")

    def _delete(self, keys: Sequence[str]) -> None:
        doing = f"delete {keys[0]}" if len(keys) == 1 else f"delete {len(keys)} keys"
        with Attempt(doing, self._root.path):
            tree = self._root.deleting()
            left = {tree.remove(tree.names(key)) for key in keys}
            deepest_first = sorted(left, key=len, reverse=True)
            for names in {tree.prune(names) for names in deepest_first}:
                tree.nearest(names).sync()


def _write(tree: Tree, names: Names, mode: Mode, stage: Callable[[], Staged], attempt: Attempt) -> bool:
    """Give a staged file the place of the object, if the condition holds. On return the current object is durable."""
    making = not isinstance(mode, IfMatch)
    staged: Staged | None = None
    try:
        for _ in range(TRIES):
            folder = tree.reach(names[:-1], making=making)
            if folder is None:
                if making:
                    continue
                break
            with ExitStack() as held:
                if staged is None:
                    if isinstance(mode, Create | Addressed) and (winner := folder.file(names[-1])) is not None:
                        held.enter_context(winner).sync()
                        folder.sync()
                        return False
                    staged = stage()
                with tree.locks.writing(names):
                    spot = tree.settle(folder, names)
                    current = spot.folder.file(spot.name) if spot.taken and not isinstance(mode, Overwrite) else None
                    if current is not None:
                        held.enter_context(current)
                    won = _holds(mode, current)
                    if won and not _placed(staged, spot, attempt):
                        continue
                # Outside the lock: fsyncs are slow.
                if current is not None and not won:
                    current.sync()
                if won or current is not None:
                    spot.folder.sync()
                    return won
                break
        else:
            raise Unavailable(f"{os.fsdecode(b'/'.join(names))}: the directories on this path come and go too fast")
        tree.nearest(names[:-1]).sync()  # the object to be replaced was deleted
        return False
    except BaseException:
        if making and not attempt.made:
            with suppress(OSError):
                tree.prune(names[:-1])
        raise


def _holds(mode: Mode, current: OpenFile | None) -> bool:
    match mode:
        case Overwrite():
            return True
        case Create() | Addressed():
            return current is None
        case IfMatch(version):
            return current is not None and current.version() == version


def _placed(staged: Staged, spot: Spot, attempt: Attempt) -> bool:
    """False if the directory was removed meanwhile, or one has taken the place: then the write is tried again."""
    attempt.begun = True
    try:
        with renaming(spot.folder) if spot.taken else nullcontext():
            staged.place(spot.folder, spot.name)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        attempt.begun = False
        return False
    attempt.made = True
    return True


def _take(items: Iterator[Entry | str], count: int) -> list[Entry | str]:
    return list(islice(items, count))


def _page(items: Sequence[Entry | str]) -> Page:
    return Page(
        tuple(item for item in items if isinstance(item, Entry)),
        tuple(item for item in items if isinstance(item, str)),
    )
