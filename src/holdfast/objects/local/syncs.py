"""Forcing to disk: several files and folders at a time, and a folder once for several writers.

Writers of one folder that are under way on one loop would each force it to disk. So whoever finds a folder being forced
leaves its wish, which is met by the next time: the one that is under way may not cover its change.

Nothing is shared with another loop or a forked child, nor between folders that had one path at different times.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

from holdfast.base import disk
from holdfast.objects.local.files import OpenFolder

Wish = asyncio.Future[None]


class _Round:
    """A folder that is being forced to disk, and who wishes that it be forced once more."""

    def __init__(self, folder: OpenFolder) -> None:
        self.folder = folder
        self.wishes: list[Wish] = []


Rounds = dict[bytes, _Round]
"""By the path of the folder."""


class Syncs:
    def __init__(self) -> None:
        self.writers = 0
        """Who may be about to force something."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Rounds] = WeakKeyDictionary()

    def file(self, descriptor: int) -> Wish:
        """Settled when the bytes of an open file are safe."""
        wish = asyncio.get_running_loop().create_future()
        disk.force(descriptor, partial(_settle, wish))
        return wish

    def folder(self, path: bytes, folder: OpenFolder) -> Wish:
        """Settled when the names in the open folder at ``path`` are safe, which is closed some time."""
        loop = asyncio.get_running_loop()
        wish = loop.create_future()
        rounds = self._loops.get(loop)
        if rounds is None:
            disk.forget_closed(self._loops)
            rounds = self._loops[loop] = {}
        under_way = rounds.get(path)
        if under_way is not None and under_way.folder.is_same(folder):
            folder.close()
            under_way.wishes.append(wish)
            return wish
        mine = _Round(folder)
        if under_way is None:  # else its folder was removed and made again: then nobody joins us
            rounds[path] = mine
        _begin(rounds, path, mine, [wish])
        return wish


async def all_safe(wishes: Sequence[Wish]) -> None:
    """Until each is settled; then the first failure is raised."""
    failed: OSError | None = None
    try:
        for wish in wishes:
            try:
                await wish
            except OSError as error:
                failed = failed or error
    finally:
        for wish in wishes:
            wish.cancel()  # whoever is cancelled looks at none of the others
    if failed is not None:
        raise failed


def _begin(rounds: Rounds, path: bytes, this: _Round, wishes: list[Wish]) -> None:
    disk.force(this.folder.descriptor, partial(_end, rounds, path, this, wishes))


def _end(rounds: Rounds, path: bytes, this: _Round, wishes: list[Wish], error: OSError | None) -> None:
    if error is not None:  # the system tells of it once: the next time may succeed, and cover nothing of what was lost
        wishes, this.wishes = [*wishes, *this.wishes], []
    for wish in wishes:
        _settle(wish, error)
    if this.wishes:
        wishes, this.wishes = this.wishes, []
        _begin(rounds, path, this, wishes)
        return
    if rounds.get(path) is this:
        del rounds[path]
    this.folder.close()


def _settle(wish: Wish, error: OSError | None) -> None:
    if wish.done():
        return  # who wished is gone
    if error is None:
        wish.set_result(None)
    else:
        wish.set_exception(error)
