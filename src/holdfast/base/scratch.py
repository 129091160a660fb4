"""A folder of a process's own for files that nobody needs after it, and an end to those that dead processes left.

A folder is locked for as long as its owner lives; the kernel takes the lock from whoever dies. So a folder that can be
locked belongs to nobody, and whoever comes next removes it (``sweep``). A lock is taken before a folder has its final
name: nobody can meet one that is not locked yet. A child that inherits ``descriptor`` is an owner too.

Errors: ``OSError`` of making the folder. What cannot be removed is left to the next sweep.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class Scratch:
    """Blocking. ``parent`` is the system's temporary folder unless said otherwise; ``prefix`` says whose it is, and
    begins the ``name``, which is one that nobody had unless said otherwise."""

    def __init__(self, prefix: str, parent: Path | None = None, name: str | None = None) -> None:
        """``OSError`` if there is something by that name."""
        where = parent if parent is not None else Path(tempfile.gettempdir())
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=where))
        self.prefix = prefix
        self.descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            self.path = made.rename(where / (name or made.name.removeprefix(".")))
        except OSError:
            self.path = made
            self.close()
            raise

    def sweep(self) -> list[Path]:
        """Remove the folders of the dead beside this one; those removed."""
        return sweep(self.prefix, self.path.parent)

    def close(self) -> None:
        """Remove the folder. Idempotent."""
        if self.descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.descriptor)
            self.descriptor = -1


def sweep(prefix: str, parent: Path) -> list[Path]:
    """Remove the folders of dead owners; those removed. Folders of other users are left alone."""
    gone: list[Path] = []
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # somebody else's, or swept by another just now
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
