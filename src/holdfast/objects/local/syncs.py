"""Forcing to disk: several files and folders at a time, and a folder once for several writers.

Writers of one folder that are under way on one loop would each force it to disk. So whoever finds a folder being forced
leaves its wish, which is met by the next time: the one that is under way may not cover its change. Where there are many
wishes at a time, they are met all at once (``together``).

Nothing is shared with another loop or a forked child, nor between folders that had one path at different times.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakKeyDictionary, ref

from holdfast.base import disk
from holdfast.objects.local.files import OpenFolder
from holdfast.objects.local.together import Together

Wish = asyncio.Future[None]
Opened = tuple[bytes, OpenFolder]
"""A folder with its path."""


class _Round:
    """A folder that is being forced to disk, and who wishes that it be forced once more."""

    def __init__(self, folder: OpenFolder) -> None:
        self.folder = folder
        self.wishes: list[Wish] = []


Rounds = dict[bytes, _Round]
"""By the path of the folder."""


class _OfLoop:
    def __init__(self, whole: bytes | None) -> None:
        self.rounds: Rounds = {}
        self.together = None if whole is None else Together(whole)


class Syncs:
    def __init__(self) -> None:
        self.whole: bytes | None = None
        """A folder of the filesystem, if that is to be forced to disk as a whole where there are many wishes."""
        self.writers = 0
        """Who may be about to force something."""
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()
        self._recent: tuple[Callable[[], object], _OfLoop] | None = None
        """The loop that asked last, if it is still there: nearly always the one that asks next."""

    def file(self, descriptor: int, device: int) -> Wish:
        """Settled when the bytes of an open file, on the filesystem of this number, are safe."""
        loop = asyncio.get_running_loop()
        return _take(_File(loop.create_future(), descriptor), device, self._of(loop))

    def folder(self, path: bytes, folder: OpenFolder) -> Wish:
        """Settled when the names in the open folder at ``path`` are safe, which is closed some time."""
        loop, device = asyncio.get_running_loop(), folder.device
        here = self._of(loop)
        return _take(_Folder(loop.create_future(), here.rounds, lambda: (path, folder), folder), device, here)

    def unopened(self, opened: Callable[[], Opened], device: int) -> Wish:
        """The same of a folder that is opened if need be."""
        loop = asyncio.get_running_loop()
        here = self._of(loop)
        return _take(_Folder(loop.create_future(), here.rounds, opened), device, here)

    def _of(self, loop: asyncio.AbstractEventLoop) -> _OfLoop:
        recent = self._recent
        if recent is not None and recent[0]() is loop:
            return recent[1]
        here = self._loops.get(loop)
        if here is None:
            disk.forget_closed(self._loops)
            here = self._loops[loop] = _OfLoop(self.whole)
        self._recent = ref(loop), here
        return here


def _take(one: "_File | _Folder", device: int, here: _OfLoop) -> Wish:
    if here.together is None:
        one.alone(_nothing)
    else:
        here.together.take(one, device)
    return one.wish


class _File:
    """The bytes of an open file."""

    __slots__ = ("_descriptor", "wish")

    def __init__(self, wish: Wish, descriptor: int) -> None:
        self.wish = wish
        self._descriptor = descriptor

    def met(self, error: OSError | None) -> None:
        if not self.wish.done():  # else the file may be closed
            _settle(self.wish, error or disk.lost_since(self._descriptor))

    def alone(self, ended: Callable[[], None]) -> None:
        if self.wish.done():
            ended()
        else:
            disk.force(self._descriptor, partial(self._end, ended))

    def _end(self, ended: Callable[[], None], error: OSError | None) -> None:
        ended()
        _settle(self.wish, error)


class _Folder:
    """The names in a folder, which is ``held`` open, or opened if need be."""

    __slots__ = ("_held", "_opened", "_rounds", "wish")

    def __init__(
        self, wish: Wish, rounds: Rounds, opened: Callable[[], Opened], held: OpenFolder | None = None
    ) -> None:
        self.wish = wish
        self._rounds = rounds
        self._opened = opened
        self._held = held

    def met(self, error: OSError | None) -> None:
        if self._held is not None:
            error = error or disk.lost_since(self._held.descriptor)
            self._held.close()
        _settle(self.wish, error)

    def alone(self, ended: Callable[[], None]) -> None:
        self._held = None  # the folder is the round's from now on
        self.wish.add_done_callback(lambda _: ended())
        try:
            path, folder = self._opened()
        except OSError as error:
            _settle(self.wish, error)
            return
        under_way = self._rounds.get(path)
        if under_way is not None and under_way.folder.is_same(folder):
            folder.close()
            under_way.wishes.append(self.wish)
            return
        mine = _Round(folder)
        if under_way is None:  # else its folder was removed and made again: then nobody joins us
            self._rounds[path] = mine
        _begin(self._rounds, path, mine, [self.wish])


def _nothing() -> None:
    pass


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
