"""Workroom: what a session needs to run SQL over objects of a store: a folder of its own, files in it, a database.

To open a database takes longer than what most questions read of a store, so both go on at the same time: after
``begin`` there is first the folder (``placed``), in which files can be put, and then the database, for which statements
wait. What dead processes left is swept a while later, or at the end: it would take from a first question. The database
may be one that a session before has left (``spare``).
"""

import asyncio
import math
import os
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from holdfast.base.aio import blocking, finishing
from holdfast.base.errors import Refused
from holdfast.base.scratch import Scratch
from holdfast.objects.store import Store
from holdfast.sql.duck import Duck
from holdfast.sql.scan import LocalFiles
from holdfast.sql.spare import Spare, leave, take

T = TypeVar("T")
Placed = tuple[Duck, LocalFiles]
FOLDERS = "holdfast-sql-"
"""What the names of sessions' folders begin with."""
KEPT_BYTES = 8 << 20
"""Of files that a database has read which is left for the next session: memory for more might stay with it."""
BLOCK_BYTES = 512
"""What ``st_blocks`` counts."""
SWEEP_AFTER_SECONDS = 1.0
"""After the session has got its folder."""


class Workroom:
    def __init__(self, store: Store, memory_limit: str, *, handed_on: bool = False) -> None:
        """``handed_on``: the database may be one of another session, and is left for another one; for who has a number
        for each of its files (``Duck.name``), and puts no statements of others to it.
        """
        self._handed_on = handed_on
        self._store = store
        self._memory_limit = memory_limit
        self._terms = (memory_limit, *map(str, LocalFiles(store, Path()).folders))
        self._closed = False
        self._placed: asyncio.Future[Placed] | None = None
        self._opening: asyncio.Future[None] | None = None
        self._sweeping: asyncio.Future[list[Path]] | None = None
        self._due: asyncio.TimerHandle | None = None
        """The time of sweeping."""
        self._scratch: Scratch | None = None

    def begin(self) -> bool:
        """In the background; True if that was still to do. Once is enough, unless there was no room for a folder."""
        if self._closed:
            raise Refused("the session is closed", remedy="ask within its `async with`, or open another one")
        if self._opening is not None and not (self._opening.done() and self._scratch is None):
            return False
        loop = asyncio.get_running_loop()
        self._placed = loop.create_future()
        found = take(self._terms) if self._handed_on else None
        self._opening = _in_background(finishing(self._make, loop, found))
        return True

    async def begun(self) -> None:
        """Until there is a folder, or there can be none. A thread that has to share the interpreter with a busy loop
        would come to its database late: whoever has nothing better to do leaves it alone until then.
        """
        if self._placed is not None and self._opening is not None:
            either: list[asyncio.Future[Any]] = [self._placed, self._opening]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def placed(self) -> Placed:
        """The database, which may still be opening, and the files that it can read."""
        self.begin()
        await self.begun()
        if self._placed is None or self._opening is None:
            raise RuntimeError("nothing was begun")
        if self._scratch is None:
            self._opening.result()  # why there is no folder
        return await asyncio.shield(self._placed)

    def _make(self, loop: asyncio.AbstractEventLoop, found: Spare | None) -> None:
        """Blocking. The folder comes first: who has it goes on while the database opens, which takes longest, and does
        not need the interpreter meanwhile.
        """
        scratch = self._scratch = _folder(found)
        files = LocalFiles(self._store, scratch.path)
        duck = Duck(scratch.path, memory_limit=self._memory_limit, readable=files.folders)
        if found is not None and found.folder == scratch.path:
            duck.take_over(found)
        loop.call_soon_threadsafe(self._tell, scratch, duck, files)
        if not duck.open_already:
            duck.open(alone=self._handed_on)
        duck.serve()

    def _tell(self, scratch: Scratch, duck: Duck, files: LocalFiles) -> None:
        self._due = asyncio.get_running_loop().call_later(SWEEP_AFTER_SECONDS, self._sweep, scratch)
        duck.opening = self._opening
        if self._placed is not None:
            self._placed.set_result((duck, files))

    def _sweep(self, scratch: Scratch) -> None:
        if self._sweeping is None:
            self._sweeping = _in_background(blocking(scratch.sweep))

    async def close(self) -> None:
        """Close the database, and let go of folder and files."""
        self._closed = True
        if self._opening is None:
            return
        await asyncio.wait([self._opening])
        scratch, self._scratch = self._scratch, None
        if scratch is None or self._placed is None:
            return
        await asyncio.wait([self._placed])
        if self._due is not None:
            self._due.cancel()
        self._sweep(scratch)
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])
        duck, files = self._placed.result()
        try:
            await files.close()
        finally:
            await blocking(self._clear_up, scratch, duck)

    def _clear_up(self, scratch: Scratch, duck: Duck) -> None:
        with suppress(duckdb.Error):  # a database that broke is not handed on
            duck.join()
        untouched = self._handed_on and duck.untouched and _size(scratch.path) <= KEPT_BYTES
        root = duck.let_go()
        if root is not None and not untouched:
            root.close()
        scratch.close()
        if root is not None and untouched:
            leave(Spare(root, self._terms, duck.folder, duck.names, duck.memory_bytes))


def _in_background(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Of an error everybody is told who waits for it; asyncio need not complain if nobody does."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


def _folder(found: Spare | None) -> Scratch:
    if found is not None:
        try:
            return Scratch(FOLDERS, found.folder.parent, found.folder.name)
        except OSError:  # somebody has one by that name
            found.root.close()
    return Scratch(FOLDERS)


def _size(folder: Path) -> float:
    """Of the files in it, as far as they have anything in them (some have holes); without end where something was put
    aside for want of memory.
    """
    with os.scandir(folder) as found:
        return sum(math.inf if each.is_dir() else each.stat().st_blocks * BLOCK_BYTES for each in found)
