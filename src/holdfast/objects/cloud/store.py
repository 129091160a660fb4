"""The port's verbs on a cloud store. Every verb is one request; nothing is repeated here. What concerns one object goes
through ``verbs``, the rest through obstore. At most ``requests_in_flight`` are under way at once; the others wait for
their turn (``slots``).

A conditional write is a single PUT, whatever its size. A large body without a condition, or under a key that names its
bytes, goes up in parts; an upload that breaks off becomes visible to nobody, and a lifecycle rule of the bucket should
remove what it left (``AbortIncompleteMultipartUpload``).

Listing passes on what obstore gives, which speaks of paths: a foreign key that ends in a slash (a folder marker, made
by a console) appears without it, and one with an empty component makes the listing fail with ``Invalid``.

Errors are those of the port; ``errors`` has the table. A client belongs to the process that made it (``runtime``).
"""

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError

from holdfast.base.aio import map_bounded
from holdfast.base.config import REQUESTS_IN_FLIGHT
from holdfast.base.errors import HoldfastError, Invalid, check
from holdfast.objects.cloud import runtime
from holdfast.objects.cloud.client import connect
from holdfast.objects.cloud.direct import LARGEST_BODY
from holdfast.objects.cloud.errors import explain, is_lost, is_missing
from holdfast.objects.cloud.failure import Failure
from holdfast.objects.cloud.http1 import Broken, Refused
from holdfast.objects.cloud.sdk import Backend, Sdk, nanoseconds
from holdfast.objects.cloud.slots import Slots
from holdfast.objects.cloud.verbs import Found, Verbs
from holdfast.objects.store import (
    OVERWRITE,
    Addressed,
    Entry,
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
    check_key,
    check_prefix,
)
from holdfast.objects.uri import StoreSpec

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore import ObjectMeta

PAGE_SIZE = 1000
"""What S3 and Google's store put on a page, so that a page of ours is a request of theirs."""
LARGE_BYTES = 32 * 1024 * 1024
PART_BYTES = 8 * 1024 * 1024
_PARALLEL_PARTS = 4
_PARALLEL_DELETES = 16

_RAISED = (Broken, Refused, BaseError, OSError)


