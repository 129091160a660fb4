"""Files that a store has just written, known again without reading them.

To compare an object with a version takes reading and hashing it. A writer that replaces its own last write again and
again (a journal, a register) knows what stands there, if it is still that file. So the file is kept open: as long as it
is, no other file can have its number, and an object whose file has that number, and the same size and time, is the one
that was written. Anything else is read.

Only small files are kept, and few: a file that was removed meanwhile takes its room until it is closed. A fork takes
copies of the open files along, which does no harm on either side.
"""

import os
import threading
from typing import NamedTuple

from holdfast.objects.store import Version

FILES = 32
LARGEST_BYTES = 256 * 1024


class _File(NamedTuple):
    descriptor: int
    found: os.stat_result
    version: Version


class Known:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[bytes, _File] = {}
        """By path, the oldest first."""

    def keep(self, path: bytes, descriptor: int, found: os.stat_result, version: Version) -> None:
        """The open file with these bytes stands at ``path`` now; it is closed here, at some time."""
        with self._lock:
            surplus = [self._files.pop(path, None)]
            self._files[path] = _File(descriptor, found, version)
            if len(self._files) > FILES:
                surplus.append(self._files.pop(next(iter(self._files))))
        for file in surplus:
            if file is not None:
                os.close(file.descriptor)

    def version(self, path: bytes, found: os.stat_result) -> Version | None:
        """The version of what was found at ``path``, if that is the file that was kept. Each is asked for once."""
        with self._lock:
            file = self._files.pop(path, None)
        if file is None:
            return None
        # Open until after the comparison: else the number could have gone to another file before ``found``.
        same = _identity(file.found) == _identity(found)
        os.close(file.descriptor)
        return file.version if same else None

    def close(self) -> None:
        with self._lock:
            files, self._files = self._files, {}
        for file in files.values():
            os.close(file.descriptor)

    def __del__(self) -> None:
        self.close()


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
