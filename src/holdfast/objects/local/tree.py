"""The tree of the local store: the files of objects, names shared by objects and directories, and listings.

Object ``a`` is the file ``a``. When ``a/b`` is written, the file must make room for a directory, and moves into it by
two renames; it never moves back. So in its lifetime an object has at most three paths, always in this order:

    a             a plain file
    %moving/a     while it is moved, in the same directory
    a/%self       inside the directory that has taken its name

Rules:

* Readers take no lock. They try the three paths in that order: a reader that misses an object under one finds it under
  a later one, unless it did not exist for a moment. If the process that moves it is killed, it is readable where it is.
* A writer holds the lock of its object's path, and first completes a move that a killed process has left (``locate``).
* A directory is made when an object needs it and removed when it is empty. Directories need
  no lock, because ``mkdir``, ``rmdir`` and ``rename`` each fail where another process was first, and are tried again.
* A scan locks its directory, so that no name moves past it.
* An object is durable when its name is, and the names of all directories on its path. Every writer ensures this for all
  of them: it cannot know whether the process that made a directory has fsynced its parent. ``DurableDirectories`` has
  those that need no further fsync.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.base.errors import Invalid
from holdfast.objects.local.files import Directory, Identity, OpenFile, Staging, is_directory, is_file
from holdfast.objects.local.locks import Locks, renaming, scanning
from holdfast.objects.local.names import CONTINUED, MOVING, SELF, Names, key_names, names_component
from holdfast.objects.store import MAX_KEY_BYTES, Entry


class DurableDirectories:
    """The directories that writers used last, kept open, whose names are on disk; least recently used first.

    A stat of the name shows whether it still belongs to the open directory. While that is open, its inode number is not
    reused, so a directory that was made later under the same name, and may not be durable, is recognised. (The change
    time cannot be used, because it changes with every entry, and not every filesystem has generations.)

    Each operation is one call of the C dictionary, so threads need no lock, which a fork could leave locked. A
    directory that is dropped here is closed when its last user has ended.
    """

    MOST = 128

    def __init__(self) -> None:
        self._directories: OrderedDict[tuple[Identity, bytes], Directory] = OrderedDict()

    def open(self, parent: Directory, name: bytes) -> Directory | None:
        """The directory with this name, durable in its parent; None if there is none. It is shared: do not close it."""
        status = parent.stat(name)
        if status is None or not is_directory(status):
            return None
        key = parent.identity, name
        opened = self._directories.get(key)
        if opened is not None and opened.identity == (status.st_dev, status.st_ino):
            with suppress(KeyError):  # another thread has dropped it
                self._directories.move_to_end(key)
            return opened
        child = parent.open_directory(name)
        if child is not None:
            parent.sync()
            self._directories[key] = child
            if len(self._directories) > self.MOST:
                self._directories.popitem(last=False)
        return child


class Tree:
    """The tree below one open root, for readers. They take no locks."""

    def __init__(self, root: Directory) -> None:
        self.root = root

    def directory(self, names: Names) -> Directory | None:
        """The directory at ``names``; None if there is none."""
        directory: Directory | None = self.root.open_directory(names[0]) if names else self.root.reopen()
        for name in names[1:]:
            if directory is None:
                break
            with directory:
                directory = directory.open_directory(name)
        return directory

    def open(self, names: Names) -> OpenFile | None:
        """The object on this path, for reading."""
        directory = self.directory(names[:-1])
        if directory is None:
            return None
        with directory:
            name = names[-1]
            return directory.open_file(name) or _open_in(directory, MOVING, name) or _open_in(directory, name, SELF)


class Location(NamedTuple):
    """Where an object is to be replaced or removed. It stays valid while the lock of the object's path is held."""

    directory: Directory
    name: bytes
    exists: bool


