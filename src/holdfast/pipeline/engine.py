"""Where tasks run: in this process, or wherever Spark puts them.

A **task** is a module-level async function of an open store and a payload of bytes; it gives rows, which are small
documents. It may be run twice, at once or one after the other, and by a process that everybody else has given up: what
it writes it creates, under names that follow from the payload.

``Inline`` runs tasks on the caller's own loop and store, a few at a time. It is what tests, the simulator and small
stores use; ``SparkEngine`` (in ``spark``) gives the same rows.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.objects.store import Store

Task = Callable[[Store, bytes], Awaitable[list[Document]]]

Progress = Callable[[int, int], None]
"""Told how many tasks have ended, and of how many."""


def unwatched(done: int, total: int) -> None:
    """For those who need no progress."""


class Engine(Protocol):
    async def cores(self) -> int:
        """How many tasks run at the same time. Whatever must be started is started by the first who asks."""
        ...

    async def run(self, name: str, task: Task, payloads: Sequence[bytes], progress: Progress) -> list[Document]:
        """The rows of all tasks. A task that fails for good fails the call."""
        ...

    async def close(self) -> None: ...


class Inline:
    """Tasks in this process."""

    def __init__(self, store: Store, *, cores: int = 1) -> None:
        self._store = store
        self._cores = cores

    async def cores(self) -> int:
        return self._cores

    async def run(self, name: str, task: Task, payloads: Sequence[bytes], progress: Progress) -> list[Document]:
        done = 0

        async def one(payload: bytes) -> list[Document]:
            nonlocal done
            rows = await task(self._store, payload)
            done += 1
            progress(done, len(payloads))
            return rows

        parts = await map_bounded(payloads, one, limit=self._cores)
        return [row for rows in parts for row in rows]

    async def close(self) -> None:
        """Nothing is held."""
