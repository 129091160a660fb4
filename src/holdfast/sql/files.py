"""Objects of a store as local files, which DuckDB scans by path.

Every object is fetched once, whole, into the session's scratch directory. Measured against the alternatives, over 500
files of 100 rows and one file of a million rows (one filtered count, two cores):

    500 small files by path       125 ms        one large file by path      26 ms
    as registered Arrow tables     40 ms        as an Arrow table           80 ms
    loaded into one DuckDB table    2 ms        loaded into a DuckDB table  16 ms, plus 0.6 s to load

So callers load small files into a table once, and scan large ones in place. Both count against DuckDB's memory limit;
Arrow tables would not. If the store is a directory on the same disk, or the object is in a disk cache there, the file
is a hard link and nothing is copied; it must not be modified. A large object of another store is fetched in ranges, a
few at a time, so that it is never in memory as a whole.

Errors: ``MissingFile`` with the key if the object is missing; all errors of the store.
"""

from pathlib import Path

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import NotFound, Unavailable
from holdfast.objects.client import Client
from holdfast.objects.store import Store
from holdfast.sql.duck import MissingFile

WHOLE_BYTES = 8 * 1024 * 1024
"""Objects up to this size are fetched by one request."""
RANGE_BYTES = 8 * 1024 * 1024
TRIES = 4
"""Attempts to read an object that is replaced while it is read."""
PARALLEL = 4
"""Ranges of one object that are fetched at the same time."""


class LocalFiles:
    """Objects as files in ``folder``. The caller chooses the file names, each of them once."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._cache = store.cache if isinstance(store, Client) else None

    async def place(self, key: str, name: str, size: int | None) -> Path:
        """A file with the bytes of the object under a key. ``size`` is its expected size, if known."""
        path = self._folder / name
        try:
            if await self._store.link(key, path) is not None:
                return path
            if size is None or size <= WHOLE_BYTES:
                await blocking(path.write_bytes, (await self._store.get(key)).body)
            else:
                await self._fetch_ranges(key, path, size)
        except NotFound as error:
            raise MissingFile(f"{key}: this data file is missing") from error
        return path

    @property
    def cached(self) -> bool:
        """Whether objects that are placed stay in a disk cache for other sessions."""
        return self._cache is not None

    async def link(self, key: str, name: str) -> Path | None:
        """A hard link to an object that is a file on the same disk; None for others."""
        path = self._folder / name
        return path if await self._store.link(key, path) is not None else None

    async def discard(self, key: str) -> None:
        """Remove the object from the disk cache, because its copy there is outdated."""
        if self._cache is not None:
            await self._cache.discard([key])

    async def _fetch_ranges(self, key: str, path: Path, size: int) -> None:
        """If the object is replaced between two ranges, start again with the new one."""

        async def part(start: int) -> tuple[str, int]:
            found = await self._store.range(key, start, min(start + RANGE_BYTES, size))
            await blocking(_write_at, path, start, found.body)
            return found.of, found.size

        for _ in range(TRIES):
            await blocking(path.write_bytes, b"")
            versions = set(await map_bounded(range(0, size, RANGE_BYTES), part, limit=PARALLEL))
            _, actual = max(versions)
            if len(versions) == 1 and actual == size:
                return
            size = actual
        raise Unavailable(f"{key}: it was replaced {TRIES} times while it was read")


def _write_at(path: Path, start: int, part: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(part)
