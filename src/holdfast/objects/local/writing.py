"""One write to the tree: from its condition to the moment when all that is left is to force folders to disk.

There are two ways. An object that is to be created where nothing is goes the short one: into its folder, which is made
if need be, as a file that has no name, and gets its name under its path's lock. Everything else is staged, compared
under the lock and renamed; so is a create that finds anything unusual on the short way, such as an object that is also
a folder, a move that was cut short, or a filesystem without such files.

The short way is walked on the loop: its calls return at once, but for those that force something to disk, which the
loop does not wait for. A thread would have to be given the interpreter's lock after each of them. What may take its
time (a large body, a lock that somebody holds, and all of the long way) is a thread's.
"""

import asyncio
import os
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from holdfast.base.aio import aside, blocking, finishing
from holdfast.base.errors import Unavailable
from holdfast.objects.local.errors import Explained
from holdfast.objects.local.files import Nameless, OpenFolder, Staged, exists, is_file, look, open_file
from holdfast.objects.local.known import Known
from holdfast.objects.local.paths import MOVING, Names
from holdfast.objects.local.syncs import all_safe
from holdfast.objects.local.tree import Spot, Tree
from holdfast.objects.store import Addressed, Create, IfMatch, Lost, Mode, Overwrite, Written

AT_ONCE_BYTES = 64 * 1024
"""A body that is written to the system's memory on the loop."""
TRIES = 100
"""How often a write makes its folder again that others prune."""


class Placed(NamedTuple):
    """How a write has ended, and the folder that is still to be forced to disk before anybody is told."""

    outcome: Written | Lost
    names: Names
    folder: OpenFolder | None = None


