"""Read-through disk cache for immutable keys: what was read once is not asked for again.

``immutable`` says which keys may be kept: only those that are unique by construction, whose bytes never change while
they exist. All others pass straight through. A cached object may be answered after another client has deleted it; its
bytes are right all the same. Deletes and writes through this layer are seen by it at once.

The cache is never the reason for an error. What the disk refuses is counted in ``stats``, with the last reason, and the
store answers instead. Processes may share the folder, and so may stores (``namespace`` keeps them apart); a kill at any
moment costs at most a fetch. Files: ``folder``. Size bound: ``space``.

Callers that miss the same key at the same time share one fetch. It is given up with the last caller that waits for it.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.base.aio import blocking
from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.cache.folder import CacheFolder, Pin
from holdfast.objects.cache.stats import CacheStats
from holdfast.objects.layer import Layer
from holdfast.objects.store import (
    OVERWRITE,
    Addressed,
    Create,
    Lost,
    Meta,
    Mode,
    NotModified,
    Object,
    Part,
    Pieces,
    Store,
    Version,
    Written,
)

P = ParamSpec("P")
T = TypeVar("T")

SMALL_BYTES = 256 * 1024
"""A range of an object that is known to be no larger fetches all of it: one request now saves the next."""
SIZES_MAX = 10_000
"""Sizes that are remembered from ``head``; past it, the memory starts anew."""


class _Flight:
    """One fetch on its way, and how many callers wait for it."""

    task: asyncio.Task[Object]

    def __init__(self) -> None:
        self.waiting = 0
        self.arrived = False
        """The bytes are here and are being kept: too late to give up, and a delete must find this on its way."""


class Cached(Layer):
    def __init__(
        self,
        inner: Store,
        folder: Path,
        *,
        max_bytes: int,
        namespace: str,
        immutable: Callable[[str], bool],
        ambient: Ambient,
    ) -> None:
        super().__init__(inner)
        self.stats = CacheStats()
        self.root = folder
        self._immutable = immutable
        self._folder = CacheFolder(folder, max_bytes=max_bytes, namespace=namespace, ambient=ambient, stats=self.stats)
        self.off = False
        """Set when an entry could not be removed: better no cache than an old answer."""
        self._flights: dict[str, _Flight] = {}
        self._sizes: dict[str, int] = {}

    async def get(self, key: str) -> Object:
        return await (self._whole(key) if self._keeps(key) else self.inner.get(key))

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        if not self._keeps(key):
            return await self.inner.get_unless(key, version)
        known = await self._disk(self._folder.meta, key)
        if known is None:
            self.stats.count("misses")
            return await self.inner.get_unless(key, version)
        if known.version == version:
            self.stats.count("hits")
            return NotModified()
        return await self._whole(key)

    async def head(self, key: str) -> Meta:
        if not self._keeps(key):
            return await self.inner.head(key)
        if (known := await self._disk(self._folder.meta, key)) is not None:
            self.stats.count("hits")
            return known
        self.stats.count("misses")
        found = await self.inner.head(key)
        if len(self._sizes) >= SIZES_MAX:
            self._sizes.clear()
        self._sizes[key] = found.size
        return found

    async def range(self, key: str, start: int, end: int) -> Part:
        if not self._keeps(key) or not 0 <= start <= end:
            return await self.inner.range(key, start, end)
        if (part := await self._disk(self._folder.part, key, start, end)) is not None:
            self.stats.count("hits")
            return part
        if self._sizes.get(key, SMALL_BYTES + 1) <= SMALL_BYTES:
            found = await self._whole(key)
            return Part(found.body[start:end], len(found.body), found.version)
        self.stats.count("misses")
        return await self.inner.range(key, start, end)

    async def link(self, key: str, path: Path) -> int | None:
        return None if self._keeps(key) else await self.inner.link(key, path)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if not self._keeps(key):
            return await self.inner.put(key, body, mode)
        if not isinstance(mode, Create | Addressed):
            await self._forget([key])  # before as well: a kill must not leave the old bytes here
        outcome: Written | Lost | None = None
        try:
            outcome = await self.inner.put(key, body, mode)
        finally:
            if not isinstance(outcome, Lost):
                await self._forget([key])
        return outcome

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        async with self._forgetting([key]):
            return await self.inner.put_stream(key, pieces)

    async def delete(self, key: str) -> None:
        async with self._forgetting([key]):
            await self.inner.delete(key)

    async def delete_many(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        async with self._forgetting(wanted):
            await self.inner.delete_many(wanted)

    async def holds(self, key: str) -> bool:
        """Whether it would be answered from the disk now."""
        return self._keeps(key) and await self._disk(self._folder.meta, key) is not None

    async def forget(self, keys: Iterable[str]) -> None:
        """Drop what is kept of these: somebody else has changed them after all."""
        await self._forget([key for key in keys if self._immutable(key)])

    @asynccontextmanager
    async def pinned(self, key: str) -> AsyncIterator[Path]:
        """A file with exactly the object's bytes, in place until the block ends. For programs that read by path.

        A key that may not be cached, or does not fit, gets a file of its own among the machine's temporary ones.
        """
        pin = Pin()
        try:
            yield await self._pin(key, pin)
        finally:
            await blocking(pin.release)

    async def _pin(self, key: str, pin: Pin) -> Path:
        if not self._keeps(key):
            return await blocking(_copy, await self.inner.get(key), pin)
        if (path := await self._disk(self._folder.pin, key, pin)) is not None:
            self.stats.count("hits")
            return path
        found = await self._whole(key)
        if (path := await self._disk(self._folder.pin, key, pin)) is not None:
            return path
        return await blocking(_copy, found, pin)

    def _keeps(self, key: str) -> bool:
        return not self.off and self._immutable(key)

    async def _whole(self, key: str) -> Object:
        """The object from disk or, once for all who ask meanwhile, from the store."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            flight.task = asyncio.ensure_future(self._look_or_fetch(key, flight))
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

    async def _look_or_fetch(self, key: str, flight: _Flight) -> Object:
        try:
            found = await self._disk(self._folder.read, key)
            if found is not None:
                self.stats.count("hits")
                return found
            self.stats.count("misses")
            found = await self.inner.get(key)
            flight.arrived = True
            if await self._disk(self._folder.keep, found) is False:
                self.stats.count("skipped")
            return found
        finally:
            self._land(key, flight)

    def _land(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    @asynccontextmanager
    async def _forgetting(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Before, so that a kill leaves nothing behind; after, because somebody may have read meanwhile."""
        kept = [key for key in keys if self._keeps(key)]
        await self._forget(kept)
        try:
            yield
        finally:
            await self._forget(kept)

    async def _forget(self, keys: Sequence[str]) -> None:
        """Nothing that was read before now will be answered from now on."""
        for key in keys:
            self._sizes.pop(key, None)
            if (flight := self._flights.pop(key, None)) is not None:
                await asyncio.wait([flight.task])  # what it brings is kept first, and dropped below
        if not keys:
            return
        try:
            await blocking(self._folder.drop, keys)
        except OSError as error:
            self.stats.failed(error)
            self.off = True

    async def _disk(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What ``work`` found, or None where the disk refuses: the store has it too."""
        try:
            return await blocking(work, *args, **kwargs)
        except OSError as error:
            self.stats.failed(error)
            return None


def _copy(found: Object, pin: Pin) -> Path:
    """A temporary file of the caller's own."""
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
