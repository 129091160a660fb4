"""Slots: how many requests of one client may be under way at once.

A server, a proxy or the operating system has a limit of its own on connections; beyond it requests fail, and retries
make it worse. Here they wait, in the order in which they came. Some ask for several slots, because they are several
requests: those are given together, so that no two can wait for each other.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @asynccontextmanager
    async def taken(self, wanted: int = 1) -> AsyncIterator[None]:
        """Hold so many slots, at most all that there are."""
        wanted = min(wanted, self.limit)
        await self._take(wanted)
        try:
            yield
        finally:
            self._free += wanted
            self._serve()

    async def _take(self, wanted: int) -> None:
        if not self._waiting and self._free >= wanted:
            self._free -= wanted
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, wanted))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # given in the same moment: hand them on
                self._free += wanted
            self._serve()
            raise

    def _serve(self) -> None:
        while self._waiting:
            turn, wanted = self._waiting[0]
            if not turn.done():
                if self._free < wanted:
                    return
                self._free -= wanted
                turn.set_result(None)
            self._waiting.popleft()