class Write:
    """Of the object on one path. ``change`` is told how far it has come. If it fails, its folders go again."""

    __slots__ = ("_begun", "_forced", "_syncs", "change", "made", "names", "tree")

    def __init__(self, tree: Tree, names: Names, change: Explained) -> None:
        self.tree = tree
        self.names = names
        self.change = change
        self.made: list[Names] = []
        """Folders, whose own names are still to be forced to disk."""
        self._syncs = tree.syncs
        self._begun: tuple[OpenFolder, Nameless] | None = None
        self._forced: list[asyncio.Future[None]] = []

    # The short way

    def begin(self, body: bytes) -> bool:
        """Bring the bytes on their way to disk, unseen; False if the short way does not lead there."""
        folder = self.tree.enter(self.names[:-1], self.made) if self.tree.nameless else None
        if folder is None:
            return False
        file = None
        try:
            if self.made or not folder.has(self.names[-1]):
                file = Nameless(self.tree.at(self.names[:-1]), folder, body)
        except OSError as error:
            self._consider(error, folder)
        finally:
            if file is None:
                folder.close()
        if file is None:
            return False
        self._begun = folder, file
        return True

    def begin_ahead(self, body: bytes) -> bool:
        """The same before anybody has asked for it; what goes wrong here is told to who does."""
        if len(body) > AT_ONCE_BYTES:
            return False
        with suppress(OSError):
            if self.begin(body):
                self._force_bytes()
                return True
        return False

    def _force_bytes(self) -> None:
        if self._begun is not None:
            folder, file = self._begun
            device = folder.device
            self._forced = [*self._above(self.names[:-1], device), self._syncs.file(file.descriptor, device)]

    def give_up(self) -> None:
        """What was begun ahead, and nobody has asked for."""
        if self._begun is not None:
            (folder, file), self._begun = self._begun, None
            folder.close()
            for wish in self._forced:
                wish.add_done_callback(partial(_look_at, file))
        if made := self._take_made():
            aside(self.tree.give_up, made)

    async def _begin(self, body: bytes) -> None:
        if self.begin(body) if len(body) <= AT_ONCE_BYTES else await finishing(self.begin, body):
            self._force_bytes()

    async def create(self, body: bytes) -> bool:
        """Whether the object was created, and is on disk; False if the short way does not lead there."""
        if self._begun is None:
            await self._begin(body)
        if self._begun is None:
            return False
        (folder, file), self._begun = self._begun, None
        with file:
            created = False
            try:
                await all_safe(self._forced)
                created = self._name(file, folder)
            finally:
                if not created:
                    folder.close()
            if created:
                # The file itself says how many names it has: none, when it was forced. Where there is no journal, the
                # folder does not take that along, and after a power cut the name would lead to a deleted file.
                path, device = self.tree.at(self.names[:-1]), folder.device
                await all_safe([self._syncs.folder(path, folder), self._syncs.file(file.descriptor, device)])
                self._leave()
        return created

    def _name(self, file: Nameless, folder: OpenFolder) -> bool:
        name = self.names[-1]
        try:
            with self.tree.locks.writing(self.names, waits=False):
                if folder.has(b"%s/%s" % (MOVING, name)):
                    return False  # a mover that was killed has left the object on this path half-way
                self.change.begun = True
                file.place(name, folder)
                self.change.made = True
                return True
        except OSError as error:
            self._consider(error, folder)
        self.change.begun = False
        return False

    def _consider(self, error: OSError, folder: OpenFolder) -> None:
        """Raise what is more than a reason to go the long way."""
        if isinstance(error, (FileExistsError, BlockingIOError)):
            return  # somebody was faster, or holds the lock of the path
        if not (isinstance(error, FileNotFoundError) or Nameless.unheard_of(error)):
            raise error
        if not folder.is_removed():  # where ext4 says that it is not permitted
            self.tree.nameless = False

    # The long way

    def place(self, staged: Staged, mode: Mode, known: Known) -> tuple[Spot, OpenFolder] | None:
        """Give a staged file its place; None if the condition does not hold."""
        for _ in range(TRIES):
            with self.tree.locks.writing(self.names):
                spot = self.tree.settle(self.names)
                if not _holds(mode, self.tree, spot, known):
                    return None
                try:
                    self.change.begun = True
                    folder = self.tree.place(staged, spot)
                    self.change.made = True
                    return spot, folder
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    pass  # its folder is not there: made below, without the lock
            self.tree.make_room(self.names[:-1], self.made)
        raise Unavailable(f"{os.fsdecode(self.tree.at(self.names))}: the folders on this path come and go too fast")

    def lost_already(self, mode: Mode) -> bool:
        """Whether it is not worth writing the body; looks only where an object usually stands."""
        if not isinstance(mode, (Create, Addressed)):
            return False
        path = self.tree.at(self.names)
        return exists(path) and is_file(look(path))

    def lost(self) -> Placed:
        """What the race was lost to may have its name since a moment ago, and not know of it on disk."""
        if (winner := self.tree.open(self.names)) is not None:
            with winner:
                winner.sync()
        return Placed(Lost(), self.names)

    # The end

    async def force(self, placed: Placed) -> Written | Lost:
        """The outcome, once it is on disk: the names in a folder, and those of the folders on its path."""
        path, folder = self.tree.at(placed.names), placed.folder
        if folder is None:
            path, folder = self.tree.opened(placed.names)
        device = folder.device
        # The folder comes first, for it is closed then, whatever happens.
        await all_safe([self._syncs.folder(path, folder), *self._above(placed.names, device)])
        self._leave()
        return placed.outcome

    def _above(self, folder: Names, device: int) -> "list[asyncio.Future[None]]":
        """New folders are on the filesystem of the one that was made last, which has this number."""
        fresh = self.tree.fresh.above(folder)
        return [self._syncs.unopened(partial(self.tree.opened, above), device) for above in fresh]

    def force_here(self, placed: Placed) -> Written | Lost:
        """The same, by the thread that calls."""
        with placed.folder or self.tree.opened(placed.names)[1] as folder:
            folder.sync()
        for above in self.tree.fresh.above(placed.names):
            self.tree.sync(above)
        self._leave()
        return placed.outcome

    def _leave(self) -> None:
        if made := self._take_made():
            self.tree.fresh.leave(made)

    def _take_made(self) -> list[Names]:
        """For one who sees to them: a thread may still be at work when its caller has given up."""
        made, self.made = self.made, []
        return made

    async def __aenter__(self) -> Self:
        self._syncs.writers += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._syncs.writers -= 1
        if error is not None and (made := self._take_made()):
            await blocking(self.tree.give_up, made)


def _look_at(_file: Nameless, wish: "asyncio.Future[None]") -> None:
    """Its error has nobody left to go to. The file is open until then."""
    if not wish.cancelled():
        wish.exception()


def _holds(mode: Mode, tree: Tree, spot: Spot, known: Known) -> bool:
    match mode:
        case Overwrite():
            return True
        case Create() | Addressed():
            return not spot.taken
        case IfMatch(version):
            path = tree.at(spot.names)
            if spot.found is not None and (current := known.version(path, spot.found)) is not None:
                return current == version
            file = open_file(path)
            if file is None:
                return False
            with file:
                return file.version() == version
