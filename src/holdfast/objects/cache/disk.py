"""Disk cache for immutable objects: what was read once is not requested again. A part of ``Client``.

``immutable`` says which keys may be kept: only those that are unique by construction, whose bytes never change while
they exist. A cached object may be returned after another client has deleted it; its bytes are right all the same.
Writes and deletes through the same client are seen at once.

The cache never causes an error. What the disk refuses is counted in ``stats``, with the last reason, and the store
answers instead. Processes may share the directory, and so may stores (``namespace`` keeps them apart); a kill at any
moment costs at most one request. Files: ``folder``. Size bound: ``space``.

Callers that miss the same key at the same time share one request. It is cancelled with the last caller that waits for
it. The functions that a caller passes (``fetch``, ``ask``) send the requests.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.base.aio import blocking
from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.cache.folder import CacheFolder, CacheStats, Pin
from holdfast.objects.store import Addressed, Create, Lost, Meta, Mode, NotModified, Object, Part, Version, Written

P = ParamSpec("P")
T = TypeVar("T")

Fetch = Callable[[str], Awaitable[Object]]
"""Reads an object from the store."""

SMALL_BYTES = 256 * 1024
"""A range of an object that is known to be no larger fetches all of it: the next range then costs no request."""
SIZES_MAX = 10_000
"""Sizes remembered from ``head``; when there are more, all are dropped."""


class _Flight:
    """A request in progress, and how many callers wait for it."""

    task: asyncio.Task[Object]

    def __init__(self) -> None:
        self.waiting = 0
        self.arrived = False
        """The bytes are here and are being stored: too late to cancel, and a delete must wait for it."""


class DiskCache:
    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        namespace: str,
        immutable: Callable[[str], bool],
        ambient: Ambient,
    ) -> None:
        self.stats = CacheStats()
        self.root = directory
        self._immutable = immutable
        self._folder = CacheFolder(
            directory, max_bytes=max_bytes, namespace=namespace, ambient=ambient, stats=self.stats
        )
        self.off = False
        """Set when an entry could not be removed: rather no cache than a stale answer."""
        self._flights: dict[str, _Flight] = {}
        self._sizes: dict[str, int] = {}

    def keeps(self, key: str) -> bool:
        return not self.off and self._immutable(key)

    async def get(self, key: str, fetch: Fetch) -> Object:
        """The object from disk or, with one request for all callers that ask meanwhile, from the store."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            flight.task = asyncio.ensure_future(self._read_or_fetch(key, flight, fetch))
        else:
            self.stats.count("shared")
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.arrived and not flight.task.done():
                self._land(key, flight)
                flight.task.cancel()
                await asyncio.wait([flight.task])

    async def get_unless(
        self, key: str, version: Version, ask: Callable[[], Awaitable[Object | NotModified]], fetch: Fetch
    ) -> Object | NotModified:
        known = await self._disk(self._folder.meta, key)
        if known is None:
            self.stats.count("misses")
            return await ask()
        if known.version == version:
            self.stats.count("hits")
            return NotModified()
        return await self.get(key, fetch)

    async def head(self, key: str, ask: Callable[[], Awaitable[Meta]]) -> Meta:
        if (known := await self._disk(self._folder.meta, key)) is not None:
            self.stats.count("hits")
            return known
        self.stats.count("misses")
        found = await ask()
        if len(self._sizes) >= SIZES_MAX:
            self._sizes.clear()
        self._sizes[key] = found.size
        return found

    async def range(self, key: str, start: int, end: int, ask: Callable[[], Awaitable[Part]], fetch: Fetch) -> Part:
        if (part := await self._disk(self._folder.part, key, start, end)) is not None:
            self.stats.count("hits")
            return part
        if self._sizes.get(key, SMALL_BYTES + 1) <= SMALL_BYTES:
            found = await self.get(key, fetch)
            return Part(found.body[start:end], len(found.body), found.version)
        self.stats.count("misses")
        return await ask()

    async def put(self, key: str, mode: Mode, write: Callable[[], Awaitable[Written | Lost]]) -> Written | Lost:
        if not isinstance(mode, Create | Addressed):
            await self._forget([key])  # before as well: a kill must not leave the old bytes here
        outcome: Written | Lost | None = None
        try:
            outcome = await write()
        finally:
            if not isinstance(outcome, Lost):
                await self._forget([key])
        return outcome

    @asynccontextmanager
    async def forgetting(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Around a change of objects. Drops them before, because of kills, and after, because of reads meanwhile."""
        kept = [key for key in keys if self.keeps(key)]
        await self._forget(kept)
        try:
            yield
        finally:
            await self._forget(kept)

    async def holds(self, key: str) -> bool:
        """Whether a read would be answered from disk now."""
        return self.keeps(key) and await self._disk(self._folder.meta, key) is not None

    async def forget(self, keys: Iterable[str]) -> None:
        """Drop these objects: another client has changed them after all."""
        await self._forget([key for key in keys if self._immutable(key)])

    @asynccontextmanager
    async def pinned(self, key: str, fetch: Fetch) -> AsyncIterator[Path]:
        """A file with exactly the object's bytes, in place until the block ends.

        A key that may not be cached, or does not fit, gets a temporary file of its own.
        """
        pin = Pin()
        try:
            yield await self._pin(key, pin, fetch)
        finally:
            await blocking(pin.release)

    async def _pin(self, key: str, pin: Pin, fetch: Fetch) -> Path:
        if not self.keeps(key):
            return await blocking(_copy, await fetch(key), pin)
        if (path := await self._disk(self._folder.pin, key, pin)) is not None:
            self.stats.count("hits")
            return path
        found = await fetch(key)
        if (path := await self._disk(self._folder.pin, key, pin)) is not None:
            return path
        return await blocking(_copy, found, pin)

    async def _read_or_fetch(self, key: str, flight: _Flight, fetch: Fetch) -> Object:
        try:
            found = await self._disk(self._folder.read, key)
            if found is not None:
                self.stats.count("hits")
                return found
            self.stats.count("misses")
            found = await fetch(key)
            flight.arrived = True
            if await self._disk(self._folder.keep, found) is False:
                self.stats.count("skipped")
            return found
        finally:
            self._land(key, flight)

    def _land(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def _forget(self, keys: Sequence[str]) -> None:
        """Nothing that was read before this call is returned after it."""
        for key in keys:
            self._sizes.pop(key, None)
            if (flight := self._flights.pop(key, None)) is not None:
                await asyncio.wait([flight.task])  # it stores what it reads, which is dropped below
        if not keys:
            return
        try:
            await blocking(self._folder.drop, keys)
        except OSError:
            self.stats.count("failures")
            self.off = True

    async def _disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The result of ``work``, or None if the disk refuses: the store has the object too."""
        try:
            return await blocking(work, *args, **kwargs)
        except OSError:
            self.stats.count("failures")
            return None


def _copy(found: Object, pin: Pin) -> Path:
    """A temporary file for one caller."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="holdfast-")
        pin.hold(lambda: os.unlink(path))
        with open(descriptor, "wb") as file:
            file.write(found.body)
    except OSError as error:
        raise Unavailable(
            f"{found.key}: no room for a local copy of {len(found.body)} bytes ({error.strerror})",
            remedy=f"free space in {tempfile.gettempdir()}, or set cache.dir to a folder with room",
        ) from error
    return Path(path)
