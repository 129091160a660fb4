"""The port on a cloud store. Each verb is one request of obstore, which is not retried here.

A conditional write of any size is a single PUT. A large body without a condition, or under a key that names its
bytes, is uploaded in parts; an interrupted upload never becomes visible, and a lifecycle rule of the bucket should
remove its parts (``AbortIncompleteMultipartUpload``).

At most ``requests_in_flight`` requests are sent at once, parts of uploads included; the others wait.

obstore treats keys as paths: a listing shows a foreign key that ends in a slash (a folder marker, made by a console)
without it, and fails with ``Invalid`` at a key with an empty component.

obstore follows a redirect of a read, and a 303 of a write; other redirects of a write are ``Invalid``.

Errors are those of the port; ``errors`` has the table. A client belongs to the process that made it (``runtime``).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import obstore
from obstore.exceptions import NotModifiedError

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Invalid, Unavailable, check
from holdfast.objects.cloud.config import connect
from holdfast.objects.cloud.errors import RAISED, Bucket, Failure, explain, is_lost, is_missing
from holdfast.objects.cloud.runtime import check_process
from holdfast.objects.place import Place
from holdfast.objects.store import (
    BULK_DELETE,
    OVERWRITE,
    PAGE_SIZE,
    Addressed,
    Entry,
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
    check_key,
    check_prefix,
)
from holdfast.objects.uri import StoreSpec

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore import GetOptions, GetResult, ObjectMeta, PutMode, PutResult

LARGE_BYTES = 32 * 1024 * 1024
PART_BYTES = 8 * 1024 * 1024
_PARALLEL_PARTS = 4
_PARALLEL_DELETES = 16

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class CloudStore(Store):
    def __init__(self, spec: StoreSpec, *, environ: Mapping[str, str] | None = None) -> None:
        connection = connect(spec, os.environ if environ is None else environ)
        self._backend = connection.backend
        self._bucket = connection.bucket
        self._place = connection.place
        self._unquoted_if_match = connection.unquoted_if_match
        self._bulk_delete = connection.bulk_delete
        self._limit = connection.requests_in_flight
        self._permits: WeakKeyDictionary[asyncio.AbstractEventLoop, _Permits] = WeakKeyDictionary()
        self._root = f"{spec.prefix}/" if spec.prefix else ""
        self._root_bytes = len(self._root.encode())
        self._made_in = os.getpid()
        if spec.scheme == "az" and "\\" in self._root:
            raise _backslash(self._root)

    @property
    def place(self) -> Place:
        return self._place

    async def get(self, key: str) -> Object:
        path = self._path(key)
        async with self._request(path):
            return await self._object(key, await obstore.get_async(self._backend, path))

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        """One request. Google's store has no such condition on ETags: there the body is left unread instead."""
        path = self._path(key)
        options: GetOptions = {} if self._bucket.scheme == "gs" else {"if_none_match": _sendable(version)}
        async with self._request(path):
            try:
                answer = await obstore.get_async(self._backend, path, options=options)
            except NotModifiedError:
                return NotModified()
            if self._version(path, answer.meta) == version:
                return NotModified()
            return await self._object(key, answer)

    async def head(self, key: str) -> Meta:
        path = self._path(key)
        async with self._request(path):
            meta = await obstore.head_async(self._backend, path)
        return Meta(key, meta["size"], _nanoseconds(meta["last_modified"]), self._version(path, meta))

    async def range(self, key: str, start: int, end: int) -> Part:
        if start < 0:
            raise Invalid(f"{key}: a range starts at {start}", remedy="count from 0")
        part = await self._part(self._path(key), start, end) if end > start else None
        if part is not None:
            return part
        meta = await self.head(key)
        return Part(b"", meta.size, meta.version)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        path = self._path(key)
        if _is_multipart(len(body), mode):
            return await self._upload(path, body)
        async with self._request(path, writing=True):
            try:
                result = await obstore.put_async(
                    self._backend, path, body, mode=self._condition(mode), use_multipart=False
                )
            except RAISED as error:
                if isinstance(mode, Overwrite) or not is_lost(Failure.read(error), self._bucket, mode):
                    raise
                return Lost()
        return Written(self._version(path, result, writing=True))

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        """Sent like the body of a ``put``: in parts if it is large, of which a few are in memory at once."""
        path = self._path(key)
        source = pieces()
        start = bytearray()
        async for piece in source:
            start += piece
            if len(start) > LARGE_BYTES:
                break
        if len(start) <= LARGE_BYTES:
            outcome = await self.put(key, bytes(start), OVERWRITE)
            check(isinstance(outcome, Written), f"{key}: an unconditional write was lost")
            return outcome  # type: ignore[return-value]  # checked
        source_errors: list[Exception] = []

        async def body() -> AsyncIterator[bytes]:
            yield bytes(start)
            try:
                async for piece in source:
                    yield piece
            except Exception as error:
                source_errors.append(error)
                raise

        try:
            return await self._upload(path, body())
        except Exception:
            if source_errors:  # re-raised unchanged, and not reported as an error of the store
                raise source_errors[0] from None
            raise

    def put_requests(self, size: int, mode: Mode) -> int:
        """An upload in parts: its start, each part, its end. Azure needs no start."""
        if not _is_multipart(size, mode):
            return 1
        return -(-size // PART_BYTES) + (1 if self._bucket.scheme == "az" else 2)

    def delete_requests(self, keys: int) -> int:
        """One for a thousand keys where the server has bulk deletes, otherwise one for each key."""
        return -(-keys // BULK_DELETE) if self._bulk_delete else keys

    async def delete(self, key: str) -> None:
        await self._delete(self._path(key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        paths = [self._path(key) for key in keys]
        if not self._bulk_delete:
            # Azure's batches and Google's store report a missing key as an error that hides those of the other keys.
            await map_bounded(paths, self._delete, limit=_PARALLEL_DELETES)
            return
        async with self._request("", writing=True):
            await obstore.delete_async(self._backend, paths)

    def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        check_process(self._made_in)
        start = self._root + check_prefix(prefix)
        floor = self._root + _key_or_folder(after) if after else ""
        return self._folded(start, floor) if delimiter else self._flat(start, floor)

    async def _flat(self, start: str, floor: str) -> AsyncIterator[Page]:
        """Every object whose path begins with ``start`` and is greater than ``floor``."""
        stream = obstore.list(self._backend, start or None, offset=floor or None, chunk_size=PAGE_SIZE)
        empty = True
        while True:
            async with self._request(start):
                found = await anext(stream, None)
            if found is None:
                break
            empty = False
            yield Page(tuple(self._entries(found, start, floor)))
        if empty:
            yield Page(())

    async def _folded(self, start: str, floor: str) -> AsyncIterator[Page]:
        """The same, with folders in place of deeper keys. obstore collects all of it before it returns."""
        async with self._request(start):
            found = await obstore.list_with_delimiter_async(self._backend, start or None)
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
                yield Entry(path[cut:], meta["size"], _nanoseconds(meta["last_modified"]))

    async def _object(self, key: str, answer: "GetResult") -> Object:
        meta = answer.meta
        body = (await answer.bytes_async()).to_bytes()
        return Object(key, body, _nanoseconds(meta["last_modified"]), self._version(meta["path"], meta))

    async def _part(self, path: str, start: int, end: int) -> Part | None:
        """None if the object ends at ``start`` or before it."""
        async with self._request(path):
            try:
                answer = await obstore.get_async(self._backend, path, options={"range": (start, end)})
                body = (await answer.bytes_async()).to_bytes()
            except RAISED as error:
                if Failure.read(error).status != 416:
                    raise
                return None
        size = answer.meta["size"]
        if len(body) != min(end, size) - start:
            raise Unavailable(f"{self._bucket.uri(path)}: {self._bucket.endpoint} returned another range")
        return Part(body, size, self._version(path, answer.meta))

    async def _upload(self, path: str, body: bytes | AsyncIterator[bytes]) -> Written:
        """In parts, several at once, each with a permit of its own."""
        permits, parallel = self._loop_permits(), min(_PARALLEL_PARTS, self._limit)
        async with AsyncExitStack() as permits_taken:
            async with permits.collecting:
                for _ in range(parallel - 1):
                    await permits_taken.enter_async_context(permits.requests)
                await permits_taken.enter_async_context(self._request(path, writing=True))
            result = await obstore.put_async(
                self._backend, path, body, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=parallel
            )
        return Written(self._version(path, result, writing=True))

    async def _delete(self, path: str) -> None:
        async with self._request(path, writing=True):
            try:
                await obstore.delete_async(self._backend, path)
            except RAISED as error:
                if not is_missing(Failure.read(error)):
                    raise

    def _request(self, path: str, *, writing: bool = False) -> "_Request":
        return _Request(self._loop_permits().requests, self._bucket, path, writing=writing)

    def _loop_permits(self) -> "_Permits":
        """The permits of the running event loop. A store may be used in several loops, a semaphore only in one."""
        loop = asyncio.get_running_loop()
        permits = self._permits.get(loop)
        if permits is None:
            permits = self._permits[loop] = _Permits(asyncio.Semaphore(self._limit), asyncio.Lock())
        return permits

    def _path(self, key: str) -> str:
        """The key in the bucket."""
        check_process(self._made_in)
        if self._bucket.scheme == "az" and "\\" in key:
            raise _backslash(key)
        return self._root + check_key(key, prefix_bytes=self._root_bytes)

    def _condition(self, mode: Mode) -> "PutMode":
        if isinstance(mode, Overwrite):
            return "overwrite"
        if not isinstance(mode, IfMatch):
            return "create"
        version = _sendable(mode.version)
        if self._bucket.scheme == "gs":
            return {"version": version}
        return {"e_tag": version.strip('"') if self._unquoted_if_match else version}

    def _version(self, path: str, found: "ObjectMeta | PutResult", *, writing: bool = False) -> Version:
        """The value that the store compares in conditions, unchanged: an ETag, or the generation on Google's store."""
        version = found["version"] if self._bucket.scheme == "gs" else found["e_tag"]
        if version is not None:
            return Version(version)
        what = f"{self._bucket.uri(path)}: {self._bucket.endpoint} returned no version of the object"
        remedy = "run holdfast doctor on this store: the server may lack what Holdfast needs"
        raise Unavailable(what, maybe_applied=True, remedy=remedy) if writing else Invalid(what, remedy=remedy)


@dataclass(frozen=True, slots=True)
class _Permits:
    """Permits for requests. An upload holds ``collecting`` while it takes several: two could wait for each other."""

    requests: asyncio.Semaphore
    collecting: asyncio.Lock


class _Request:
    """Waits for a permit, and turns exceptions of obstore into errors of the port. Cheaper than a generator."""

    __slots__ = ("_bucket", "_path", "_permits", "_writing")

    def __init__(self, permits: asyncio.Semaphore, bucket: Bucket, path: str, *, writing: bool) -> None:
        self._permits = permits
        self._bucket = bucket
        self._path = path
        self._writing = writing

    async def __aenter__(self) -> None:
        await self._permits.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._permits.release()
        if isinstance(error, RAISED):
            failure = Failure.read(error)
            raise explain(failure, self._bucket, failure.key or self._path, writing=self._writing) from None


def _is_multipart(size: int, mode: Mode) -> bool:
    return size > LARGE_BYTES and isinstance(mode, Overwrite | Addressed)


def _key_or_folder(name: str) -> str:
    check_key(name.removesuffix("/"))
    return name


def _sendable(version: Version) -> str:
    if version.isascii() and version.isprintable():
        return version
    raise Invalid(f"{version!r} is not a version", remedy="use the version that a read or write returned")


def _backslash(key: str) -> Invalid:
    return Invalid(
        f"key {key!r} contains a backslash, which Azure stores as a slash", remedy="use another character in its place"
    )


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1000
