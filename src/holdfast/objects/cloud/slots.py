"""Slots: how many requests of one client may be under way at once.

A server, a proxy or the operating system has a limit of its own on connections; beyond it requests fail, and retries
make it worse. Here they wait, in the order in which they came. Some ask for several slots, because they are several
requests: those are given together, so that no two can wait for each other.
"""

import asyncio
from collections import deque
from types import TracebackType


class Slots:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def taken(self, wanted: int = 1) -> "_Taken":
        """Hold so many slots, at most all that there are."""
        return _Taken(self, min(wanted, self.limit))

    def take_now(self, wanted: int = 1) -> bool:
        """Take so many slots, if there are as many free and nobody waits for them."""
        if self._waiting or self._free < wanted:
            return False
        self._free -= wanted
        return True

    async def take(self, wanted: int = 1) -> None:
        if self.take_now(wanted):
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

    def give_back(self, count: int = 1) -> None:
        self._free += count
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        while self._waiting:
            turn, wanted = self._waiting[0]
            if not turn.done():
                if self._free < wanted:
                    return
                self._free -= wanted
                turn.set_result(None)
            self._waiting.popleft()


class _Taken:
    """Cheaper than a generator: every request takes a slot."""

    __slots__ = ("_count", "_slots")

    def __init__(self, slots: Slots, count: int) -> None:
        self._slots = slots
        self._count = count

    async def __aenter__(self) -> None:
        await self._slots.take(self._count)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slots.give_back(self._count)