class WritableTree(Tree):
    """The tree, for writers, with the directories that they need. They stay open while an operation uses them, so that
    no other directory gets their identity.
    """

    def __init__(self, root: Directory, locks: Locks, staging: Staging) -> None:
        super().__init__(root)
        self._durable = DurableDirectories()
        self.locks = locks
        self.staging = staging

    def forget_directories(self) -> None:
        """Close the durable directories that no operation uses."""
        self._durable = DurableDirectories()

    def durable_directory(self, names: Names) -> Directory | None:
        """The directory at ``names``, durable up to the root; None if there is none."""
        directory: Directory | None = self.root
        for name in names:
            if directory is None:
                break
            directory = self._durable.open(directory, name)
        return directory

    def make_durable_directory(self, names: Names) -> Directory | None:
        """Like ``durable_directory``, but it and those above it are made if need be, and objects that have their names
        move into them. None if one was removed by another process meanwhile.
        """
        directory = self.root
        for depth, name in enumerate(names, 1):
            child = self._durable.open(directory, name)
            if child is None:
                with suppress(FileNotFoundError):
                    child = self._made(directory, names[:depth])
            if child is None:
                return None
            directory = child
        return directory

    def nearest(self, names: Names) -> Directory:
        """The directory at ``names``, or the nearest one above it that exists; durable up to the root."""
        while (directory := self.durable_directory(names)) is None:
            names = names[:-1]
        return directory

    def locate(self, directory: Directory, names: Names) -> Location:
        """Where the object on this path is, or would be written; ``directory`` is the parent of its plain name. The
        caller holds the lock of the path.
        """
        name = names[-1]
        status = directory.stat(name)
        if is_file(status):
            return Location(directory, name, exists=True)
        if _is_moving(directory, name):
            with renaming(directory):
                self._finish_move(directory, name)
        elif status is None:
            return Location(directory, name, exists=False)
        inner = self._durable.open(directory, name)
        if inner is None:
            return Location(directory, name, exists=False)
        return Location(inner, SELF, exists=is_file(inner.stat(SELF)))

    def remove(self, names: Names) -> Names:
        """Remove an object if it exists. Returns the directory that is to be fsynced, or pruned."""
        directory = self.directory(names[:-1])
        if directory is None:
            return names[:-1]
        with directory, self.locks.writing(names):
            location = self.locate(directory, names)
            if location.exists:
                with suppress(FileNotFoundError):  # removed by hand
                    location.directory.unlink(location.name)
            return names[:-1] if location.directory is directory else names

    def prune(self, names: Names) -> Names:
        """Remove a directory and those above it, as far as they are empty. Returns the first one that stays."""
        while names:
            parent = self.directory(names[:-1])
            if parent is not None:
                with parent:
                    if not _remove_empty(parent, names[-1]):
                        break
            names = names[:-1]
        return names

    def _made(self, directory: Directory, names: Names) -> Directory | None:
        """The directory of this path, made in its parent. ``FileNotFoundError`` if the parent was removed."""
        if not directory.make_directory(names[-1]):
            self._make_room(directory, names)
        return self._durable.open(directory, names[-1])

    def _make_room(self, directory: Directory, names: Names) -> None:
        """Move the object on this path into a directory with its name."""
        name = names[-1]
        with self.locks.writing(names), renaming(directory):
            while is_file(directory.stat(name)):
                moving = _ensured(directory, MOVING)
                if moving is not None:
                    with moving, suppress(FileNotFoundError):  # it was empty, and pruned
                        directory.rename(name, moving, name)
            if _is_moving(directory, name):
                self._finish_move(directory, name)
            elif (made := _ensured(directory, name)) is not None:
                made.close()

    def _finish_move(self, directory: Directory, name: bytes) -> None:
        while _is_moving(directory, name):
            moving, inner = directory.open_directory(MOVING), _ensured(directory, name)
            if moving is not None and inner is not None:
                with moving, inner, suppress(FileNotFoundError):  # one was empty, and pruned
                    moving.rename(name, inner, SELF)
                    inner.sync()
        directory.remove_directory(MOVING)
        directory.sync()


def _ensured(directory: Directory, name: bytes) -> Directory | None:
    """The directory with this name, made if need be; None if it was removed meanwhile."""
    directory.make_directory(name)
    child = directory.open_directory(name)
    if child is None and (status := directory.stat(name)) is not None and not is_directory(status):
        raise Invalid(
            f"{os.fsdecode(name)} is neither a file nor a directory, and objects are to be stored under it",
            remedy="move it out of the store",
        )
    return child


def _open_in(directory: Directory, name: bytes, file: bytes) -> OpenFile | None:
    inner = directory.open_directory(name)
    if inner is None:
        return None
    with inner:
        return inner.open_file(file)


