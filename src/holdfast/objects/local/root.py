"""The root of a local store: what must be known and made before the first object is read or written.

Reading makes nothing: a store can be read where nothing can be written, and a root that does not exist is an empty
store. The first write makes the root and the store's own folder in it:

    .%holdfast/layout.json    how keys become names; decided when the store is made, for ever
    .%holdfast/locks/         see ``locks``
    .%holdfast/staging/       files being written; what dead writers have left is removed

Errors: ``Invalid`` if the root is no folder; ``Incompatible`` for the layout of a newer client; ``Refused`` on a
network filesystem, whose locks and renames do not keep their promises, and where names run together that the layout
keeps apart.
"""

import errno
import os
from pathlib import Path

from holdfast.base import codec
from holdfast.base.clock import Clock
from holdfast.base.errors import Invalid, Refused
from holdfast.objects.local.errors import FULL
from holdfast.objects.local.files import Growing, Staged, Staging, is_folder, look, make_folder, open_file, sync_folder
from holdfast.objects.local.locks import Locks
from holdfast.objects.local.paths import CONTROL
from holdfast.objects.local.tree import Tree

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
"""Where the kernel shows itself: nobody can keep files there."""
JOURNALS = Path("/proc/fs/jbd2")
"""Of ext4, by the name of their disk."""
DISKS = Path("/sys/dev/block")
"""By their numbers."""

_PROBE = "-aé"
# Other spellings of the probe's name, for a filesystem that folds case or normalises letters.
_SAME_IF_FOLDED = ("-Aé", "-aÉ", "-ae\u0301")


