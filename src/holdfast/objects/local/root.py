"""The root of a local store: what must be known and made before the first object is read or written.

Reading makes nothing: a store can be read where nothing can be written, and a root that does not exist is an empty
store. The first write makes the root and the store's own directory in it:

    .%holdfast/layout.json    how keys become names; decided once, when the store is made
    .%holdfast/locks/         see ``locks``
    .%holdfast/staging/       files that are being written; those of dead writers are removed

Errors: ``Invalid`` if the root is no directory; ``Incompatible`` for the layout of a newer client; ``Refused`` on a
network filesystem, whose locks and renames do not keep their promises, where a link stands in the place of the store's
own files, and where the filesystem takes two names for one that the layout keeps apart.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from holdfast.base import codec
from holdfast.base.clock import Clock
from holdfast.base.errors import Invalid, Refused
from holdfast.objects.local.files import FULL, Folder, Staging, is_folder
from holdfast.objects.local.locks import Locks
from holdfast.objects.local.names import CONTROL
from holdfast.objects.local.tree import Folders, Tree

T = TypeVar("T")

LAYOUT_FORMAT = "holdfast.local"
LAYOUT_VERSION = 1

MOUNTS = Path("/proc/self/mountinfo")
NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "smb3", "smbfs"}
    | {"fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.rclone"}
    | {"fuse.s3fs", "fuse.sshfs"}
)
KERNEL_FILESYSTEMS = frozenset(
    {"bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl", "mqueue", "proc", "pstore"}
    | {"securityfs", "selinuxfs", "sysfs", "tracefs"}
)
"""Filesystems whose files are the kernel's own."""

_LAYOUT, _LOCKS, _STAGING = b"layout.json", b"locks", b"staging"
_PROBE = "-aé"
# Other spellings of the probe's name, for a filesystem that folds case or normalises letters.
_SAME_IF_FOLDED = ("-Aé", "-aÉ", "-ae\u0301")


class _Prepared(NamedTuple):
    """What writers need, opened once. Operations that use it keep it open, so no other directory gets its identity."""

    root: Folder
    locks: Locks
    staging: Staging
    fold: bool


class Root:
    def __init__(self, folder: Path, clock: Clock, *, unsafe_network_filesystem: bool) -> None:
        self.path = os.fsencode(folder.absolute())
        self._staging = b"/".join((self.path, CONTROL, _STAGING))
        self._clock = clock
        self._any_filesystem = unsafe_network_filesystem
        self._checked = False
        self._fold: bool | None = None
        self._prepared: _Prepared | None = None
        self._folders = Folders()

    @property
    def known(self) -> bool:
        """Whether the place was checked and the layout read. To find out may wait for the disk."""
        return self._checked and self._fold is not None

    def reading(self) -> Tree | None:
        """The tree as it is; None if there is no root. Files that were copied in before the first write are found under
        plain names.
        """
        self._check_place()
        root = self._opened()
        if root is None:
            return None
        if self._fold is None:
            self._fold = _fold_in(root, self.path)
        return Tree(root, self._folders, fold=self._fold is True)

    def writing(self) -> Tree:
        """The tree, with all that writers need. Each operation looks at the path of the staging directory: the root, or
        the store's own directory in it, may have been replaced or removed.
        """
        found, prepared = _stat(self._staging), self._prepared
        if found is None or prepared is None or prepared.staging.folder.identity != (found.st_dev, found.st_ino):
            prepared = self._prepared = self._prepare()
            self._fold = prepared.fold
        return Tree(prepared.root, self._folders, fold=prepared.fold, locks=prepared.locks, staging=prepared.staging)

    def deleting(self) -> Tree:
        """The tree, for deletes. On a full disk a root that was not prepared yet cannot be prepared: use the
        existing directories.
        """
        try:
            return self.writing()
        except OSError as error:
            root = self._opened() if error.errno in FULL else None
            fold = _fold_in(root, self.path) if root is not None else None
            control = root.child(CONTROL) if root is not None else None
            locks = control.child(_LOCKS) if control is not None else None
            if root is None or fold is None or locks is None:
                raise
            return Tree(root, self._folders, fold=fold, locks=Locks(locks))

    def close(self) -> None:
        self._prepared = None
        self._folders.clear()

    def _opened(self) -> Folder | None:
        try:
            return Folder.at(self.path)
        except FileNotFoundError:
            return None

    def _check_place(self) -> None:
        if self._checked:
            return
        found = _stat(self.path)
        if found is not None and not is_folder(found):
            raise Invalid(f"{os.fsdecode(self.path)} is a file", remedy="give the store a directory of its own")
        kind = _filesystem(self.path, found)
        if kind in KERNEL_FILESYSTEMS:
            raise Invalid(
                f"{os.fsdecode(self.path)} is on {kind}, a filesystem of the kernel that cannot hold files",
                remedy="give the store a directory on a disk, such as file:./data",
            )
        if kind in NETWORK_FILESYSTEMS and not self._any_filesystem:
            raise Refused(
                f"{os.fsdecode(self.path)} is on a network filesystem ({kind}), whose locks and renames are not safe",
                remedy="use a local disk or a bucket; or risk the data with ?unsafe_network_filesystem=true",
            )
        self._checked = found is not None

    def _prepare(self) -> _Prepared:
        self._check_place()
        _make_folders(self.path)
        root = Folder.at(self.path)
        control = _own(root, CONTROL, self.path)
        locks, staging = (
            Locks(_own(control, _LOCKS, self.path)),
            Staging(_own(control, _STAGING, self.path), self._clock),
        )
        fold = self._settle_layout(root, control, locks, staging)
        staging.sweep()
        return _Prepared(root, locks, staging, fold)

    def _settle_layout(self, root: Folder, control: Folder, locks: Locks, staging: Staging) -> bool:
        """Whether names are folded: as the layout says, which is written if there is none yet."""
        with locks.opening():
            folded_here, fold = _names_are_folded(staging), _fold_in(root, self.path)
            if fold is None:
                document = {"format": LAYOUT_FORMAT, "version": LAYOUT_VERSION, "fold": folded_here}
                with staging.stage() as staged:
                    staged.write(codec.encode(document))
                    staged.sync()
                    staged.place(control, _LAYOUT)
                control.sync()
                return folded_here
        if folded_here and not fold:
            raise Refused(
                f"{os.fsdecode(self.path)}: this store was created on a case-sensitive filesystem; this one is not",
                remedy="copy the store to a filesystem like the one that it was made on",
            )
        return fold


