"""What the operating system says, as errors that say what to do.

A write that fails before its rename has had no effect. A rename that met an I/O error, and a rename that could not be
made durable, may have had one: the outcome is ``Ambiguous``. It must not be settled by reading, because what is read is
not what a power cut would leave.
"""

import errno
import os
from types import TracebackType
from typing import Self

from holdfast.base.errors import Ambiguous, Denied, HoldfastError, Invalid, Unavailable

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {
    errno.ENOTDIR: "give the store a folder of its own",
    errno.ENAMETOOLONG: "use a shorter key, or a folder with a shorter path",
    errno.EXDEV: "keep the store on one filesystem, without mounts or links inside it",
}


class Explained:
    """Errors of the operating system leave this block as ours. It is told how far a change has come."""

    __slots__ = ("_doing", "_root", "begun", "made")

    def __init__(self, doing: str, root: bytes) -> None:
        self._doing = doing
        self._root = root
        self.begun = False
        self.made = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise self.explain(error) from error

    def explain(self, error: OSError) -> HoldfastError:
        return _explain(error, self._doing, os.fsdecode(self._root), self)


def _explain(error: OSError, doing: str, root: str, change: Explained) -> HoldfastError:
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
