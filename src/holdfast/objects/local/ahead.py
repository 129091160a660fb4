"""Objects whose bytes go to disk before somebody asks for them to be created.

Who writes two objects in turn, the second only if the first is there, knows the second one's bytes from the beginning.
So they are written to a file without a name, and forced to disk, while the first object is under way: of the second
one's write its name is all that is left. Nobody sees such a file, and a crash leaves nothing of it.
"""

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from holdfast.base import disk
from holdfast.objects.local.writing import Write


class Begun(NamedTuple):
    body: bytes
    write: Write
    loop: asyncio.AbstractEventLoop
    """The only one that it can be ended on."""
    process: int

    @property
    def is_here(self) -> bool:
        """Not of a loop that has ended, nor of the process that this one was forked from."""
        return not self.loop.is_closed() and self.process == os.getpid()


class Ahead:
    """While it is entered, the write of ``body`` has begun, if it can. What nobody has taken then is given up."""

    __slots__ = ("_begin", "_begun", "_body", "_key", "_mine")

    def __init__(self, begun: dict[str, Begun], key: str, body: bytes, begin: Callable[[str], Write | None]) -> None:
        """``begun`` has the writes of a store that nobody has taken, by key."""
        self._begun = begun
        self._key = key
        self._body = body
        self._begin = begin
        self._mine: Begun | None = None

    def __enter__(self) -> None:
        other = self._begun.get(self._key)
        if other is not None and other.is_here:
            return  # it is going to be written
        write = self._begin(self._key)
        if write is None:
            return
        if not write.begin_ahead(self._body):
            write.give_up()
            return
        self._mine = self._begun[self._key] = Begun(self._body, write, asyncio.get_running_loop(), os.getpid())
        disk.hurry()  # whatever the caller does now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mine is not None and self._begun.get(self._key) is self._mine:
            del self._begun[self._key]
            self._mine.write.give_up()


def taken(begun: dict[str, Begun], key: str, body: bytes) -> Write | None:
    """The write of exactly these bytes, which is the caller's from now on."""
    found = begun.get(key)
    if found is None or found.body != body or found.loop is not asyncio.get_running_loop() or not found.is_here:
        return None
    del begun[key]
    return found.write
