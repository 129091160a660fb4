"""Requests, bytes and estimated cost, counted where they happen: right above the backend, every retry included.

Counters are kept per verb and key family. A family is the part of a key that does not grow with the data: its first
component, or what the caller's ``family`` function says.

An error is a request that the store did not serve, or that was given up. That an object is not there, or that a
condition does not hold, is an answer.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import NotFound
from holdfast.objects.layer import Layer
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

DOLLARS_PER_REQUEST = {
    "put": 0.005 / 1000,
    "list": 0.005 / 1000,
    "get": 0.0004 / 1000,
    "head": 0.0004 / 1000,
    "range": 0.0004 / 1000,
    "delete": 0.0,
}
"""S3 standard storage; an estimate for planning, not a bill."""

BULK_DELETE = 1000
"""Keys per bulk delete request."""


@dataclass
class Tally:
    """What one verb did to one key family."""

    requests: int = 0
    errors: int = 0
    """Requests that were not served; see above."""
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass
class Usage:
    """Running totals of one store. Read them, print them, subtract two snapshots."""

    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)

    def at(self, verb: str, family: str) -> Tally:
        tally = self.tallies.get((verb, family))
        if tally is None:
            tally = self.tallies[verb, family] = Tally()
        return tally

    def requests(self, verb: str | None = None, family: str | None = None) -> int:
        return sum(
            tally.requests
            for (its_verb, its_family), tally in self.tallies.items()
            if verb in (None, its_verb) and family in (None, its_family)
        )

    @property
    def by_verb(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for (verb, _), tally in self.tallies.items():
            totals[verb] = totals.get(verb, 0) + tally.requests
        return totals

    @property
    def dollars(self) -> float:
        return sum(DOLLARS_PER_REQUEST[verb] * tally.requests for (verb, _), tally in self.tallies.items())

    def rows(self) -> list[dict[str, str | int | float]]:
        """One row per verb and family, for tables and JSON."""
        return [
            {
                "verb": verb,
                "family": family,
                "requests": tally.requests,
                "errors": tally.errors,
                "sent_bytes": tally.sent_bytes,
                "received_bytes": tally.received_bytes,
                "dollars": DOLLARS_PER_REQUEST[verb] * tally.requests,
            }
            for (verb, family), tally in sorted(self.tallies.items())
        ]


START_CHECK_PREFIX = "holdfast-start-check-"
"""Of the one object by which a service tries a store before it serves; the rest of its name is drawn each time."""


def first_component(key: str) -> str:
    return "start-check" if key.startswith(START_CHECK_PREFIX) else key.partition("/")[0]


class Observed(Layer):
    def __init__(self, inner: Store, usage: Usage, family: Callable[[str], str] = first_component) -> None:
        super().__init__(inner)
        self.usage = usage
        self._family = family

    async def get(self, key: str) -> Object:
        with self._counted("get", key) as tally:
            found = await self.inner.get(key)
            tally.received_bytes += len(found.body)
            return found

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        with self._counted("get", key) as tally:
            found = await self.inner.get_unless(key, version)
            if isinstance(found, Object):
                tally.received_bytes += len(found.body)
            return found

    async def head(self, key: str) -> Meta:
        with self._counted("head", key):
            return await self.inner.head(key)

    async def range(self, key: str, start: int, end: int) -> Part:
        with self._counted("range", key) as tally:
            found = await self.inner.range(key, start, end)
            tally.received_bytes += len(found.body)
            return found

    async def link(self, key: str, path: Path) -> int | None:
        size = await self.inner.link(key, path)
        if size is not None:
            with self._counted("get", key) as tally:
                tally.received_bytes += size
        return size

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        size, tally = len(body), self.usage.at("put", self._family(key))
        tally.sent_bytes += size
        tally.requests += self.inner.put_requests(size, mode)
        try:
            return await self.inner.put(key, body, mode)
        except BaseException:
            tally.errors += 1
            raise

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        sent = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal sent
            async for piece in pieces():
                sent += len(piece)
                yield piece

        with self._counted("put", key) as tally:
            try:
                return await self.inner.put_stream(key, counted)
            finally:
                tally.sent_bytes += sent
                tally.requests += self.inner.put_requests(sent, OVERWRITE) - 1

    async def delete(self, key: str) -> None:
        with self._counted("delete", key):
            await self.inner.delete(key)

    async def delete_many(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        for start in range(0, len(wanted), BULK_DELETE):
            part = wanted[start : start + BULK_DELETE]
            with self._counted("delete", part[0]) as tally:
                tally.requests += self.inner.delete_requests(len(part)) - 1
                await self.inner.delete_many(part)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        pages = self.inner.list(prefix, after=after, delimiter=delimiter).__aiter__()
        tally = self.usage.at("list", self._family(prefix))
        while True:
            try:
                page = await anext(pages)
            except StopAsyncIteration:
                return
            except BaseException:
                tally.requests += 1
                tally.errors += 1
                raise
            tally.requests += 1
            yield page

    def _counted(self, verb: str, key: str) -> "_Counted":
        return _Counted(self.usage.at(verb, self._family(key)))


class _Counted:
    """Counts one request on entry, and a failure on the way out. Cheaper than a generator on the hot path."""

    __slots__ = ("_tally",)

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def __enter__(self) -> Tally:
        self._tally.requests += 1
        return self._tally

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and not issubclass(kind, NotFound):
            self._tally.errors += 1
