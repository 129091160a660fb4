"""Files that appear whole, written beside their place and then renamed into it.

The file beside it is created for this writer alone: never through a link, and never one that was there before, which
another user of a shared directory may have put there to have it overwritten, or to read what is written.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o666
"""Less the process's umask."""


def create(path: Path, mode: int = PRIVATE) -> int:
    """A descriptor of a new file. What a killed writer has left under this name is removed first; a link is removed and
    not followed. ``FileExistsError`` if another process makes one in the same moment.
    """
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new, empty file that takes the place of ``path`` when the block ends, unless it raises."""
    draft = path.with_name(f".{path.name}.part")
    os.close(create(draft, PUBLIC))
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
