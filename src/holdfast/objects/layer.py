"""A store that forwards every call to another one, and a store under a prefix of another one.

``Layer`` is the base of ``Scoped``, and of faults in tests and the simulator; subclasses override some calls. There is
none between ``Client`` and a backend in production.
"""

from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from holdfast.objects.store import (
    OVERWRITE,
    Entry,
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
    check_prefix,
)

T = TypeVar("T")
Call = Coroutine[Any, Any, T]
"""The inner store's own coroutine, so that forwarding adds none."""


class Layer(Store):
    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def get(self, key: str) -> Call[Object]:
        return self.inner.get(key)

    def get_unless(self, key: str, version: Version) -> Call[Object | NotModified]:
        return self.inner.get_unless(key, version)

    def head(self, key: str) -> Call[Meta]:
        return self.inner.head(key)

    def range(self, key: str, start: int, end: int) -> Call[Part]:
        return self.inner.range(key, start, end)

    def link(self, key: str, path: Path) -> Call[int | None]:
        return self.inner.link(key, path)

    def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Call[Written | Lost]:
        return self.inner.put(key, body, mode)

    def put_stream(self, key: str, pieces: Pieces) -> Call[Written]:
        return self.inner.put_stream(key, pieces)

    def put_requests(self, size: int, mode: Mode) -> int:
        return self.inner.put_requests(size, mode)

    def delete_requests(self, keys: int) -> int:
        return self.inner.delete_requests(keys)

    def delete(self, key: str) -> Call[None]:
        return self.inner.delete(key)

    def delete_many(self, keys: Iterable[str]) -> Call[None]:
        return self.inner.delete_many(keys)

    def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        return self.inner.list(prefix, after=after, delimiter=delimiter)

    def close(self) -> Call[None]:
        return self.inner.close()


class Scoped(Layer):
    """A store under a prefix of another one. Closing it leaves the outer store open."""

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self.prefix = check_prefix(prefix)

    async def get(self, key: str) -> Object:
        return replace(await self.inner.get(self.prefix + key), key=key)

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        found = await self.inner.get_unless(self.prefix + key, version)
        return replace(found, key=key) if isinstance(found, Object) else found

    async def head(self, key: str) -> Meta:
        return replace(await self.inner.head(self.prefix + key), key=key)

    async def range(self, key: str, start: int, end: int) -> Part:
        return await self.inner.range(self.prefix + key, start, end)

    async def link(self, key: str, path: Path) -> int | None:
        return await self.inner.link(self.prefix + key, path)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await self.inner.put(self.prefix + key, body, mode)
        if isinstance(outcome, Lost) and outcome.current is not None:
            return Lost(replace(outcome.current, key=key))
        return outcome

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        return await self.inner.put_stream(self.prefix + key, pieces)

    async def delete(self, key: str) -> None:
        await self.inner.delete(self.prefix + key)

    async def delete_many(self, keys: Iterable[str]) -> None:
        await self.inner.delete_many([self.prefix + key for key in keys])

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        cut = len(self.prefix)
        shifted = None if after is None else self.prefix + after
        async for page in self.inner.list(self.prefix + prefix, after=shifted, delimiter=delimiter):
            yield Page(
                tuple(Entry(entry.key[cut:], entry.size, entry.modified_ns) for entry in page.entries),
                tuple(folder[cut:] for folder in page.folders),
            )

    async def close(self) -> None:
        """The outer store stays open."""
