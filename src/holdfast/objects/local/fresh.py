"""New folders whose own names are not on disk yet.

An object is safe when its name is, and the names of all folders on its path. Whoever makes a folder forces the one
above to disk before it answers, but not at once: after its file has its place, deepest folder first, so that a
filesystem that writes several changes at a time has written the others with the first. Until then the folder stands
here, and whoever puts an object below it, or loses to one, forces the same folders before its own answer.

A folder is entered before it is made and leaves when its maker has forced the one above: so nobody of this process
finds it without finding it here. A maker that failed leaves it here for good, which costs those who come later a sync.
"""

import os
import threading
from collections.abc import Iterable

from holdfast.objects.local.paths import Names


class Fresh:
    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._makers: dict[Names, int] = {}
        """How many make the folder, or have made it: it may have been removed and made again meanwhile."""

    def enter(self, folder: Names) -> None:
        """Before it is made."""
        if self._process != os.getpid():  # in a forked child, whose parent may have held the lock
            self._process, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            self._makers[folder] = self._makers.get(folder, 0) + 1

    def leave(self, folders: Iterable[Names]) -> None:
        """Its name is on disk, or somebody else had made it."""
        with self._lock:
            for folder in folders:
                makers = self._makers[folder] - 1
                if makers:
                    self._makers[folder] = makers
                else:
                    del self._makers[folder]

    def above(self, folder: Names) -> list[Names]:
        """Which folders above have to be forced to disk for the names on the path of this one, the deepest first."""
        if not self._makers:
            return []
        return [folder[: end - 1] for end in range(len(folder), 0, -1) if folder[:end] in self._makers]
