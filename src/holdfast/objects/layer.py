"""A store made of another store: the shape of observe, retry, settle and cache. Overrides change one verb each.

What is passed on is the inner store's own coroutine: another one around it would be run for nothing.
"""

from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from holdfast.objects.store import (
    OVERWRITE,
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

T = TypeVar("T")
Doing = Coroutine[Any, Any, T]


class Layer(Store):
    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def get(self, key: str) -> Doing[Object]:
        return self.inner.get(key)

    def get_unless(self, key: str, version: Version) -> Doing[Object | NotModified]:
        return self.inner.get_unless(key, version)

    def head(self, key: str) -> Doing[Meta]:
        return self.inner.head(key)

    def range(self, key: str, start: int, end: int) -> Doing[Part]:
        return self.inner.range(key, start, end)

    def link(self, key: str, path: Path) -> Doing[int | None]:
        return self.inner.link(key, path)

    def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Doing[Written | Lost]:
        return self.inner.put(key, body, mode)

    def put_stream(self, key: str, pieces: Pieces) -> Doing[Written]:
        return self.inner.put_stream(key, pieces)

    def put_requests(self, size: int, mode: Mode) -> int:
        return self.inner.put_requests(size, mode)

    def delete_requests(self, keys: int) -> int:
        return self.inner.delete_requests(keys)

    def delete(self, key: str) -> Doing[None]:
        return self.inner.delete(key)

    def delete_many(self, keys: Iterable[str]) -> Doing[None]:
        return self.inner.delete_many(keys)

    def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        return self.inner.list(prefix, after=after, delimiter=delimiter)

    def close(self) -> Doing[None]:
        return self.inner.close()
