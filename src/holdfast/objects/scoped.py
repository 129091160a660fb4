"""A store under a prefix of another store, for a part of a program or for a check that leaves nothing behind."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.objects.layer import Layer
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

if TYPE_CHECKING:
    from holdfast.objects.place import Place


class Scoped(Layer):
    """Closing it leaves the outer store open."""

    def __init__(self, inner: Store, prefix: str) -> None:
        super().__init__(inner)
        self.prefix = check_prefix(prefix)

    @property
    def place(self) -> "Place | None":
        outer = self.inner.place
        return None if outer is None else replace(outer, prefix=f"{outer.prefix}/{self.prefix}".strip("/"))

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
