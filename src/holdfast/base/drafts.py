"""Files that appear whole: they are written under another name in the same directory and then renamed. And stamps,
which show that such a file was replaced.

The temporary file is always new, and never opened through a link: another user of a shared directory may have created a
file or link with its name, in order to read what is written or to have another file overwritten.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o666
"""Without the bits of the process's umask."""

Stamp = tuple[int, int, int] | None


def stamp(path: Path) -> Stamp:
    """Differs from the stamp of every other content that the file has had; None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


@contextmanager
def replacing(path: Path, mode: int = PUBLIC) -> Iterator[Path]:
    """A new, empty file that replaces ``path`` when the block ends, unless it raises.

    ``FileExistsError`` if another process creates one at the same moment.
    """
    draft = path.with_name(f".{path.name}.part")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode))
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
