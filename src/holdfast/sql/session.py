"""A SQL session: a scratch directory, objects of one store as files in it, and a DuckDB that reads these files.

The scratch directory is removed when the session closes. A process that dies leaves its directory behind; the next
session that closes on this machine removes it. SQL written by users runs in a second database (``database``) over the
same files, which contains none of our tables.
"""

from typing import Self

from holdfast.base.aio import blocking, finishing
from holdfast.base.errors import Refused
from holdfast.base.scratch import Scratch
from holdfast.objects.store import Store
from holdfast.sql.duck import Duck
from holdfast.sql.files import LocalFiles

FOLDERS = "holdfast-sql-"
"""Prefix of the names of scratch directories."""


class Session:
    """Made by ``open``; ``close`` ends it."""

    duck: Duck
    files: LocalFiles

    def __init__(self, store: Store, memory_limit: str) -> None:
        """Makes nothing yet: see ``open``."""
        self._store = store
        self._memory_limit = memory_limit
        self._scratch: Scratch | None = None
        self._databases: list[Duck] = []

    @classmethod
    async def open(cls, store: Store, memory_limit: str) -> Self:
        """``OSError`` if no directory can be made, ``Invalid`` if DuckDB rejects the memory limit."""
        session = cls(store, memory_limit)
        try:
            await finishing(session._make)
        except BaseException:
            await session.close()
            raise
        return session

    def _make(self) -> None:
        self._scratch = Scratch(FOLDERS)
        self.files = LocalFiles(self._store, self._scratch.path)
        self.duck = self._opened(self._scratch)

    def _opened(self, scratch: Scratch) -> Duck:
        spill = f"spill-{len(self._databases)}"
        duck = Duck(scratch.path, memory_limit=self._memory_limit, spill=spill)
        duck.open()
        self._databases.append(duck)
        return duck

    async def database(self) -> Duck:
        """Another database over the same files, with the same limit. It closes with the session."""
        if self._scratch is None:
            raise Refused("the session is closed", remedy="ask within its `async with`, or open another one")
        return await finishing(self._opened, self._scratch)

    async def close(self) -> None:
        """Idempotent."""
        scratch, self._scratch = self._scratch, None
        if scratch is None:
            return
        try:
            for duck in self._databases:
                await duck.close()
        finally:
            await blocking(_remove, scratch)


def _remove(scratch: Scratch) -> None:
    scratch.close()
    scratch.sweep()
