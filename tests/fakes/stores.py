"""Stores that break one promise each, so that a check can be seen to fail.

Each is a memory store with a single fault; ``FAULTY`` says which laws it breaks.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast.base.errors import NotFound
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.store import (
    OVERWRITE,
    Addressed,
    Create,
    Entry,
    IfMatch,
    Lost,
    Meta,
    Mode,
    Object,
    Overwrite,
    Page,
    Version,
    Written,
    content_version,
)


class SharedMemoryStore(MemoryStore):
    """A memory store that behaves like a server: every client has an object of its own over one shelf, and a request
    takes its time, so that others come in between."""

    async def get(self, key: str) -> Object:
        await asyncio.sleep(0)
        return await super().get(key)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        await asyncio.sleep(0)
        return await super().put(key, body, mode)


class IgnoresConditions(SharedMemoryStore):
    """Every write is taken, as if no condition had been sent."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await super().put(key, body, OVERWRITE)


class IgnoresIfMatch(SharedMemoryStore):
    """Knows If-None-Match, and takes a write with any If-Match."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await super().put(key, body, OVERWRITE if isinstance(mode, IfMatch) else mode)


class Racing(SharedMemoryStore):
    """Checks the condition, then writes, with pauses before and in between whose lengths are drawn from a seed."""

    def __init__(self, shelf: Shelf, rng: random.Random) -> None:
        super().__init__(shelf)
        self._rng = rng

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        await self._pause()
        current = self.shelf.objects.get(key)
        match mode:
            case Create() | Addressed() if current is not None:
                return Lost()
            case IfMatch(version) if current is None or current.version != version:
                return Lost()
        await self._pause()
        return await super().put(key, body, OVERWRITE)

    async def _pause(self) -> None:
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)


class RecentWrites(Shelf):
    """A shelf that remembers the order in which keys were written."""

    def __init__(self) -> None:
        super().__init__()
        self.recent: list[str] = []


class ListsStale(SharedMemoryStore):
    """A listing leaves out the keys of the last few writes."""

    BEHIND = 3

    def __init__(self, shelf: RecentWrites) -> None:
        super().__init__(shelf)
        self._recent = shelf.recent

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await super().put(key, body, mode)
        if isinstance(outcome, Written):
            self._recent.append(key)
        return outcome

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        hidden = set(self._recent[-self.BEHIND :])
        async for page in super().list(prefix, after=after, delimiter=delimiter):
            yield Page(tuple(entry for entry in page.entries if entry.key not in hidden), page.folders)


class WithoutVersions(SharedMemoryStore):
    """Sends no ETag: every object has the same version."""

    NONE = Version("")

    async def get(self, key: str) -> Object:
        await asyncio.sleep(0)
        found = self._at(key)
        return Object(key, found.body, found.modified_ns, self.NONE)

    async def head(self, key: str) -> Meta:
        found = self._at(key)
        return Meta(key, len(found.body), found.modified_ns, self.NONE)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if isinstance(mode, IfMatch):
            found = self.shelf.objects.get(key)
            mode = IfMatch(content_version(found.body) if found is not None else mode.version)
        outcome = await super().put(key, body, mode)
        return Written(self.NONE) if isinstance(outcome, Written) else outcome


class AlwaysRefuses(SharedMemoryStore):
    """Answers every conditional write with 412, whether the condition holds or not."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await super().put(key, body, mode) if isinstance(mode, Overwrite) else Lost()


class ForgetsDeletes(SharedMemoryStore):
    """Deletes are acknowledged and not done."""

    async def delete(self, key: str) -> None:
        """Says yes."""


class RemembersAbsence(SharedMemoryStore):
    """A client keeps answering that a key is missing which it once found missing."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf)
        self._absent: set[str] = set()

    async def get(self, key: str) -> Object:
        if key not in self.shelf.objects:
            self._absent.add(key)
        if key in self._absent:
            raise NotFound(f"{key}: no such object")
        return await super().get(key)


class RemembersHeads(SharedMemoryStore):
    """A client keeps answering with the size and version that it saw first."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__(shelf)
        self._heads: dict[str, Meta] = {}

    async def head(self, key: str) -> Meta:
        return self._heads.setdefault(key, await super().head(key))


