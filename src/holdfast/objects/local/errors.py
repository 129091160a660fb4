"""What the operating system says, as errors that say what to do.

A write that fails before its rename has had no effect. A rename that met an I/O error, and a rename that could not be
made durable, may have had one: the outcome is ``Ambiguous``. It must not be settled by reading, because what is read is
not what a power cut would leave.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.base.errors import Ambiguous, Denied, HoldfastError, Invalid, Unavailable

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {
    errno.ENOTDIR: "give the store a folder of its own",
    errno.ENAMETOOLONG: "use a shorter key, or a folder with a shorter path",
    errno.EXDEV: "keep the store on one filesystem, without mounts or links inside it",
}


@dataclass
class Change:
    """How far a change has come."""

    begun: bool = False
    made: bool = False


@contextmanager
def explained(doing: str, root: bytes) -> Iterator[Change]:
    """Errors of the operating system leave this block as ours."""
    change = Change()
    try:
        yield change
    except OSError as error:
        raise _explain(error, doing, os.fsdecode(root), change) from error


def _explain(error: OSError, doing: str, root: str, change: Change) -> HoldfastError:
    place = os.fsdecode(error.filename) if error.filename is not None else root
    what = f"{doing}: {place}: {error.strerror or error}"
    if change.made or (change.begun and error.errno == errno.EIO):
        return Ambiguous(
            f"{what}: the write may be there now and gone after a power cut",
            remedy=f"check the disk of {root}, then read the object before you act again",
        )
    if error.errno in FULL:
        return Unavailable(what, remedy=f"the disk is full or a limit is reached: make room for {root} and try again")
    if error.errno in _FORBIDDEN:
        return Denied(what, remedy=f"make {root} writable for user {os.geteuid()}, or choose another store")
    if error.errno in _MISPLACED:
        return Invalid(what, remedy=_MISPLACED[error.errno])
    return Unavailable(what)
