"""A store that passes every call on to another one: the base of ``Scoped``, and of faults in tests and the simulator.

Subclasses override the calls that they change. Production puts none around a backend: ``Client`` does all of its work.
"""

from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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

if TYPE_CHECKING:
    from holdfast.objects.place import Place

T = TypeVar("T")
Call = Coroutine[Any, Any, T]
"""The inner store's own coroutine is returned; there is none around it."""


class Layer(Store):
    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def place(self) -> "Place | None":
        return self.inner.place

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
