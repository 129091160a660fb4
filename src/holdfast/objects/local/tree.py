"""The tree of the local store: where an object stands, and how objects and folders share a name.

Object ``a`` is the file ``a``. When ``a/b`` is written, the file has to make room for a folder, and moves into it by
two renames; it never moves back. So in its lifetime an object stands in three places at most, always in this order:

    a             a plain file
    %moving/a     on its way, beside the place it leaves
    a/%self       inside the folder that has taken its name

Rules:

* Readers take no lock. They look in the three places in that order: whoever misses an object in one finds it in a
  later one, unless there was a moment without it. A mover that is killed leaves the object readable where it stands.
* Whoever changes an object holds its path's lock, and first ends the move that a killed mover has left (``settle``).
* A folder is made when an object needs it, and removed when it is empty: it means nothing by itself. Folders need no
  lock, because ``mkdir``, ``rmdir`` and ``rename`` each fail where another one has come first, and are tried again.
* A scan has its folder to itself, so that nobody carries a name past it.
"""

import os
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

from holdfast.base.errors import Invalid
from holdfast.objects.local.files import (
    Nameless,
    OpenFile,
    OpenFolder,
    Staged,
    exists,
    is_file,
    is_folder,
    look,
    make_folder,
    open_file,
    remove_folder,
    sync_folder,
)
from holdfast.objects.local.fresh import Fresh
from holdfast.objects.local.locks import Locks, renaming, scanning, sharing
from holdfast.objects.local.paths import MOVING, SELF, Names, key_names
from holdfast.objects.local.syncs import Syncs

REMEMBERED = 256
"""Paths of one store."""


class Spot(NamedTuple):
    """The one path at which an object is to be replaced or removed, and whether one is there."""

    names: Names
    taken: bool
    found: os.stat_result | None = None
    """What is there, where somebody has looked."""

    @property
    def folder(self) -> Names:
        return self.names[:-1]


