"""Workroom: what a session needs to run SQL over objects of a store: a folder of its own, files in it, a database.

To open a database takes longer than what most questions read of a store, so both go on at the same time: after
``begin`` there is first the folder (``placed``), in which files can be put, and then the database, for which statements
wait. What dead processes left is swept meanwhile.
"""

import asyncio
from pathlib import Path
from typing import Any

from holdfast.base.aio import blocking, in_background
from holdfast.objects.store import Store
from holdfast.sql.duck import Duck
from holdfast.sql.scan import LocalFiles
from holdfast.sql.scratch import Scratch

Placed = tuple[Duck, LocalFiles]


class Workroom:
    def __init__(self, store: Store, memory_limit: str) -> None:
        self._store = store
        self._memory_limit = memory_limit
        self._placed: asyncio.Future[Placed] | None = None
        self._opening: asyncio.Future[None] | None = None
        self._sweeping: asyncio.Future[list[Path]] | None = None
        self._scratch: Scratch | None = None

    def begin(self) -> None:
        """In the background. Once is enough, unless there was no room for a folder."""
        if self._opening is None or (self._opening.done() and self._scratch is None):
            loop = asyncio.get_running_loop()
            self._placed = loop.create_future()
            self._opening = in_background(blocking(self._make, loop))

    async def placed(self) -> Placed:
        """The database, which may still be opening, and the files that it can read."""
        self.begin()
        if self._placed is None or self._opening is None:
            raise RuntimeError("nothing was begun")
        either: list[asyncio.Future[Any]] = [self._placed, self._opening]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._placed.done():
            self._opening.result()  # why there is no folder
        return self._placed.result()

    def _make(self, loop: asyncio.AbstractEventLoop) -> None:
        """Blocking, in one go: the loop may be busy with what it reads."""
        scratch = Scratch()
        files = LocalFiles(self._store, scratch.path)
        duck = Duck(scratch.path, memory_limit=self._memory_limit, readable=files.folders)
        loop.call_soon_threadsafe(self._tell, scratch, duck, files)
        duck.open()

    def _tell(self, scratch: Scratch, duck: Duck, files: LocalFiles) -> None:
        self._scratch = scratch
        self._sweeping = in_background(blocking(scratch.sweep))
        duck.opening = self._opening
        if self._placed is not None:
            self._placed.set_result((duck, files))

    async def close(self) -> None:
        """Close the database, and let go of folder and files."""
        if self._opening is None:
            return
        await asyncio.wait([self._opening])
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])
        try:
            if self._placed is not None and self._placed.done():
                duck, files = self._placed.result()
                await duck.close()
                await files.close()
        finally:
            if self._scratch is not None:
                await blocking(self._scratch.close)