class Tears(SharedMemoryStore):
    """An overwrite replaces the first half of an object, and then the rest."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        current = self.shelf.objects.get(key)
        if isinstance(mode, Overwrite) and current is not None:
            half = len(body) // 2
            await super().put(key, body[:half] + current.body[half:], mode)
            await asyncio.sleep(0)
        return await super().put(key, body, mode)


class CountsPositions(SharedMemoryStore):
    """Remembers how many objects it has listed, not which: an object that comes or goes in front moves the others."""

    PAGE = 10

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        shown, more = 0, True
        while more:
            page = Page(())
            async for part in super().list(prefix, after=after, delimiter=delimiter):
                page = Page(page.entries + part.entries, page.folders + part.folders)
            entries = page.entries[shown : shown + self.PAGE]
            more, shown = len(page.entries) > shown + self.PAGE, shown + self.PAGE
            yield Page(entries, () if more else page.folders)


class ListsOldSizes(SharedMemoryStore):
    """A listing knows names, and not how long the objects are."""

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        async for page in super().list(prefix, after=after, delimiter=delimiter):
            yield Page(tuple(Entry(entry.key, 1, entry.modified_ns) for entry in page.entries), page.folders)


class Buried(Shelf):
    """A shelf that remembers the keys that were deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.graves: set[str] = set()


class KeepsNames(SharedMemoryStore):
    """A name that was deleted cannot be created again."""

    def __init__(self, shelf: Buried) -> None:
        super().__init__(shelf)
        self._graves = shelf.graves

    async def delete(self, key: str) -> None:
        if key in self.shelf.objects:
            self._graves.add(key)
        await super().delete(key)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return Lost() if isinstance(mode, Create) and key in self._graves else await super().put(key, body, mode)


class DeletesFolders(SharedMemoryStore):
    """Deleting ``a`` deletes what is under ``a/`` too."""

    async def delete(self, key: str) -> None:
        for other in [each for each in self.shelf.objects if each.startswith(f"{key}/")]:
            await super().delete(other)
        await super().delete(key)


class LargeWithoutConditions(SharedMemoryStore):
    """Large bodies take another way, on which conditions get lost."""

    LARGE = 1_000

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await super().put(key, body, OVERWRITE if len(body) >= self.LARGE else mode)


Factory = Callable[[], MemoryStore]


def over_one_shelf(kind: Callable[[Any], MemoryStore], shelf: type[Shelf] = Shelf) -> Factory:
    """A new store; each call gives another client of it."""
    shared = shelf()
    return lambda: kind(shared)


def racing(seed: int) -> Factory:
    rng = random.Random(seed)
    return over_one_shelf(lambda shelf: Racing(shelf, rng))


RACES = {"create-exclusive", "if-match-wins-once", "counters-exact", "lease-single-owner"}

FAULTY: dict[str, tuple[Callable[[], Factory], set[str]]] = {
    "ignores conditions": (
        lambda: over_one_shelf(IgnoresConditions),
        {"stale-write-refused", "if-match-needs-object", "large-body", *RACES},
    ),
    "ignores if-match": (
        lambda: over_one_shelf(IgnoresIfMatch),
        {"stale-write-refused", "if-match-needs-object", *RACES - {"create-exclusive"}},
    ),
    "races": (lambda: racing(1), RACES),
    "lists stale": (
        lambda: over_one_shelf(ListsStale, RecentWrites),
        {"listing-fresh", "listing-complete", "object-and-folder", "odd-keys"},
    ),
    "sends no etag": (
        lambda: over_one_shelf(WithoutVersions),
        {"stale-write-refused", "conditional-get", *RACES - {"create-exclusive"}},
    ),
    "always answers 412": (
        lambda: over_one_shelf(AlwaysRefuses),
        {*RACES, "if-match-needs-object", "lost-response-settles", "large-body"},
    ),
    "forgets deletes": (
        lambda: over_one_shelf(ForgetsDeletes),
        {"round-trip", "if-match-needs-object", "listing-fresh", "listing-complete", "object-and-folder"},
    ),
    "remembers absence": (
        lambda: over_one_shelf(RemembersAbsence),
        {"round-trip", "read-your-writes", "counters-exact", "lost-response-settles", "lease-single-owner"},
    ),
    "remembers heads": (lambda: over_one_shelf(RemembersHeads), {"read-your-writes"}),
    "tears": (lambda: over_one_shelf(Tears), {"read-your-writes"}),
    "counts positions": (lambda: over_one_shelf(CountsPositions), {"listing-complete"}),
    "lists old sizes": (lambda: over_one_shelf(ListsOldSizes), {"listing-complete"}),
    "keeps names": (lambda: over_one_shelf(KeepsNames, Buried), {"if-match-needs-object"}),
    "deletes folders": (lambda: over_one_shelf(DeletesFolders), {"object-and-folder"}),
    "large without conditions": (lambda: over_one_shelf(LargeWithoutConditions), {"large-body"}),
}
"""What is wrong with it -> how to make one, and exactly the laws that it breaks."""
