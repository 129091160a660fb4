"""Client: the store that everything above uses. It validates, counts and retries requests to one backend.

Every request is counted in ``usage``, retries included; a backend sends a request once. The client repeats what is safe
to repeat: reads, listings (resumed after the last item), deletes, unconditional writes, and conditional writes that
certainly had no effect.

The outcome of a conditional write is settled. Its PUT can land while the response is lost, or be delivered twice; the
writer then gets a 412 for its own write. So after every 412, 409 and missing answer, first attempt included, the client
reads the object back:

* the whole body is ours: ``Written`` (control bodies contain a write id, so equal bytes mean the same write);
* the condition still holds: the write has not landed, and is tried again, within the budget;
* anything else: ``Lost``, with the current object.

``Lost`` means that other bytes are there now. If others may overwrite the object, our write may have landed before
theirs: only a history can tell, so ``register`` searches its history for the operation.

Under a key that names its bytes (``Addressed``) a 412 needs no read: the bytes are there, no matter who wrote them. A
409 or a missing answer is settled by existence and length.

If the budget ends while a write may still land, the error is ``Ambiguous``; the outcome is never guessed.

Objects that never change may be answered by a disk cache; see ``cache``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.base.errors import Ambiguous, Contended, Corrupt, Invalid, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.cache import DiskCache
from holdfast.objects.place import Place
from holdfast.objects.retry import Budget, RetryPolicy
from holdfast.objects.store import (
    BULK_DELETE,
    OVERWRITE,
    Addressed,
    Create,
    IfMatch,
    Lost,
    Meta,
    Mode,
    NotModified,
    Object,
    Overwrite,
    Page,
    Part,
    Pieces,
    Store,
    Version,
    Written,
    check_write,
)
from holdfast.objects.uri import StoreSpec

T = TypeVar("T")

DOLLARS_PER_REQUEST = {
    "put": 0.005 / 1000,
    "list": 0.005 / 1000,
    "get": 0.0004 / 1000,
    "head": 0.0004 / 1000,
    "range": 0.0004 / 1000,
    "delete": 0.0,
}
"""S3 standard storage; an estimate for planning, not a bill."""

START_CHECK_PREFIX = "holdfast-start-check-"
"""Prefix of the object that a service writes to check a store when it starts; a random id follows."""


@dataclass
class Tally:
    """Counts of one verb on one key family, and a context manager around one request.

    A request that the store did not serve, or that was cancelled, is an error. A missing object or a condition that
    does not hold is an answer.
    """

    requests: int = 0
    errors: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def __enter__(self) -> "Tally":
        self.requests += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and not issubclass(kind, NotFound):
            self.errors += 1


@dataclass
class Usage:
    """Running totals of one client, or of several that share it: requests, bytes, errors and estimated cost.

    They are kept per verb and key family, which is the first component of the key.
    """

    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)

    def of(self, verb: str, key: str) -> Tally:
        return self.at(verb, "start-check" if key.startswith(START_CHECK_PREFIX) else key.partition("/")[0])

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


class Client(Store):
    def __init__(
        self,
        backend: Store,
        *,
        ambient: Ambient,
        retry: RetryPolicy | None = None,
        usage: Usage | None = None,
        cache: DiskCache | None = None,
        spec: StoreSpec | None = None,
    ) -> None:
        self.backend = backend
        self.ambient = ambient
        self.usage = usage if usage is not None else Usage()
        self.cache = cache
        self._retry = retry if retry is not None else RetryPolicy()
        self._spec = spec

    @property
    def spec(self) -> StoreSpec:
        """The store's address, with which another process can open a client of its own."""
        if self._spec is None:
            raise Invalid("this client was made without an address", remedy="open the store by its URI")
        return self._spec

    @property
    def place(self) -> Place:
        """Where the store is, as its backend resolved it. Clients of one store have equal places."""
        return self.backend.place or Place.of(self.spec)

    def uncached(self) -> "Client":
        """A client of the same store without the disk cache."""
        return Client(self.backend, ambient=self.ambient, retry=self._retry, usage=self.usage, spec=self._spec)

    async def get(self, key: str) -> Object:
        cache = self._cache_for(key)
        return await (self._fetch(key) if cache is None else cache.get(key, self._fetch))

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        return await self._request("get", key, lambda: self.backend.get_unless(key, version))

    async def head(self, key: str) -> Meta:
        return await self._request("head", key, lambda: self.backend.head(key))

    async def range(self, key: str, start: int, end: int) -> Part:
        ask = partial(self._request, "range", key, lambda: self.backend.range(key, start, end))
        cache = self._cache_for(key) if 0 <= start <= end else None
        return await (ask() if cache is None else cache.range(key, start, end, ask))

    async def link(self, key: str, path: Path) -> int | None:
        """A cached object is linked from the cache, and fetched into it first if need be."""
        if (cache := self._cache_for(key)) is not None:
            return await cache.link(key, path, self._fetch)
        size = await self.backend.link(key, path)
        if size is not None:
            with self.usage.of("get", key) as tally:
                tally.received_bytes += size
        return size

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        body = check_write(key, body, mode)
        async with self._changing([key]):
            return await self._put(key, body, mode)

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        async with self._changing([key]):
            return await self._repeat(lambda: self._send_stream(key, pieces))

    def put_requests(self, size: int, mode: Mode) -> int:
        return self.backend.put_requests(size, mode)

    def delete_requests(self, keys: int) -> int:
        return self.backend.delete_requests(keys)

    async def delete(self, key: str) -> None:
        async with self._changing([key]):
            await self._request("delete", key, lambda: self.backend.delete(key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        every = list(keys)
        async with self._changing(every):
            for start in range(0, len(every), BULK_DELETE):
                await self._repeat(partial(self._send_deletes, every[start : start + BULK_DELETE]))

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        budget = self._budget()
        last = after
        while True:
            try:
                async for page in self._pages(prefix, last, delimiter):
                    yield page
                    # A page without items is not progress: a store that fails after one would be retried for ever.
                    if (newest := _last_item(page, last)) != last:
                        last, budget = newest, self._budget()
                return
            except Unavailable:
                if not await budget.another():
                    raise

    async def close(self) -> None:
        await self.backend.close()

    # --- one conditional write ---

    async def _put(self, key: str, body: bytes, mode: Mode) -> Written | Lost:
        """The retry-and-settle loop; see the docstring of the module."""
        started_ns = self.ambient.clock.monotonic_ns()
        budget: Budget | None = None
        may_land = False
        """An attempt of this write may have landed, or may still land."""
        refused = False
        """The store answered 412, although the condition held when the object was read back."""
        while True:
            failure: Unavailable | None = None
            try:
                outcome = await self._send(key, body, mode)
                if isinstance(outcome, Written) or isinstance(mode, Addressed | Overwrite):
                    return outcome
                may_land = True  # the 412 may answer a second delivery of our own write
            except Unavailable as error:
                failure = error
                may_land = may_land or error.maybe_applied or isinstance(error, Contended)
            budget = budget or self._retry.start(self.ambient, started_ns)
            if may_land and not isinstance(mode, Overwrite):
                settled = await self._settle(key, body, mode, budget)
                if settled is not None:
                    return settled
                refused = refused or failure is None
                if not await budget.another():
                    raise _unsettled(key, None if refused else failure)
            elif failure is not None and not await budget.another():
                raise failure

    async def _settle(
        self, key: str, body: bytes, mode: Create | Addressed | IfMatch, budget: Budget
    ) -> Written | Lost | None:
        """Reads the object back to decide whether our write landed; None while the condition still holds."""
        while True:
            try:
                if isinstance(mode, Addressed):
                    return await self._check_size(key, len(body))
                return await self._read_back(key, body, mode)
            except Unavailable as error:
                if not await budget.another():
                    raise _unsettled(key, error) from error

    async def _read_back(self, key: str, body: bytes, mode: Create | IfMatch) -> Written | Lost | None:
        try:
            current = await self._fetch(key)
        except NotFound:
            return None if isinstance(mode, Create) else Lost(None)
        if current.body == body:
            return Written(current.version)
        if isinstance(mode, IfMatch) and current.version == mode.version:
            return None
        return Lost(current)

    async def _check_size(self, key: str, size: int) -> Written | None:
        try:
            found = await self._request("head", key, lambda: self.backend.head(key))
        except NotFound:
            return None
        if found.size != size:
            raise Corrupt(f"{key}: has {found.size} bytes, expected {size}")
        return Written(found.version)

    # --- single requests, counted ---

    async def _send(self, key: str, body: bytes, mode: Mode) -> Written | Lost:
        with self.usage.of("put", key) as tally:
            tally.sent_bytes += len(body)
            tally.requests += self.backend.put_requests(len(body), mode) - 1
            return await self.backend.put(key, body, mode)

    async def _send_stream(self, key: str, pieces: Pieces) -> Written:
        sent = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal sent
            async for piece in pieces():
                sent += len(piece)
                yield piece

        with self.usage.of("put", key) as tally:
            try:
                return await self.backend.put_stream(key, counted)
            finally:
                tally.sent_bytes += sent
                tally.requests += self.backend.put_requests(sent, OVERWRITE) - 1

    async def _send_deletes(self, keys: Sequence[str]) -> None:
        with self.usage.of("delete", keys[0]) as tally:
            tally.requests += self.backend.delete_requests(len(keys)) - 1
            await self.backend.delete_many(keys)

    async def _pages(self, prefix: str, after: str | None, delimiter: bool) -> AsyncIterator[Page]:
        """One listing, one request per page. It is not retried."""
        pages = aiter(self.backend.list(prefix, after=after, delimiter=delimiter))
        tally = self.usage.of("list", prefix)
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

    async def _fetch(self, key: str) -> Object:
        return await self._request("get", key, lambda: self.backend.get(key))

    async def _request(self, verb: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        """A request that is safe to repeat, until it is served."""
        counts = self.usage.of(verb, key)

        async def once() -> T:
            with counts as tally:
                found = await call()
                if isinstance(found, Object | Part):
                    tally.received_bytes += len(found.body)
                return found

        return await self._repeat(once)

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        budget = self._budget()
        while True:
            try:
                return await call()
            except Unavailable:
                if not await budget.another():
                    raise

    def _budget(self) -> Budget:
        return self._retry.start(self.ambient)

    # --- the disk cache ---

    def _cache_for(self, key: str) -> DiskCache | None:
        return self.cache if self.cache is not None and self.cache.covers(key) else None

    def _changing(self, keys: Iterable[str]) -> AbstractAsyncContextManager[None]:
        return self.cache.changing(keys) if self.cache is not None else nullcontext()


def ambient_of(store: Store) -> Ambient:
    """The clock and ids that a store was opened with. ``Invalid`` if it is not a store."""
    if not isinstance(store, Store):
        raise Invalid(
            f"a {type(store).__name__} is not a store",
            remedy="pass hf.store, the store of the Holdfast" if hasattr(store, "store") else "pass a store",
        )
    return store.ambient if isinstance(store, Client) else Ambient.system()


def _last_item(page: Page, before: str | None) -> str | None:
    """The greatest key or folder of ``page``; ``before`` if it has none."""
    items = [entry.key for entry in page.entries[-1:]] + [*page.folders[-1:]]
    return max(items, default=before)


def _unsettled(key: str, failure: Unavailable | None) -> Ambiguous:
    cause = str(failure) if failure is not None else "the store refuses a condition that holds"
    error = Ambiguous(f"{key}: the write may or may not have landed ({cause})")
    error.__cause__ = failure
    return error