def _own(folder: Folder, name: bytes, store: bytes) -> Folder:
    """A directory of the store's own, made durably if need be. A link in its place is refused."""
    folder.make(name)
    folder.sync()
    child = folder.child(name)
    if child is None:
        raise _misplaced(store, name)
    return child


def _misplaced(store: bytes, name: bytes) -> Refused:
    return Refused(
        f"{os.fsdecode(store)}: {os.fsdecode(name)} in the store's own directory is a link, or not a file or directory"
        " as the store creates it",
        remedy="find out what put it there, and move it out of the store",
    )


def _fold_in(root: Folder, store: bytes) -> bool | None:
    """The layout's ``fold``; None if there is no layout yet. Links in the place of its files are refused."""
    control = _found(root.child, root, CONTROL, store)
    if control is None:
        return None
    with control:
        file = _found(control.file, control, _LAYOUT, store)
        if file is None:
            return None
        with file:
            body = file.read(0, file.size)
    name = os.fsdecode(CONTROL + b"/" + _LAYOUT)
    document = codec.decode(body, key=name)
    codec.expect(document, format_name=LAYOUT_FORMAT, newest=LAYOUT_VERSION, key=name)
    return document.get("fold") is True


def _found(opened: Callable[[bytes], T | None], folder: Folder, name: bytes, store: bytes) -> T | None:
    """What is opened under this name; None if there is nothing. Anything of another kind is refused."""
    found = opened(name)
    if found is None and folder.look(name) is not None:
        found = opened(name)  # a writer may have made it between the two calls
        if found is None:
            raise _misplaced(store, name)
    return found


def _names_are_folded(staging: Staging) -> bool:
    with staging.stage(_PROBE.encode()) as probe:
        stem = probe.name.removesuffix(_PROBE.encode())
        return any(staging.folder.look(stem + other.encode()) is not None for other in _SAME_IF_FOLDED)


def filesystem_type(device: int, mounts: str) -> str | None:
    """The type of the filesystem on this device, from the kernel's table of mounts."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, filesystem = line.partition(" - ")
        if mount.split()[2] == number:
            return filesystem.split()[0]
    return None


def _stat(path: bytes) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:  # the operation that opens it reports the error
        return None


def _filesystem(path: bytes, found: os.stat_result | None) -> str | None:
    """The type of the filesystem of a directory, or of the nearest one above it that exists."""
    while found is None:
        path = os.path.dirname(path)
        found = _stat(path)
    try:
        return filesystem_type(found.st_dev, MOUNTS.read_text())
    except FileNotFoundError:  # a system without such a table
        return None


def _make_folders(path: bytes) -> None:
    """Make the root and the directories above it, durably. Links are followed here."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make_folders(above)
    with suppress(FileExistsError):
        os.mkdir(path)
    # Also if another process made it just now: it may not have fsynced the one above yet.
    with suppress(PermissionError), Folder.at(above) as folder:
        folder.sync()
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
