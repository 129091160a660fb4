"""The root of a local store: what is checked and made before the first object is read or written.

Reading makes nothing: a store can be read where nothing can be written, and a root that does not exist is an empty
store. The first write makes the root and the store's own directory in it:

    .%holdfast/layout.json    the version of the layout
    .%holdfast/locks/         see ``locks``
    .%holdfast/staging/       files that are being written; those of dead processes are removed

Errors: ``Invalid`` if the root is not a directory; ``Incompatible`` for the layout of a newer client; ``Refused`` on a
network filesystem, whose locks and renames are unreliable, on one that does not distinguish all names, and where a link
is in the place of the store's own files.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path

from holdfast.base import codec
from holdfast.base.errors import Invalid, Refused
from holdfast.objects.local.files import Directory, Staging, is_directory
from holdfast.objects.local.locks import OPENING, Locks
from holdfast.objects.local.names import CONTROL
from holdfast.objects.local.tree import Tree, WritableTree

LAYOUT_FORMAT = "holdfast.local"
LAYOUT_VERSION = 1

MOUNTS = Path("/proc/self/mountinfo")
NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "smb3", "smbfs"}
    | {"fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.rclone"}
    | {"fuse.s3fs", "fuse.sshfs"}
)

_LAYOUT, _LOCKS, _STAGING = b"layout.json", b"locks", b"staging"
_SAME_IF_FOLDED = (OPENING.upper(), OPENING.replace("é", "É"), OPENING.replace("é", "e\u0301"))
"""Other spellings of a name: a filesystem that finds a file under one of them would mix up objects."""


class Root:
    def __init__(self, folder: Path, *, unsafe_network_filesystem: bool) -> None:
        self.path = os.fsencode(folder.absolute())
        self._staging = b"/".join((self.path, CONTROL, _STAGING))
        self._any_filesystem = unsafe_network_filesystem
        self._place_checked = False
        self._layout_checked = False
        self._writable: WritableTree | None = None

    @property
    def checked(self) -> bool:
        """Whether place and layout were checked, which may wait for the disk."""
        return self._place_checked and self._layout_checked

    def reading(self) -> Tree | None:
        """The tree as it is; None if there is no root. Files that were copied in before the first write are objects."""
        self._check_place()
        try:
            root = Directory.at(self.path)
        except FileNotFoundError:
            return None
        if not self._layout_checked:
            self._layout_checked = self._has_layout(root)
        return Tree(root)

    def writing(self) -> WritableTree:
        """The tree, with all that writers need. Every operation looks at the path of the staging directory, because the
        root, or the store's own directory in it, may have been replaced or removed.
        """
        status, tree = _stat(self._staging), self._writable
        if status is None or tree is None or tree.staging.directory.identity != (status.st_dev, status.st_ino):
            tree = self._writable = self._prepare()
            self._layout_checked = True
        return tree

    def close(self) -> None:
        if self._writable is not None:
            self._writable.forget_directories()
            self._writable = None

    def _check_place(self) -> None:
        if self._place_checked:
            return
        status = _stat(self.path)
        if status is not None and not is_directory(status):
            raise Invalid(f"{os.fsdecode(self.path)} is a file", remedy="give the store a directory of its own")
        kind = _filesystem(self.path, status)
        if kind in NETWORK_FILESYSTEMS and not self._any_filesystem:
            raise Refused(
                f"{os.fsdecode(self.path)} is on a network filesystem ({kind}), whose locks and renames are unreliable",
                remedy="use a local disk or a bucket; or risk the data with ?unsafe_network_filesystem=true",
            )
        self._place_checked = status is not None

    def _prepare(self) -> WritableTree:
        self._check_place()
        _make_directories(self.path)
        root = Directory.at(self.path)
        control = self._own_directory(root, CONTROL)
        locks = Locks(self._own_directory(control, _LOCKS))
        staging = Staging(self._own_directory(control, _STAGING))
        with locks.opening():
            if any(locks.directory.stat(name.encode()) is not None for name in _SAME_IF_FOLDED):
                raise Refused(
                    f"{os.fsdecode(self.path)} is on a filesystem that takes two names for one, such as A and a",
                    remedy="use a directory on a filesystem that distinguishes all names, such as ext4, xfs or btrfs",
                )
            if not self._has_layout(root):
                with staging.stage() as staged:
                    staged.write(codec.encode({"format": LAYOUT_FORMAT, "version": LAYOUT_VERSION}))
                    staged.sync()
                    staged.place(control, _LAYOUT)
                control.sync()
        staging.sweep()
        return WritableTree(root, locks, staging)

    def _own_directory(self, parent: Directory, name: bytes) -> Directory:
        """A directory of the store's own, made durably if need be."""
        parent.make_directory(name)
        parent.sync()
        child = parent.open_directory(name)
        if child is None:
            raise self._misplaced(name)
        return child

    def _has_layout(self, root: Directory) -> bool:
        """Whether the store has a layout, which must be one that this client can read."""
        if root.stat(CONTROL) is None:
            return False
        control = root.open_directory(CONTROL)
        if control is None:
            raise self._misplaced(CONTROL)
        with control:
            if control.stat(_LAYOUT) is None:
                return False
            file = control.open_file(_LAYOUT)
        if file is None:
            raise self._misplaced(_LAYOUT)
        with file:
            body = file.read(0, file.size)
        name = os.fsdecode(CONTROL + b"/" + _LAYOUT)
        document = codec.decode(body, key=name)
        codec.expect(document, format_name=LAYOUT_FORMAT, newest=LAYOUT_VERSION, key=name)
        if document.get("fold"):
            raise Refused(
                f"{os.fsdecode(self.path)}: this store was made on a filesystem that takes two names for one",
                remedy="copy its objects with the release that wrote them to a store on another filesystem",
            )
        return True

    def _misplaced(self, name: bytes) -> Refused:
        return Refused(
            f"{os.fsdecode(self.path)}: {os.fsdecode(name)} in the store's own directory is a link, or not a file or"
            " directory as the store creates it",
            remedy="find out what put it there, and move it out of the store",
        )


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


def _filesystem(path: bytes, status: os.stat_result | None) -> str | None:
    """The type of the filesystem of a directory, or of the nearest one above it that exists."""
    while status is None:
        path = os.path.dirname(path)
        status = _stat(path)
    try:
        return filesystem_type(status.st_dev, MOUNTS.read_text())
    except FileNotFoundError:  # a system without such a table
        return None


def _make_directories(path: bytes) -> None:
    """Make the root and the directories above it, durably. Links are followed here."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        _make_directories(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    except FileNotFoundError as error:  # its parent exists: a filesystem of the kernel, such as /proc
        raise Invalid(
            f"{os.fsdecode(path)} cannot be created", remedy="give the store a directory on a disk, such as file:./data"
        ) from error
    # Also if another process made it just now: it may not have fsynced the parent yet.
    with suppress(PermissionError), Directory.at(parent) as directory:
        directory.sync()
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
