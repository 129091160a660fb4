"""Many files and folders forced to disk at once, in rounds: the whole filesystem is.

To force sixteen files takes a disk sixteen waits for its own memory, and processors as many ways there and back. To
force their filesystem takes hardly longer than one of them. Whoever comes while a round is under way is met by the next
one: this one may not cover what it did.

A round also writes what strangers have left unwritten on the same disk. So one begins only where several files are
being forced already, and one that is late is not waited for: whoever would be met by it is forced to disk alone, and so
is everybody for a while.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from holdfast.base import disk
from holdfast.objects.local.files import OpenFolder

FEW = 6
"""Files and folders that are forced alone at a time; beyond that there are rounds."""
LATE_SECONDS = 0.05
REST_SECONDS = 10.0
LOOKS = 3
"""At a round that is late: on a busy loop its end may be on its way."""
TURNS = 6
"""Of the loop, between two rounds: until whoever was met has come to its next wait."""


class Waiting(Protocol):
    """Somebody who waits until something is on disk."""

    def met(self, error: OSError | None) -> None:
        """It is, or that has failed. Whoever was met before takes no notice."""

    def alone(self, ended: Callable[[], None]) -> None:
        """Have it forced by itself, and met; then tell that this has ended."""


class Together:
    """Of one loop, and of one filesystem on which that can be done."""

    def __init__(self, root: bytes) -> None:
        """``root`` is a folder there."""
        self._root = root
        self._open: OpenFolder | None = None
        """While there are rounds."""
        self._alone = 0
        self._next: list[Waiting] = []
        self._begun = False
        """A round is under way, or about to begin; and nobody has given it up."""
        self._round: list[Waiting] | None = None
        """Who is met by the one that is under way."""
        self._given_up = False
        """The one that is under way was."""
        self._rests_until = 0.0

    def take(self, one: Waiting, device: int) -> None:
        """Have it met; it is on the filesystem of this number."""
        if not self._begun and self._alone >= FEW and not self._given_up:
            self._begin_soon(asyncio.get_running_loop())
        if self._begun and self._open is not None and self._open.device == device:
            self._next.append(one)
        else:
            self._force_alone(one)

    def _begin_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """With all who come in this turn."""
        if loop.time() >= self._rests_until:
            with suppress(OSError):  # the root was taken away: whoever needs it makes it anew
                self._open = OpenFolder(self._root)
                self._begun = True
                loop.call_soon(self._begin)

    def _force_alone(self, one: Waiting) -> None:
        self._alone += 1
        one.alone(self._one_less)

    def _one_less(self) -> None:
        self._alone -= 1

    def _begin(self) -> None:
        these, self._next = self._next, []
        self._begun = bool(these)
        if self._open is not None and these:
            self._round = these
            late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._give_up, these)
            disk.force_filesystem(self._open.descriptor, partial(self._end, these, late))
        else:
            self._close()

    def _begin_after(self, turns: int) -> None:
        """Those who were met come first: they may be waiting again."""
        if turns:
            asyncio.get_running_loop().call_soon(self._begin_after, turns - 1)
        else:
            self._begin()

    def _give_up(self, these: list[Waiting], looks: int = LOOKS) -> None:
        if self._round is not these:
            return
        if looks:
            asyncio.get_running_loop().call_soon(self._give_up, these, looks - 1)
            return
        self._given_up = True
        self._rest(these)

    def _rest(self, these: list[Waiting]) -> None:
        """No rounds for a while: force everybody alone who waits for one, and these."""
        waiting, self._next = [*these, *self._next], []
        self._begun = False
        self._rests_until = asyncio.get_running_loop().time() + REST_SECONDS
        for one in waiting:
            self._force_alone(one)

    def _end(self, these: list[Waiting], late: asyncio.TimerHandle, error: OSError | None) -> None:
        late.cancel()
        self._round = None
        if self._given_up:  # they are being forced alone
            self._given_up = False
            self._close()
            return
        for one in these:
            one.met(error)
        if error is None:
            self._begin_after(TURNS)
            return
        # The system tells of it once, and it may have been about what the next round is for. A file's own descriptor
        # tells of it too.
        self._rest([])
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
