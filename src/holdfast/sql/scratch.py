"""Scratch: a folder of a session's own for local files, and an end to those that dead processes left.

A folder is locked by its session for as long as it lives; the kernel takes the lock from a process that dies. So a
folder that can be locked belongs to nobody, and the next session removes it (``sweep``), beside its first question. A
lock is taken before a folder has its final name: nobody can meet one that is not locked yet.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "holdfast-sql-"
_BEING_MADE = ".holdfast-sql-"


class Scratch:
    """Blocking. ``parent`` is the system's temporary folder unless said otherwise, the name one that nobody had."""

    def __init__(self, parent: Path | None = None, name: str | None = None) -> None:
        """``OSError`` if there is something by that name."""
        where = parent if parent is not None else Path(tempfile.gettempdir())
        made = Path(tempfile.mkdtemp(prefix=_BEING_MADE, dir=where))
        self._descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            self.path = made.rename(where / (name or f"{PREFIX}{made.name.removeprefix(_BEING_MADE)}"))
        except OSError:
            self.path = made
            self.close()
            raise

    def sweep(self) -> list[Path]:
        """Remove the folders of dead processes beside this one; those removed."""
        return sweep(self.path.parent)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = -1


def sweep(parent: Path) -> list[Path]:
    """Remove the folders of dead processes; those removed. Folders of other users are left alone."""
    gone: list[Path] = []
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, or swept by another session just now
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
            finally:
                os.close(descriptor)
    return gone
