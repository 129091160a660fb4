"""One object at a time through obstore: all three kinds of stores, and every way to credentials."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import NotModifiedError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.objects.cloud.verbs import Found
from holdfast.objects.cloud.versions import Versions
from holdfast.objects.store import IfMatch, Mode, NotModified, Overwrite, Version

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore import ObjectMeta, PutMode

Backend = S3Store | GCSStore | AzureStore

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Sdk:
    def __init__(self, backend: Backend, versions: Versions) -> None:
        self._backend = backend
        self._versions = versions

    async def get(self, path: str) -> Found:
        answer = await obstore.get_async(self._backend, path)
        return self._found(answer.meta, (await answer.bytes_async()).to_bytes())

    async def get_unless(self, path: str, version: Version) -> Found | NotModified:
        try:
            answer = await obstore.get_async(self._backend, path, options=self._versions.unless(version))
        except NotModifiedError:
            return NotModified()
        if self._versions.of(answer.meta) == version:
            return NotModified()
        return self._found(answer.meta, (await answer.bytes_async()).to_bytes())

    async def part(self, path: str, start: int, end: int) -> Found:
        answer = await obstore.get_async(self._backend, path, options={"range": (start, end)})
        return self._found(answer.meta, (await answer.bytes_async()).to_bytes())

    async def head(self, path: str) -> Found:
        return self._found(await obstore.head_async(self._backend, path))

    async def put(self, path: str, body: bytes, mode: Mode) -> Version | None:
        condition: PutMode
        if isinstance(mode, IfMatch):
            condition = self._versions.condition(mode.version)
        else:
            condition = "overwrite" if isinstance(mode, Overwrite) else "create"
        result = await obstore.put_async(self._backend, path, body, mode=condition, use_multipart=False)
        return self._versions.of(result)

    async def delete(self, path: str) -> None:
        await obstore.delete_async(self._backend, path)

    async def close(self) -> None:
        """obstore closes by itself."""

    def _found(self, meta: "ObjectMeta", body: bytes = b"") -> Found:
        return Found(body, meta["size"], nanoseconds(meta["last_modified"]), self._versions.of(meta))


def nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND * 1000
