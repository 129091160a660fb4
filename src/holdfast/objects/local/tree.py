"""The tree of the local store: where an object stands, how objects and directories share a name, and listings.

Object ``a`` is the file ``a``. When ``a/b`` is written, the file must make room for a directory, and moves into it by
two renames; it never moves back. So in its lifetime an object stands in at most three places, always in this order:

    a             a plain file
    %moving/a     on its way, beside the place it leaves
    a/%self       inside the directory that has taken its name

Rules:

* Readers take no lock. They look in the three places in that order: a reader that misses an object in one finds it in a
  later one, unless there was a moment without it. A mover that is killed leaves the object readable where it stands.
* A writer holds the lock of its object's path, and first ends the move that a killed mover has left (``settle``).
* A directory is made when an object needs it and removed when it is empty: it means nothing by itself. Directories need
  no lock, because ``mkdir``, ``rmdir`` and ``rename`` each fail where another process was first, and are tried again.
* A scan locks its directory, so that no name is moved past it.
* An object is durable when its name is, and the names of all directories on its path. Each writer sees to all of them:
  it cannot know whether the process that made a directory has fsynced the one above. ``Folders`` keeps those that
  need no further fsync.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.base.errors import Invalid
from holdfast.objects.local.files import Folder, Identity, OpenFile, Staging, is_file, is_folder
from holdfast.objects.local.locks import Locks, renaming, scanning
from holdfast.objects.local.names import CONTINUED, MOVING, SELF, Names, key_names, names_component
from holdfast.objects.store import MAX_KEY_BYTES, Entry


class Folders:
    """The directories that writers used last, kept open, whose names are on disk; least recently used first.

    A look at the name tells whether it still stands for the directory that is open. While that one is open its inode
    number cannot be given to another, which is made later under the same name and is not durable yet. (The change time
    cannot be used, because it changes with every entry, and not every filesystem has generations.)

    Each operation is one call of the C dictionary, so threads need no lock, which a fork could leave locked. A
    directory that is dropped here is closed when its last user is done with it.
    """

    MOST = 128

    def __init__(self) -> None:
        self._folders: OrderedDict[tuple[Identity, bytes], Folder] = OrderedDict()

    def child(self, parent: Folder, name: bytes) -> Folder | None:
        """The directory of this name, durable in its parent; None if there is none. It is shared: do not close it."""
        found = parent.look(name)
        if found is None or not is_folder(found):
            return None
        key = parent.identity, name
        known = self._folders.get(key)
        if known is not None and known.identity == (found.st_dev, found.st_ino):
            with suppress(KeyError):  # another thread has dropped it
                self._folders.move_to_end(key)
            return known
        child = parent.child(name)
        if child is not None:
            parent.sync()
            self._folders[key] = child
            if len(self._folders) > self.MOST:
                self._folders.popitem(last=False)
        return child

    def clear(self) -> None:
        self._folders.clear()


class Spot(NamedTuple):
    """Where an object is to be replaced or removed. It stays there while the lock of its path is held."""

    folder: Folder
    name: bytes
    taken: bool
    """The object exists."""


class Tree:
    """The tree below one open root. Writers need ``locks`` and ``staging``, readers do not."""

    def __init__(
        self, root: Folder, folders: Folders, *, fold: bool, locks: Locks | None = None, staging: Staging | None = None
    ) -> None:
        self.root = root
        self.fold = fold
        self._folders = folders
        self._locks = locks
        self._staging = staging

    def names(self, key: str) -> Names:
        return key_names(key, fold=self.fold)

    @property
    def locks(self) -> Locks:
        if self._locks is None:
            raise RuntimeError("this tree was opened for reading")
        return self._locks

    @property
    def staging(self) -> Staging:
        if self._staging is None:
            raise RuntimeError("this tree was opened for reading or deleting")
        return self._staging

    # Reading: no locks

    def folder(self, names: Names) -> Folder | None:
        """The directory at ``names``; None if there is none."""
        folder: Folder | None = self.root.again() if not names else self.root.child(names[0])
        for name in names[1:]:
            if folder is None:
                break
            with folder:
                folder = folder.child(name)
        return folder

    def open(self, names: Names) -> OpenFile | None:
        """The object on this path, for reading."""
        folder = self.folder(names[:-1])
        if folder is None:
            return None
        with folder:
            name = names[-1]
            return folder.file(name) or _file_in(folder, MOVING, name) or _file_in(folder, name, SELF)

    # Writing

    def reach(self, names: Names, *, making: bool) -> Folder | None:
        """The directory at ``names``, durable up to the root. ``making``: it and those above it are made if need be,
        and objects that are in the way move in; then None means that a directory was removed meanwhile.
        """
        folder = self.root
        for depth, name in enumerate(names, 1):
            child = self._folders.child(folder, name)
            if child is None and making:
                with suppress(FileNotFoundError):
                    child = self._made(folder, names[:depth])
            if child is None:
                return None
            folder = child
        return folder

    def nearest(self, names: Names) -> Folder:
        """The directory at ``names``, or the nearest one above it that there is; durable up to the root."""
        while (folder := self.reach(names, making=False)) is None:
            names = names[:-1]
        return folder

    def settle(self, folder: Folder, names: Names) -> Spot:
        """Where the object on this path stands, or would stand; ``folder`` is that of its plain name. The caller holds
        the lock of the path.
        """
        name = names[-1]
        found = folder.look(name)
        if is_file(found):
            return Spot(folder, name, taken=True)
        if _is_moving(folder, name):
            with renaming(folder):
                self._finish_move(folder, name)
        elif found is None:
            return Spot(folder, name, taken=False)
        inner = self._folders.child(folder, name)
        if inner is None:
            return Spot(folder, name, taken=False)
        return Spot(inner, SELF, taken=is_file(inner.look(SELF)))

    def remove(self, names: Names) -> Names:
        """Remove an object if it is there. The directory that is to be fsynced, or pruned."""
        folder = self.folder(names[:-1])
        if folder is None:
            return names[:-1]
        with folder, self.locks.writing(names):
            spot = self.settle(folder, names)
            if spot.taken:
                with suppress(FileNotFoundError):  # removed by hand
                    spot.folder.unlink(spot.name)
            return names[:-1] if spot.folder is folder else names

    def prune(self, names: Names) -> Names:
        """Remove a directory and those above it, as far as they are empty. The first one that stays."""
        while names:
            folder = self.folder(names[:-1])
            if folder is not None:
                with folder:
                    if not _remove_empty(folder, names[-1]):
                        break
            names = names[:-1]
        return names

    # Making room

    def _made(self, folder: Folder, names: Names) -> Folder | None:
        """The directory of this path, made in the one above it. ``FileNotFoundError`` if that one was removed."""
        if not folder.make(names[-1]):
            self._move_in(folder, names)
        return self._folders.child(folder, names[-1])

    def _move_in(self, folder: Folder, names: Names) -> None:
        name = names[-1]
        with self.locks.writing(names), renaming(folder):
            while is_file(folder.look(name)):
                moving = _entered(folder, MOVING)
                if moving is not None:
                    with moving, suppress(FileNotFoundError):  # it was empty, and pruned
                        folder.rename(name, moving, name)
            if _is_moving(folder, name):
                self._finish_move(folder, name)
            elif (made := _entered(folder, name)) is not None:
                made.close()

    def _finish_move(self, folder: Folder, name: bytes) -> None:
        while _is_moving(folder, name):
            moving, inner = folder.child(MOVING), _entered(folder, name)
            if moving is not None and inner is not None:
                with moving, inner, suppress(FileNotFoundError):  # one was empty, and pruned
                    moving.rename(name, inner, SELF)
                    inner.sync()
        folder.remove(MOVING)
        folder.sync()


def _entered(folder: Folder, name: bytes) -> Folder | None:
    """The directory of this name, made if need be; None if it was removed meanwhile."""
    folder.make(name)
    child = folder.child(name)
    if child is None and (found := folder.look(name)) is not None and not is_folder(found):
        raise Invalid(
            f"{os.fsdecode(name)} is neither a file nor a directory, and objects are to be stored under it",
            remedy="move it out of the store",
        )
    return child


def _file_in(folder: Folder, name: bytes, file: bytes) -> OpenFile | None:
    inner = folder.child(name)
    if inner is None:
        return None
    with inner:
        return inner.file(file)


def _look_in(folder: Folder, name: bytes, file: bytes) -> os.stat_result | None:
    inner = folder.child(name)
    if inner is None:
        return None
    with inner:
        found = inner.look(file)
        return found if is_file(found) else None


def _is_moving(folder: Folder, name: bytes) -> bool:
    return _look_in(folder, MOVING, name) is not None


def _remove_empty(folder: Folder, name: bytes) -> bool:
    if folder.remove(name):
        return True
    inner = folder.child(name)
    if inner is None:
        return False
    with inner:  # a mover that was killed may have left an empty directory
        return inner.remove(MOVING) and folder.remove(name)


class Walk:
    """A listing: keys in order, directory by directory, without loading the whole tree.

    The names of a directory are read at once and sorted by the keys that they stand for; those below are read when
    their turn comes. Object ``a`` comes before ``a-b``, and what lies under ``a/`` comes after it, because ``-`` sorts
    before ``/``: so a directory has two places in the order, one for the object that has its name and one for the rest.

    Files whose names no key maps to, links and special files are left out.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._recent: tuple[Names, Folder] | None = None
        """The directory last used. One is open at a time, however deep the tree is."""

    def items(self, prefix: str, *, after: str | None, delimiter: bool) -> Iterator[Entry | str]:
        """Objects under ``prefix``, and with ``delimiter`` directories in place of what lies deeper."""
        after = after or ""  # sorts before every key
        ahead = [self._sorted(prefix, self._tree.names(prefix[:-1]) if prefix else ())]
        while ahead:
            item, names = next(ahead[-1], ("", ()))
            if not item:
                ahead.pop()
            elif not item.endswith("/"):
                if item > after and (entry := self._entry(item, names)) is not None:
                    yield entry
            elif delimiter:
                if item > after and next(Walk(self._tree).items(item, after=None, delimiter=False), None) is not None:
                    yield item
            elif item > after or after.startswith(item):
                ahead.append(self._sorted(item, names))

    def _sorted(self, prefix: str, names: Names) -> Iterator[tuple[str, Names]]:
        """What a directory may hold: objects, and the directories among them once more with a slash."""
        items: list[tuple[str, Names]] = []
        room = MAX_KEY_BYTES - len(prefix.encode())
        for component, path, is_directory in self._components(names):
            if len(component.encode()) <= room:
                items.append((prefix + component, path))
                if is_directory:
                    items.append((f"{prefix}{component}/", path))
        return iter(sorted(items))

    def _components(self, names: Names, long: Names = ()) -> Iterator[tuple[str, Names, bool]]:
        """The components in a directory, and those that go on in directories of their own; True for a directory."""
        for name, is_directory in self._scan(names + long).items():
            parts = (*long, name)
            if is_directory and name.endswith(CONTINUED):
                yield from self._components(names, parts)
            elif (component := names_component(parts, fold=self._tree.fold)) is not None:
                yield component, (*names, *parts), is_directory

    def _scan(self, names: Names) -> dict[bytes, bool]:
        """The names in a directory, those of objects on the move included; True for a directory."""
        folder = self._folder(names)
        if folder is None:
            return {}
        moving: dict[bytes, bool] = {}
        with scanning(folder):
            found = dict(folder.entries())
            if found.pop(MOVING, False) and (inner := folder.child(MOVING)) is not None:
                with inner:
                    moving = dict.fromkeys(dict(inner.entries()), False)
        return moving | found

    def _entry(self, key: str, names: Names) -> Entry | None:
        """None if the object is gone."""
        folder = self._folder(names[:-1])
        if folder is None:
            return None
        name = names[-1]
        found = folder.look(name)
        if not is_file(found):
            found = _look_in(folder, MOVING, name) or _look_in(folder, name, SELF)
        return Entry(key, found.st_size, found.st_mtime_ns) if found is not None else None

    def _folder(self, names: Names) -> Folder | None:
        if self._recent is None or self._recent[0] != names:
            folder = self._tree.folder(names)
            if folder is None:
                return None
            self._recent = names, folder
        return self._recent[1]