class Root:
    def __init__(self, folder: Path, clock: Clock, *, unsafe_network_filesystem: bool) -> None:
        self.path = os.fsencode(folder.absolute())
        self._control = b"%s/%s" % (self.path, CONTROL)
        self._layout = self._control + b"/layout.json"
        self._locks = self._control + b"/locks"
        self._staging = self._control + b"/staging"
        self._any_filesystem = unsafe_network_filesystem
        self._trees: dict[bytes, Tree] = {}
        """One at most: to be the first in a dictionary takes no lock, which a fork could leave locked."""
        self._checked = False
        self._prepared = False
        self._files = Staging(self._staging, clock)

    @property
    def known(self) -> Tree | None:
        """The tree, once it was read or written; to learn of it may take time."""
        return self._trees.get(self.path)

    @property
    def prepared(self) -> Tree | None:
        """The tree, once it has all that writers need; to see to that takes time."""
        return self.known if self._prepared else None

    def at_hand(self) -> Tree | None:
        """The tree, if all that must be known of it is in the system's memory; None if there is no layout, or somebody
        would have to wait for the disk.
        """
        if self.known is None:
            self._check_place()
            file = open_file(self._layout)
            if file is not None:
                with file:
                    body = file.read_at_hand()
                if body is not None:
                    self._learn(fold=self._fold_in(body))
        return self.known

    def readable(self) -> Tree:
        """The tree, as it is. Before anybody has written through Holdfast, plain files are found under plain names."""
        if (known := self.known) is not None:
            return known
        self._check_place()
        fold = self._read_layout()
        return Tree(self.path, Locks(self._locks), fold=False) if fold is None else self._learn(fold=fold)

    def _learn(self, *, fold: bool) -> Tree:
        """There is one tree of a store, whoever learns of it first: it knows what its writers are about."""
        return self._trees.setdefault(self.path, Tree(self.path, Locks(self._locks), fold=fold))

    def writable(self) -> Tree:
        """The tree, with all that writers need."""
        if not self._prepared:
            self._check_place()
            _make_folders(self._locks)
            _make_folders(self._staging)
            self._settle_layout()
            self._files.sweep()
            self.readable().syncs.whole = self.path if _without_journal(self.path) else None
            self._prepared = True
        return self.readable()

    def stage(self, body: bytes) -> Staged:
        """A file to be given a place in the tree."""
        try:
            return self._files.stage(body)
        except FileNotFoundError:  # somebody has cleared the root away
            self._prepared = False
            self.writable()
            return self._files.stage(body)

    def begin(self) -> Growing:
        """The same, to be written piece by piece."""
        try:
            return self._files.begin()
        except FileNotFoundError:  # as above
            self._prepared = False
            self.writable()
            return self._files.begin()

    def erasable(self) -> Tree:
        """The tree, for deleting: on a disk that is full to the last file nothing can be tried out before."""
        try:
            return self.writable()
        except OSError as error:
            if error.errno not in FULL or self._read_layout() is None:
                raise
            return self.readable()

    def _check_place(self) -> None:
        if self._checked:
            return
        found = _stat(self.path)
        if found is not None and not is_folder(found):
            raise Invalid(f"{os.fsdecode(self.path)} is a file", remedy="give the store a folder of its own")
        kind = _filesystem(self.path, found)
        if kind in KERNEL_FILESYSTEMS:
            raise Invalid(
                f"{os.fsdecode(self.path)} is on {kind}, where the kernel shows itself and nobody can keep files",
                remedy="give the store a folder on a disk, such as file:./data",
            )
        if self._any_filesystem:
            kind = None
        if kind in NETWORK_FILESYSTEMS:
            raise Refused(
                f"{os.fsdecode(self.path)} is on a network filesystem ({kind}), whose locks and renames are not safe",
                remedy="use a local disk or a bucket; or risk the data with ?unsafe_network_filesystem=true",
            )
        self._checked = found is not None

    def _settle_layout(self) -> None:
        with Locks(self._locks).opening():
            folded_here, fold = self._names_are_folded(), self._read_layout()
            if fold is None:
                self._write_layout(fold=folded_here)
            elif folded_here and not fold:
                raise Refused(
                    f"{os.fsdecode(self.path)} was made where case and letter forms tell names apart; here they do not",
                    remedy="copy the store to a filesystem like the one that it was made on",
                )

    def _names_are_folded(self) -> bool:
        with self._files.stage(b"", suffix=_PROBE.encode()) as probe:
            stem = probe.path.removesuffix(_PROBE.encode())
            return any(look(stem + other.encode()) is not None for other in _SAME_IF_FOLDED)

    def _read_layout(self) -> bool | None:
        """The layout's ``fold``; None if there is no layout yet."""
        file = open_file(self._layout)
        if file is None:
            return None
        with file:
            return self._fold_in(file.read(0, file.size))

    def _fold_in(self, body: bytes) -> bool:
        document = codec.decode(body, key=os.fsdecode(self._layout))
        codec.expect(document, format_name=LAYOUT_FORMAT, newest=LAYOUT_VERSION, key=os.fsdecode(self._layout))
        return document.get("fold") is True

    def _write_layout(self, *, fold: bool) -> None:
        document = {"format": LAYOUT_FORMAT, "version": LAYOUT_VERSION, "fold": fold}
        with self._files.stage(codec.encode(document)) as staged:
            staged.place(self._layout)
        sync_folder(self._control)


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
    except OSError:  # whatever is to be said of it, whoever opens it says
        return None


def _filesystem(path: bytes, found: os.stat_result | None) -> str | None:
    """That of a folder, or of the nearest one above it that there is."""
    while found is None:
        path = os.path.dirname(path)
        found = _stat(path)
    try:
        return filesystem_type(found.st_dev, MOUNTS.read_text())
    except FileNotFoundError:  # a system without such a table
        return None


def _without_journal(path: bytes) -> bool:
    """Whether a folder is on an ext4 that is known to have no journal."""
    found = _stat(path)
    return found is not None and _filesystem(path, found) == "ext4" and not _has_journal(found.st_dev)


def _has_journal(device: int) -> bool:
    """Whether ext4 on this device has one; True if nobody knows."""
    try:
        disk = (DISKS / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True).name
        return any(each.name.rpartition("-")[0] == disk for each in JOURNALS.iterdir())
    except OSError:
        return True


def _make_folders(path: bytes) -> None:
    """Make a folder and those above it, durably."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make_folders(above)
    if make_folder(path):
        sync_folder(above)
    elif not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
