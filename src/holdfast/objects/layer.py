"""A store made of another store: the shape of observe, retry, settle and cache. Overrides change one verb each."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from holdfast.objects.store import (
    OVERWRITE,
    Capabilities,
    Lost,
    Meta,
    Mode,
    NotModified,
    Object,
    Page,
    Part,
    Pieces,
    Store,
    Version,
    Written,
)


class Layer(Store):
    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def get(self, key: str) -> Object:
        return await self.inner.get(key)

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        return await self.inner.get_unless(key, version)

    async def head(self, key: str) -> Meta:
        return await self.inner.head(key)

    async def range(self, key: str, start: int, end: int) -> bytes:
        return await self.inner.range(key, start, end)

    async def part(self, key: str, start: int, end: int) -> Part:
        return await self.inner.part(key, start, end)

    async def link(self, key: str, path: Path) -> int | None:
        return await self.inner.link(key, path)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await self.inner.put(key, body, mode)

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        return await self.inner.put_stream(key, pieces)

    def put_requests(self, size: int, mode: Mode) -> int:
        return self.inner.put_requests(size, mode)

    async def delete(self, key: str) -> None:
        await self.inner.delete(key)

    async def delete_many(self, keys: Iterable[str]) -> None:
        await self.inner.delete_many(keys)

    def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        return self.inner.list(prefix, after=after, delimiter=delimiter)

    async def close(self) -> None:
        await self.inner.close()
