"""Slots: how many requests of one client may be under way at once.

A server, a proxy or the operating system has a limit of its own on connections; beyond it requests fail, and retries
make it worse. Here they wait, in the order in which they came. Some ask for several slots, because they are several
requests: those are given together, so that no two can wait for each other.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Generator
from types import TracebackType
from typing import Any


class Slots:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def taken(self, wanted: int = 1) -> "_Taken":
        """Hold so many slots, at most all that there are."""
        return _Taken(self, min(wanted, self.limit))

    def take(self, wanted: int) -> Awaitable[None]:
        if not self._waiting and self._free >= wanted:
            self._free -= wanted
            return _NOTHING
        return self._in_turn(wanted)

    def give_back(self, count: int) -> None:
        self._free += count
        self._serve()

    async def _in_turn(self, wanted: int) -> None:
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


class _Nothing:
    """Nothing to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_NOTHING = _Nothing()


class _Taken:
    """Cheaper than coroutines: every request takes a slot, and nearly always there is a free one."""

    __slots__ = ("_count", "_slots")

    def __init__(self, slots: Slots, count: int) -> None:
        self._slots = slots
        self._count = count

    def __aenter__(self) -> Awaitable[None]:
        return self._slots.take(self._count)

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Awaitable[None]:
        self._slots.give_back(self._count)
        return _NOTHING