def _stat_in(directory: Directory, name: bytes, file: bytes) -> os.stat_result | None:
    """None if there is no plain file with this name in the directory below."""
    inner = directory.open_directory(name)
    if inner is None:
        return None
    with inner:
        status = inner.stat(file)
        return status if is_file(status) else None


def _is_moving(directory: Directory, name: bytes) -> bool:
    return _stat_in(directory, MOVING, name) is not None


def _remove_empty(directory: Directory, name: bytes) -> bool:
    if directory.remove_directory(name):
        return True
    inner = directory.open_directory(name)
    if inner is None:
        return False
    with inner:  # a process that was killed during a move may have left an empty directory
        return inner.remove_directory(MOVING) and directory.remove_directory(name)


class Walk:
    """A listing: keys in order, directory by directory, without loading the whole tree.

    The names of a directory are read at once and sorted by their keys; directories below are read when the listing
    reaches them. Object ``a`` sorts before ``a-b``, and objects under ``a/`` after it, because ``-`` sorts before
    ``/``: so a directory has two places in the order, one for the object that has its name and one for the others.

    Files whose names no key maps to, links and special files are left out.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._recent: tuple[Names, Directory] | None = None
        """The directory last used. One is open at a time, however deep the tree is."""

    def items(self, prefix: str, *, after: str | None, delimiter: bool) -> Iterator[Entry | str]:
        """Objects under ``prefix``, and with ``delimiter`` directories in place of the objects below them."""
        after = after or ""  # sorts before every key
        stack = [self._sorted(prefix, key_names(prefix[:-1]) if prefix else ())]
        while stack:
            item, names = next(stack[-1], ("", ()))
            if not item:
                stack.pop()
            elif not item.endswith("/"):
                if item > after and (entry := self._entry(item, names)) is not None:
                    yield entry
            elif delimiter:
                if item > after and next(Walk(self._tree).items(item, after=None, delimiter=False), None) is not None:
                    yield item
            elif item > after or after.startswith(item):
                stack.append(self._sorted(item, names))

    def _sorted(self, prefix: str, names: Names) -> Iterator[tuple[str, Names]]:
        """The items in a directory: every name as an object, and the directories also with a slash."""
        items: list[tuple[str, Names]] = []
        room = MAX_KEY_BYTES - len(prefix.encode())
        for component, path, is_folder in self._components(names):
            if len(component.encode()) <= room:
                items.append((prefix + component, path))
                if is_folder:
                    items.append((f"{prefix}{component}/", path))
        return iter(sorted(items))

    def _components(self, names: Names, long: Names = ()) -> Iterator[tuple[str, Names, bool]]:
        """The components in a directory, and those that continue in directories of their own; True for a directory."""
        for name, is_folder in self._scan(names + long).items():
            parts = (*long, name)
            if is_folder and name.endswith(CONTINUED):
                yield from self._components(names, parts)
            elif (component := names_component(parts)) is not None:
                yield component, (*names, *parts), is_folder

    def _scan(self, names: Names) -> dict[bytes, bool]:
        """The names in a directory, those of objects that are being moved included; True for a directory."""
        directory = self._directory(names)
        if directory is None:
            return {}
        moving: dict[bytes, bool] = {}
        with scanning(directory):
            found = dict(directory.entries())
            if found.pop(MOVING, False) and (inner := directory.open_directory(MOVING)) is not None:
                with inner:
                    moving = dict.fromkeys(dict(inner.entries()), False)
        return moving | found

    def _entry(self, key: str, names: Names) -> Entry | None:
        """None if the object does not exist any more."""
        directory = self._directory(names[:-1])
        if directory is None:
            return None
        name = names[-1]
        status = directory.stat(name)
        if not is_file(status):
            status = _stat_in(directory, MOVING, name) or _stat_in(directory, name, SELF)
        return Entry(key, status.st_size, status.st_mtime_ns) if status is not None else None

    def _directory(self, names: Names) -> Directory | None:
        if self._recent is None or self._recent[0] != names:
            directory = self._tree.directory(names)
            if directory is None:
                return None
            self._recent = names, directory
        return self._recent[1]
