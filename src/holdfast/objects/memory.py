"""Objects in a dictionary: for tests, examples and the simulator's ground truth. Gone with the process.

Versions are content hashes, as ETags are on real stores, so that equal bytes have equal versions here too.
"""

import bisect
import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from holdfast.base.clock import Clock, SystemClock
from holdfast.base.errors import NotFound
from holdfast.objects.store import (
    OVERWRITE,
    Addressed,
    Capabilities,
    Create,
    Entry,
    IfMatch,
    Lost,
    Meta,
    Mode,
    NotModified,
    Object,
    Page,
    Store,
    Version,
    Written,
    check_key,
    check_prefix,
)

PAGE_SIZE = 1000


@dataclass
class Shelf:
    """The objects themselves, apart from any client, so that several clients can share them."""

    objects: dict[str, Object] = field(default_factory=dict)


class MemoryStore(Store):
    def __init__(self, shelf: Shelf | None = None, *, clock: Clock | None = None, page_size: int = PAGE_SIZE) -> None:
        self.shelf = shelf if shelf is not None else Shelf()
        self._clock = clock if clock is not None else SystemClock()
        self._page_size = page_size

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="memory", durable=False, shared=False)

    async def get(self, key: str, *, unless: Version | None = None) -> Object | NotModified:  # type: ignore[override]  # the overloads are the port's
        found = self._at(key)
        return NotModified() if unless is not None and found.version == unless else found

    async def head(self, key: str) -> Meta:
        found = self._at(key)
        return Meta(key, len(found.body), found.modified_ns, found.version)

    async def range(self, key: str, start: int, end: int) -> bytes:
        return self._at(key).body[start:end]

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        check_key(key)
        current = self.shelf.objects.get(key)
        match mode:
            case Create() | Addressed() if current is not None:
                return Lost()
            case IfMatch(version) if current is None or current.version != version:
                return Lost()
        body = bytes(body)
        version = content_version(body)
        self.shelf.objects[key] = Object(key, body, self._clock.wall_ns(), version)
        return Written(version)

    async def delete(self, key: str) -> None:
        self.shelf.objects.pop(check_key(key), None)

    async def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self.delete(key)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        check_prefix(prefix)
        last, more = after, True
        while more:
            page, last, more = _page(self.shelf.objects, prefix, last, delimiter, self._page_size)
            yield page

    def _at(self, key: str) -> Object:
        found = self.shelf.objects.get(check_key(key))
        if found is None:
            raise NotFound(f"{key}: no such object")
        return found


def content_version(body: bytes) -> Version:
    return Version(hashlib.blake2b(body, digest_size=16).hexdigest())


def _page(
    objects: dict[str, Object], prefix: str, after: str | None, delimiter: bool, limit: int
) -> tuple[Page, str | None, bool]:
    """One page of the listing after ``after``, the last item on it, and whether there is more."""
    keys = sorted(key for key in objects if key.startswith(prefix))
    entries: list[Entry] = []
    folders: list[str] = []
    last = after
    for key in keys[bisect.bisect_right(keys, after) if after is not None else 0 :]:
        cut = key.find("/", len(prefix)) if delimiter else -1
        item = key if cut < 0 else key[: cut + 1]
        if last is not None and item <= last:
            continue
        if len(entries) + len(folders) == limit:
            return Page(tuple(entries), tuple(folders)), last, True
        if cut < 0:
            entries.append(Entry(key, len(objects[key].body), objects[key].modified_ns))
        else:
            folders.append(item)
        last = item
    return Page(tuple(entries), tuple(folders)), last, False
