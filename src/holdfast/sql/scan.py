"""From keys of a store to files that DuckDB scans.

Every object is fetched once, whole, into a folder of the session's own (or pinned where the store's disk cache has it),
and scanned there by path. Measured against the other ways that there are, over 500 files of 100 rows and one of a
million (times of one filtered count, two cores):

    500 small files by path       125 ms        one large file by path      26 ms
    as Arrow tables, registered    40 ms        as an Arrow table           80 ms
    loaded into one DuckDB table    2 ms        loaded into a DuckDB table  16 ms, and 0.6 s to load

So small files are loaded into a table once and stay warm, others are scanned where they lie: both stay within
DuckDB's own memory limit, which Arrow tables would not. An object of a folder on the same disk gets another name, and
nothing is copied; nobody writes into such a file. A large object of another store comes in ranges, a few at a time, so
that it is never in memory as a whole.

Errors: ``MissingFile`` if the object is gone, with its key; what the store raises.
"""

from contextlib import AsyncExitStack
from pathlib import Path

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import NotFound, Unavailable
from holdfast.objects.cache import DiskCache
from holdfast.objects.client import Client
from holdfast.objects.store import Store
from holdfast.sql.duck import MissingFile

WHOLE_BYTES = 8 * 1024 * 1024
"""Objects up to this size come in one request."""
RANGE_BYTES = 8 * 1024 * 1024
TRIES = 4
"""How often an object is read again that changes while it is read."""
PARALLEL = 4
"""Ranges of one object at a time."""


class LocalFiles:
    """Objects as files, under names that the caller gives."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._caching = store if isinstance(store, Client) and store.cache is not None else None
        self._pins = AsyncExitStack()
        self.requests = 0
        """Objects asked for since the session began; those that the disk cache answered included."""

    async def place(self, key: str, name: str, size: int | None) -> Path:
        """A file with the bytes of the Parquet object under a key. ``size`` is what is known of it."""
        path = self._folder / name
        self.requests += 1
        try:
            if (linked := await self.link(key, name)) is not None:
                return linked
            if size is None or size <= WHOLE_BYTES:
                await blocking(path.write_bytes, (await self._store.get(key)).body)
            elif self._caching is not None:
                return await self._pins.enter_async_context(self._caching.pinned(key))
            else:
                await self._by_ranges(key, path, size)
        except NotFound as error:
            raise MissingFile(f"{key}: this data file is missing") from error
        return path

    @property
    def kept(self) -> bool:
        """Whether whole objects stay on this machine, for other sessions."""
        return self._caching is not None

    async def link(self, key: str, name: str) -> Path | None:
        """Another name for an object that lies on the same disk; None for others."""
        path = self._folder / name
        return path if self._caching is None and await self._store.link(key, path) is not None else None

    @property
    def folders(self) -> list[Path]:
        """Where files may be, besides the folder that was given."""
        cache = self._disk_cache
        return [] if cache is None else [cache.root]

    async def forget(self, key: str) -> None:
        """A copy in the disk cache is of before a change: ask the store next time."""
        if (cache := self._disk_cache) is not None:
            await cache.forget([key])

    @property
    def _disk_cache(self) -> DiskCache | None:
        return None if self._caching is None else self._caching.cache

    async def _by_ranges(self, key: str, path: Path, size: int) -> None:
        """All of one object: if it is replaced between two of the ranges, all of the other."""

        async def part(start: int) -> tuple[str, int]:
            found = await self._store.range(key, start, min(start + RANGE_BYTES, size))
            await blocking(_write_at, path, start, found.body)
            return found.of, found.size

        for _ in range(TRIES):
            await blocking(path.write_bytes, b"")
            met = set(await map_bounded(range(0, size, RANGE_BYTES), part, limit=PARALLEL))
            _, actual = max(met)
            if len(met) == 1 and actual == size:
                return
            size = actual
        raise Unavailable(f"{key}: it keeps changing while it is read")

    async def close(self) -> None:
        await self._pins.aclose()


def _write_at(path: Path, start: int, part: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(part)
