"""Scratch directories that are removed with their process, even if it is killed.

The owner holds a lock (flock) on its directory, which the kernel releases when the process dies. So a directory that
can be locked has no owner any more, and ``sweep`` removes it. The lock is taken before the directory gets its final
name, so that no sweep finds it unlocked. A child process that inherits ``descriptor`` holds the lock as well.

Errors: ``OSError`` if the directory cannot be made. Files that cannot be removed are left to the next sweep.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class Scratch:
    """Blocking. Its name begins with ``prefix``; ``parent`` is the system's temporary directory by default."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        where = parent if parent is not None else Path(tempfile.gettempdir())
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=where))
        self.prefix = prefix
        self.descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            self.path = made.rename(where / made.name.removeprefix("."))
        except OSError:
            self.path = made
            self.close()
            raise

    def sweep(self) -> list[Path]:
        """Remove directories of dead processes with the same prefix and parent, and return them."""
        return sweep(self.prefix, self.path.parent)

    def close(self) -> None:
        """Remove the directory. Idempotent."""
        if self.descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.descriptor)
            self.descriptor = -1


def sweep(prefix: str, parent: Path) -> list[Path]:
    """Remove directories whose owner is dead, and return them. Those of other users are kept."""
    removed: list[Path] = []
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # it has an owner, or another process is removing it
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
            finally:
                os.close(descriptor)
    return removed
