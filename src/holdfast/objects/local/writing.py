"""One write to the tree: from its condition to the moment when all that is left is to force folders to disk.

There are two ways. An object that is to be created where nothing is goes the short one: into its folder, which is made
if need be, as a file that has no name, and gets its name under its path's lock. Everything else is staged, compared
under the lock and renamed; so is a create that finds anything unusual on the short way, such as an object that is also
a folder, a move that was cut short, or a filesystem without such files.
"""

import os
from types import TracebackType
from typing import Self

from holdfast.base.errors import Unavailable
from holdfast.objects.local.errors import Explained
from holdfast.objects.local.files import Nameless, OpenFolder, Staged, exists, is_file, look, open_file
from holdfast.objects.local.known import Known
from holdfast.objects.local.paths import Names
from holdfast.objects.local.tree import Spot, Tree
from holdfast.objects.store import Addressed, Create, IfMatch, Mode, Overwrite

TRIES = 100
"""How often a write makes its folder again that others prune."""


class Write:
    """Of the object on one path. ``change`` is told how far it has come. If it fails, its folders go again."""

    __slots__ = ("change", "made", "names", "tree")

    def __init__(self, tree: Tree, names: Names, change: Explained) -> None:
        self.tree = tree
        self.names = names
        self.change = change
        self.made: list[Names] = []
        """Folders, whose own names are still to be forced to disk."""

    def create(self, body: bytes) -> OpenFolder | None:
        """The short way: the folder that holds the new object; None if it does not lead there."""
        folder = self.tree.enter(self.names[:-1], self.made) if self.tree.nameless else None
        if folder is None:
            return None
        created = False
        try:
            created = (bool(self.made) or not folder.has(self.names[-1])) and self._create(folder, body)
        finally:
            if not created:
                folder.close()
        return folder if created else None

    def _create(self, folder: OpenFolder, body: bytes) -> bool:
        try:
            with Nameless(self.tree.at(self.names[:-1]), body) as file, self.tree.locks.writing(self.names):
                if self.tree.is_moving(self.names):
                    return False
                self.change.begun = True
                file.place(self.names[-1], folder)
                self.change.made = True
                return True
        except FileExistsError:
            pass  # somebody was faster
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self.tree.nameless = folder.is_removed()
            elif Nameless.unheard_of(error):
                self.tree.nameless = False
            else:
                raise
        self.change.begun = False
        return False

    def place(self, staged: Staged, mode: Mode, known: Known) -> tuple[Spot, OpenFolder] | None:
        """The long way: give a staged file its place; None if the condition does not hold."""
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

    def safe(self) -> None:
        """The folders that were made have their names on disk."""
        made, self.made = self.made, []
        if made:
            self.tree.fresh.leave(made)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.made:
            made, self.made = self.made, []
            self.tree.give_up(made)


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
