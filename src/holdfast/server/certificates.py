"""Certificates that are replaced while a collector runs: new connections get the new one, and no other is cut off.

The files are looked at every second, as tokens are. A pair that cannot be used (one file of two is replaced yet, or is
torn) leaves the old certificate in place, is said once, and is tried again when a file has changed.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.base.telemetry import logger

EVERY_S = 1.0
_log = logger("server")

_Looks = tuple[tuple[int, int, int] | None, ...]


class Certificates:
    def __init__(
        self, paths: tuple[Path, ...], load: Callable[[], ssl.SSLContext], use: Callable[[ssl.SSLContext], None]
    ) -> None:
        """``load`` reads the files at ``paths``, which were read once already; ``use`` is given what came of it."""
        self._paths = paths
        self._load = load
        self._use = use
        self._seen: _Looks | None = None
        """What the files looked like; not known of those that were read at the start."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.refresh()

    async def refresh(self) -> bool:
        """Whether the certificate was read anew."""
        found, before = await blocking(self._look), self._seen
        if found == before:
            return False
        self._seen = found
        try:
            context = await blocking(self._load)
        except (OSError, Invalid) as error:  # also what ssl raises
            _log.error("%s: changed, and cannot be used; the old certificate stays: %s", self._paths[0], error)
            return False
        self._use(context)
        if before is not None:
            _log.info("%s: new connections get the new certificate", self._paths[0])
        return True

    def _look(self) -> _Looks:
        return tuple(_looks(path) for path in self._paths)


def _looks(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