class CloudStore(Store):
    def __init__(self, target: StoreSpec, *, environ: Mapping[str, str] | None = None) -> None:
        self.target = target
        self._client = client = connect(target, os.environ if environ is None else environ)
        self._place = client.place
        self._slots = Slots(target.number("requests_in_flight", default=REQUESTS_IN_FLIGHT))
        self._root = f"{target.prefix}/" if target.prefix else ""
        self._room = len(self._root.encode())
        self._made_in = os.getpid()

    async def get(self, key: str) -> Object:
        path = self._path(key)
        try:
            async with self._slots.taken():
                found = await self._verbs.get(path)
        except _RAISED as error:
            raise self._trouble(path, error) from None
        return self._object(key, path, found)

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        path = self._path(key)
        try:
            async with self._slots.taken():
                found = await self._verbs.get_unless(path, version)
        except _RAISED as error:
            raise self._trouble(path, error) from None
        return found if isinstance(found, NotModified) else self._object(key, path, found)

    async def head(self, key: str) -> Meta:
        path = self._path(key)
        try:
            async with self._slots.taken():
                found = await self._verbs.head(path)
        except _RAISED as error:
            raise self._trouble(path, error) from None
        return Meta(key, found.size, found.modified_ns, self._version(path, found.version))

    async def range(self, key: str, start: int, end: int) -> Part:
        if start < 0:
            raise Invalid(f"{key}: a range starts at {start}", remedy="count from 0")
        if end > start:
            path = self._path(key)
            try:
                async with self._slots.taken():
                    found = await self._verbs.part(path, start, end)
                return Part(found.body, found.size, self._version(path, found.version))
            except _RAISED as error:
                failure = Failure.read(error)
                if failure.status != 416:
                    raise explain(failure, self._place, path, writing=False) from None
        meta = await self.head(key)
        return Part(b"", meta.size, meta.version)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        path = self._path(key)
        if _in_parts(len(body), mode):
            return await self._put_in_parts(path, body)
        verbs = self._verbs if len(body) <= LARGEST_BODY else self._sdk
        if not self._slots.take_now():  # as ``taken`` does, which costs coroutines
            await self._slots.take()
        try:
            version = await verbs.put(path, body, mode)
        except _RAISED as error:
            failure = Failure.read(error)
            if not isinstance(mode, Overwrite) and is_lost(failure, self._place, mode):
                return Lost()
            raise explain(failure, self._place, path, writing=True) from None
        finally:
            self._slots.give_back()
        return Written(self._version(path, version))

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        """As ``put`` would send it, in parts if it is large; some parts of it are held."""
        path, parallel = self._path(key), min(_PARALLEL_PARTS, self._slots.limit)
        source = pieces()
        held = bytearray()
        async for piece in source:
            held += piece
            if len(held) > LARGE_BYTES:
                break
        if len(held) <= LARGE_BYTES:
            outcome = await self.put(key, bytes(held), OVERWRITE)
            check(isinstance(outcome, Written), f"{key}: an unconditional write was lost")
            return outcome  # type: ignore[return-value]  # checked
        trouble: list[Exception] = []

        async def told() -> AsyncIterator[bytes]:
            """What befalls the source is the caller's to hear, and not as an error of this store."""
            try:
                async for part in _of_parts(held, source):
                    yield part
            except Exception as error:
                trouble.append(error)
                raise

        try:
            async with self._slots.taken(parallel):
                result = await obstore.put_async(
                    self._backend, path, told(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=parallel
                )
        except Exception as error:
            if trouble:
                raise trouble[0] from None
            if isinstance(error, _RAISED):
                raise self._trouble(path, error, writing=True) from None
            raise
        return Written(self._version(path, self._client.versions.of(result)))

    def put_requests(self, size: int, mode: Mode) -> int:
        """A body in parts: the beginning, each part, the end. Azure needs no beginning."""
        if not _in_parts(size, mode):
            return 1
        return -(-size // PART_BYTES) + (1 if self.target.scheme == "az" else 2)

    async def delete(self, key: str) -> None:
        await self._delete(self._path(key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        paths = [self._path(key) for key in keys]
        if not paths:
            return
        if self._client.bulk_delete:
            await self._delete_all(paths)
        else:
            await map_bounded(paths, self._delete, limit=_PARALLEL_DELETES)

    async def close(self) -> None:
        if self._client.direct is not None:
            await self._client.direct.close()

    def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        runtime.stay(self._made_in)
        start = self._root + check_prefix(prefix)
        floor = self._root + _item(after) if after else ""
        return self._folded(start, floor) if delimiter else self._flat(start, floor)

    async def _flat(self, start: str, floor: str) -> AsyncIterator[Page]:
        """Every object whose path begins with ``start`` and is greater than ``floor``."""
        stream = obstore.list(self._backend, start or None, offset=floor or None, chunk_size=PAGE_SIZE)
        empty = True
        while True:
            try:
                async with self._slots.taken():
                    found = await anext(stream)
            except StopAsyncIteration:
                break
            except _RAISED as error:
                raise self._trouble(start, error) from None
            empty = False
            yield Page(tuple(self._entries(found, start, floor)))
        if empty:
            yield Page(())

    async def _folded(self, start: str, floor: str) -> AsyncIterator[Page]:
        """The same, with what lies deeper folded into folders. obstore collects all of it before it answers."""
        try:
            async with self._slots.taken():
                found = await obstore.list_with_delimiter_async(self._backend, start or None)
        except _RAISED as error:
            raise self._trouble(start, error) from None
        cut = len(self._root)
        items: dict[str, Entry | None] = {entry.key: entry for entry in self._entries(found["objects"], start, floor)}
        items.update((f"{path[cut:]}/", None) for path in found["common_prefixes"] if f"{path}/" > floor)
        names = sorted(items)
        for first in range(0, max(len(names), 1), PAGE_SIZE):
            page = names[first : first + PAGE_SIZE]
            yield Page(
                tuple(entry for name in page if (entry := items[name]) is not None),
                tuple(name for name in page if items[name] is None),
            )

    def _entries(self, found: "Sequence[ObjectMeta]", start: str, floor: str) -> Iterator[Entry]:
        cut = len(self._root)
        for meta in found:
            path = meta["path"]
            if path > floor and path.startswith(start):
                yield Entry(path[cut:], meta["size"], nanoseconds(meta["last_modified"]))

    def _object(self, key: str, path: str, found: Found) -> Object:
        return Object(key, found.body, found.modified_ns, self._version(path, found.version))

    async def _put_in_parts(self, path: str, body: bytes) -> Written:
        parallel = min(_PARALLEL_PARTS, self._slots.limit)
        try:
            async with self._slots.taken(parallel):
                result = await obstore.put_async(
                    self._backend,
                    path,
                    body,
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=parallel,
                )
        except _RAISED as error:
            raise self._trouble(path, error, writing=True) from None
        return Written(self._version(path, self._client.versions.of(result)))

    async def _delete(self, path: str) -> None:
        try:
            async with self._slots.taken():
                await self._verbs.delete(path)
        except _RAISED as error:
            failure = Failure.read(error)
            if not is_missing(failure):
                raise explain(failure, self._place, path, writing=True) from None

    async def _delete_all(self, paths: Sequence[str]) -> None:
        """In one request. One missing key among many would hide what befell the others."""
        try:
            async with self._slots.taken():
                await obstore.delete_async(self._backend, paths)
        except _RAISED as error:
            failure = Failure.read(error)
            raise explain(failure, self._place, failure.key or "", writing=True) from None

    def _path(self, key: str) -> str:
        """The key as the bucket has it, if this process may ask for it."""
        runtime.stay(self._made_in)
        return self._root + check_key(key, room=self._room)

    @property
    def _verbs(self) -> Verbs:
        return self._client.direct or self._sdk

    @property
    def _sdk(self) -> Sdk:
        runtime.enter(self._made_in)
        return self._client.sdk

    @property
    def _backend(self) -> Backend:
        runtime.enter(self._made_in)
        return self._client.backend

    def _version(self, path: str, version: Version | None) -> Version:
        if version is None:
            raise Invalid(
                f"{self._place.uri(path)}: {self._place.endpoint} gave no version, or no time, with its answer",
                remedy="run holdfast doctor on this store: the server may lack what Holdfast needs",
            )
        return version

    def _trouble(self, path: str, error: Exception, *, writing: bool = False) -> HoldfastError:
        return explain(Failure.read(error), self._place, path, writing=writing)


async def _of_parts(held: bytearray, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What is held and what follows, in pieces of the size of a part."""
    while len(held) >= PART_BYTES:
        yield bytes(held[:PART_BYTES])
        del held[:PART_BYTES]
    async for piece in pieces:
        held += piece
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
    if held:
        yield bytes(held)


def _in_parts(size: int, mode: Mode) -> bool:
    return size > LARGE_BYTES and isinstance(mode, Overwrite | Addressed)


def _item(name: str) -> str:
    """A key, or a folder with its slash."""
    check_key(name.removesuffix("/"))
    return name
