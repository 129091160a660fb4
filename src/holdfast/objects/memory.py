"""Objects in a dictionary: for tests, examples and the simulator. They are lost when the process ends.

Versions are content hashes, as ETags are on real stores, so that equal bytes have equal versions here too.
"""

import bisect
import threading
from collections.abc import AsyncIterator, Iterable, Iterator

from holdfast.base.clock import Clock, SystemClock
from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.store import (
    NO_SUCH_OBJECT,
    OVERWRITE,
    PAGE_SIZE,
    Addressed,
    Create,
    Entry,
    IfMatch,
    Lost,
    Meta,
    Mode,
    Object,
    Page,
    Part,
    Store,
    Written,
    check_key,
    check_prefix,
    content_version,
)


class Shelf:
    """The objects, which several stores can share."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.lock = threading.Lock()
        """Stores may be used from different threads, each with an event loop of its own."""
        self._order: list[str] = []

    def place(self, found: Object) -> None:
        if found.key not in self.objects:
            bisect.insort(self._order, found.key)
        self.objects[found.key] = found

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self._order[bisect.bisect_left(self._order, key)]

    def keys(self, prefix: str, after: str | None) -> Iterator[str]:
        """The keys under ``prefix`` that are greater than ``after``, in order."""
        first = bisect.bisect_left(self._order, prefix)
        if after is not None:
            first = max(first, bisect.bisect_right(self._order, after))
        for position in range(first, len(self._order)):
            key = self._order[position]
            if not key.startswith(prefix):
                return
            yield key


class MemoryStore(Store):
    def __init__(self, shelf: Shelf | None = None, *, clock: Clock | None = None, page_size: int = PAGE_SIZE) -> None:
        self.shelf = shelf if shelf is not None else Shelf()
        self._clock = clock if clock is not None else SystemClock()
        self._page_size = page_size

    async def get(self, key: str) -> Object:
        return self._at(key)

    async def head(self, key: str) -> Meta:
        found = self._at(key)
        return Meta(key, len(found.body), found.modified_ns, found.version)

    async def range(self, key: str, start: int, end: int) -> Part:
        if start < 0:
            raise Invalid(f"{key}: a range cannot start at {start}", remedy="count from 0")
        found = self._at(key)
        return Part(found.body[start : max(start, end)], len(found.body), found.version)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        check_key(key)
        body = bytes(body)
        version = content_version(body)
        with self.shelf.lock:
            current = self.shelf.objects.get(key)
            match mode:
                case Create() | Addressed() if current is not None:
                    return Lost()
                case IfMatch(expected) if current is None or current.version != expected:
                    return Lost()
            self.shelf.place(Object(key, body, self._clock.wall_ns(), version))
        return Written(version)

    async def delete(self, key: str) -> None:
        with self.shelf.lock:
            self.shelf.remove(check_key(key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self.delete(key)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        check_prefix(prefix)
        last, more = after, True
        while more:
            with self.shelf.lock:
                page, last, more = _page(self.shelf, prefix, last, delimiter, self._page_size)
            yield page

    def _at(self, key: str) -> Object:
        found = self.shelf.objects.get(check_key(key))
        if found is None:
            raise NotFound(f"{key}: no such object", remedy=NO_SUCH_OBJECT)
        return found


def _page(shelf: Shelf, prefix: str, after: str | None, delimiter: bool, limit: int) -> tuple[Page, str | None, bool]:
    """One page of the listing after ``after``, the last item on it, and whether there is more."""
    entries: list[Entry] = []
    folders: list[str] = []
    last = after
    for key in shelf.keys(prefix, after):
        cut = key.find("/", len(prefix)) if delimiter else -1
        item = key if cut < 0 else key[: cut + 1]
        if last is not None and item <= last:
            continue
        if len(entries) + len(folders) == limit:
            return Page(tuple(entries), tuple(folders)), last, True
        if cut < 0:
            found = shelf.objects[key]
            entries.append(Entry(key, len(found.body), found.modified_ns))
        else:
            folders.append(item)
        last = item
    return Page(tuple(entries), tuple(folders)), last, False
