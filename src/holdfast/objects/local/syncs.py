"""Forcing folders to disk, once for several writers.

Writers of one folder that are under way in one process would each force it to disk, one after the other. So whoever
finds a folder being forced leaves its wish with the one who does it, and its thread takes the next call. A wish that
came while the folder was being forced is met by the next time, because its rename may not have been covered.

Nothing is shared with a forked child, nor between folders that had one path at different times.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from holdfast.base.crew import Later
from holdfast.objects.local.errors import Explained
from holdfast.objects.local.files import OpenFolder

T = TypeVar("T")


class _Wish(Generic[T]):
    """Of a writer that has renamed a file into the folder, or lost to one who has: to be answered when that is safe."""

    def __init__(self, outcome: T, change: Explained, safe: Callable[[], None]) -> None:
        self._outcome = outcome
        self._change = change
        self._safe = safe
        self.later: Later[T] = Later()

    def answer(self, error: OSError | None) -> None:
        if error is None:
            self._safe()
        self.later.settle(self._outcome, None if error is None else self._change.explain(error))


class _Leader(Generic[T]):
    """Whoever forces a folder to disk now, and what others wish for meanwhile."""

    def __init__(self, folder: OpenFolder) -> None:
        self.folder = folder
        self.wishes: list[_Wish[T]] = []


class Syncs(Generic[T]):
    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._leaders: dict[bytes, _Leader[T]] = {}
        """By the path of the folder."""

    def force(
        self, path: bytes, folder: OpenFolder, outcome: T, change: Explained, safe: Callable[[], None] = lambda: None
    ) -> T | Later[T]:
        """The outcome of a change, once the open folder at ``path``, which is closed then, is safe with that change.

        ``safe`` is called as soon as it is.
        """
        if self._process != os.getpid():
            Syncs.__init__(self)
        mine: _Leader[T] = _Leader(folder)
        with self._lock:
            leader = self._leaders.setdefault(path, mine)
            if leader is not mine and leader.folder.is_same(folder):
                wish = _Wish(outcome, change, safe)
                leader.wishes.append(wish)
                folder.close()
                return wish.later
        # If there is a leader all the same, its folder was removed and made again: then nobody joins us.
        return self._lead(path, mine, outcome, safe)

    def _lead(self, path: bytes, leader: _Leader[T], outcome: T, safe: Callable[[], None]) -> T | Later[T]:
        go_on = partial(self._go_on, path, leader)
        try:
            leader.folder.sync()
        except BaseException:
            go_on()
            raise
        safe()
        if self._is_over(path, leader):
            return outcome
        later: Later[T] = Later(afterwards=go_on)
        later.settle(outcome)
        return later

    def _go_on(self, path: bytes, leader: _Leader[T]) -> None:
        """Meet the wishes that came meanwhile, until there are none."""
        while not self._is_over(path, leader):
            with self._lock:
                wishes, leader.wishes = leader.wishes, []
            error = None
            try:
                leader.folder.sync()
            except OSError as failed:
                error = failed
            for wish in wishes:
                wish.answer(error)

    def _is_over(self, path: bytes, leader: _Leader[T]) -> bool:
        """True if nobody wishes for anything more. Then the folder is closed, and the next writer leads."""
        with self._lock:
            if leader.wishes:
                return False
            if self._leaders.get(path) is leader:
                del self._leaders[path]
            leader.folder.close()
            return True
