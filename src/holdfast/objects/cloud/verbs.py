"""What a client can do with one object, each by one request. There are two clients:

* ``direct``   S3 over HTTP on the event loop, for keys that are known: no other thread is involved
* ``sdk``      everything through obstore, which knows all stores and all ways to credentials

Both raise what ``failure`` can read.
"""

from dataclasses import dataclass
from typing import Protocol

from holdfast.objects.store import Mode, NotModified, Version


@dataclass(frozen=True, slots=True)
class Found:
    """``size`` is the whole object's, also where ``body`` is a part of it."""

    body: bytes
    size: int
    modified_ns: int
    version: Version | None


class Verbs(Protocol):
    async def get(self, path: str) -> Found: ...

    async def get_unless(self, path: str, version: Version) -> Found | NotModified: ...

    async def part(self, path: str, start: int, end: int) -> Found: ...

    async def head(self, path: str) -> Found: ...

    async def put(self, path: str, body: bytes, mode: Mode) -> Version | None: ...

    async def delete(self, path: str) -> None: ...

    async def close(self) -> None: ...