class Tree:
    def __init__(self, root: bytes, locks: Locks, *, fold: bool) -> None:
        self.root = root
        self.syncs = Syncs()
        self.locks = locks
        self.fold = fold
        self.fresh = Fresh()
        self.nameless = Nameless.possible()
        """Whether files without a name can be had here, as far as is known."""
        # Remembered for writers, who come to the same paths again and again. Readers come to all.
        self.at = lru_cache(maxsize=REMEMBERED)(partial(_path, root))
        self._places = lru_cache(maxsize=REMEMBERED)(partial(_places, root))

    def names(self, key: str) -> Names:
        return key_names(key, fold=self.fold)

    # Reading: objects without locks

    def open(self, names: Names) -> OpenFile | None:
        """The object on this path, for reading."""
        for place in _places(self.root, names):
            if (file := open_file(place)) is not None:
                return file
        return None

    def look(self, names: Names) -> os.stat_result | None:
        """Size and times of the object on this path."""
        for place in _places(self.root, names):
            if is_file(found := look(place)):
                return found
        return None

    def scan(self, folder: Names) -> dict[bytes, bool]:
        """The names in a folder, those of objects on the move included; True where it is a folder."""
        path = _path(self.root, folder)
        try:
            with scanning(path):
                found = _scan(path)
                moving = _scan(b"%s/%s" % (path, MOVING)) if found.pop(MOVING, False) else {}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return dict.fromkeys(moving, False) | found

    # Writing: whoever calls this holds the path's lock

    def settle(self, names: Names) -> Spot:
        """Where the object on this path stands, or would stand. It stays there while the lock is held."""
        plain, moving, own = self._places(names)
        found = look(plain)
        if is_file(found):
            return Spot(names, taken=True, found=found)
        if exists(moving):
            with renaming(self.at(names[:-1])):
                self._finish_move(names)
            return Spot((*names, SELF), taken=True)
        if is_folder(found):
            return Spot((*names, SELF), taken=is_file(look(own)))
        return Spot(names, taken=False)

    def place(self, staged: Staged, spot: Spot) -> OpenFolder:
        """Give a file its place. The folder is still to be forced to disk, for which nobody needs to wait."""
        opened = OpenFolder(self.at(spot.folder))
        name = spot.names[-1]  # in the folder that is open: its path may belong to another one by now
        try:
            if spot.taken:
                with sharing(opened):
                    staged.place(name, opened.descriptor)
            else:
                staged.place(name, opened.descriptor)
        except BaseException:
            opened.close()
            raise
        return opened

    # Folders: no locks but the movers' own

    def enter(self, folder: Names, made: list[Names]) -> OpenFolder | None:
        """Open a folder, made if it is missing; None if something else is there, or folders come and go."""
        path = self.at(folder)
        try:
            return OpenFolder(path)
        except FileNotFoundError:
            if not folder:
                return None  # the root itself is gone
        except NotADirectoryError:
            return None
        with suppress(FileNotFoundError, NotADirectoryError):
            self._make_all(folder, made)
            return OpenFolder(path)
        return None

    def make_room(self, folder: Names, made: list[Names]) -> None:
        """Make a folder and those above it; objects that are in the way move in. Those that were made are added to
        ``made``: their names are still to be forced to disk (``fresh``)."""
        while folder and not is_folder(look(self.at(folder))):
            try:
                if not self._make(folder, made):
                    self._move_in(folder)
            except (FileNotFoundError, NotADirectoryError):
                if len(folder) == 1:
                    raise  # the root itself is gone
                self.make_room(folder[:-1], made)

    def _make_all(self, folder: Names, made: list[Names]) -> None:
        try:
            self._make(folder, made)
        except FileNotFoundError:
            if len(folder) <= 1:
                raise  # the root itself is gone
            self._make_all(folder[:-1], made)
            self._make(folder, made)

    def _make(self, folder: Names, made: list[Names]) -> bool:
        """True if it was made, False if something of that name was there."""
        self.fresh.enter(folder)
        new = False
        try:
            new = make_folder(self.at(folder))
        finally:
            if not new:
                self.fresh.leave([folder])
        if new:
            made.append(folder)
        return new

    def give_up(self, made: list[Names]) -> None:
        """Remove the folders that were made for a write that failed, as far as nobody else uses them."""
        with suppress(OSError):  # then they stay among those whose names may not be on disk
            kept = self.prune(max(made, key=len))
            for folder in (kept, *self.fresh.above(kept)):
                self.sync(folder)
            self.fresh.leave(made)

    def prune(self, folder: Names) -> Names:
        """Remove a folder and those above it, as far as they are empty. The first that stays."""
        while folder and self._remove_empty(folder):
            folder = folder[:-1]
        return folder

    def sync(self, folder: Names) -> None:
        """Make durable which names a folder holds, or that it is gone."""
        _, opened = self.opened(folder)
        with opened:
            opened.sync()

    def opened(self, folder: Names) -> tuple[bytes, OpenFolder]:
        """The folder, or the nearest above it that is there; with its path."""
        while True:
            path = self.at(folder)
            try:
                return path, OpenFolder(path)
            except (FileNotFoundError, NotADirectoryError):
                if not folder:
                    raise
                folder = folder[:-1]

    # Moving

    def _move_in(self, names: Names) -> None:
        plain, moving, _ = self._places(names)
        with self.locks.writing(names), renaming(self.at(names[:-1])):
            while is_file(found := look(plain)):
                make_folder(os.path.dirname(moving))
                with suppress(FileNotFoundError):  # the folder was empty, and somebody pruned it
                    os.rename(plain, moving)
            if exists(moving):
                self._finish_move(names)
        if found is not None and not is_folder(found):
            raise Invalid(
                f"{os.fsdecode(plain)} is neither a file nor a folder, and objects are to be stored under it",
                remedy="move it out of the store",
            )

    def _finish_move(self, names: Names) -> None:
        plain, moving, own = self._places(names)
        while exists(moving):
            make_folder(plain)
            with suppress(FileNotFoundError):  # the folder was empty, and somebody pruned it
                os.rename(moving, own)
        sync_folder(plain)
        remove_folder(os.path.dirname(moving))
        sync_folder(os.path.dirname(plain))

    def _remove_empty(self, folder: Names) -> bool:
        path = self.at(folder)
        # A mover that was killed may have left its own folder empty.
        return remove_folder(path) or (remove_folder(b"%s/%s" % (path, MOVING)) and remove_folder(path))


def _path(root: bytes, names: Names) -> bytes:
    return b"/".join((root, *names))


def _places(root: bytes, names: Names) -> tuple[bytes, bytes, bytes]:
    folder, name = _path(root, names[:-1]), names[-1]
    plain = b"%s/%s" % (folder, name)
    return plain, b"%s/%s/%s" % (folder, MOVING, name), b"%s/%s" % (plain, SELF)


def _scan(folder: bytes) -> dict[bytes, bool]:
    """Files and folders, but neither links nor special files; nothing if the folder is gone."""
    found: dict[bytes, bool] = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            is_dir = entry.is_dir(follow_symlinks=False)
            if is_dir or entry.is_file(follow_symlinks=False):
                found[entry.name] = is_dir
    return found
