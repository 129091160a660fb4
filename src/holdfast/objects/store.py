"""The port: bytes under keys, with versions. Everything durable in Holdfast is stored through these methods.

Guarantees of every backend, checked by the laws (``conformance``):

* A key's object is replaced whole or not at all, and a read that starts after a write was answered sees it.
* ``put`` with ``CREATE`` or ``IfMatch`` is atomic: of many racing writers one gets ``Written``. A lost race is a value
  (``Lost``), never an exception. (From a ``Client``, writers of equal bytes all get ``Written``.)
* A listing is complete, ordered by the UTF-8 bytes of the key, and includes every write answered before it began.
* A version is opaque: equal versions mean equal bytes, nothing more.

Errors: ``NotFound`` for a missing key on ``get``, ``head`` and ``range``; ``Contended`` for a 409; ``Unavailable`` if
the store did not answer or did not serve the request (``maybe_applied``: a write may have landed); ``Denied``;
``Invalid`` for a key or prefix that breaks the rules below. The port does not interpret bytes.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NewType, Self

from holdfast.base.errors import Invalid, NotFound, check

if TYPE_CHECKING:  # it imports this module
    from holdfast.objects.place import Place

Version = NewType("Version", str)

VERSION_DIGITS = 32
"""Hexadecimal digits of a SHA-256, the fastest cryptographic hash on processors with instructions for it."""

PAGE_SIZE = 1000
"""Items on a page of a listing: what S3 and Google's store return for one request."""

BULK_DELETE = 1000
"""Keys in one DeleteObjects request of S3, and so in one call of a backend's ``delete_many`` by ``Client``."""

NO_SUCH_OBJECT = "check the key and the store's address, or list the keys that exist"
"""Remedy of a ``NotFound``."""

MAX_KEY_BYTES = 1024
"""S3's limit; the prefix in a store's URI counts towards it."""


@dataclass(frozen=True, slots=True)
class Meta:
    """An object without its bytes. ``modified_ns`` is by the store's own clock."""

    key: str
    size: int
    modified_ns: int
    version: Version


@dataclass(frozen=True, slots=True)
class Object:
    key: str
    body: bytes
    modified_ns: int
    version: Version


@dataclass(frozen=True, slots=True)
class Part:
    """A range of an object. Parts with equal ``of`` are ranges of the same bytes."""

    body: bytes
    size: int
    """Size of the whole object."""
    of: str


@dataclass(frozen=True, slots=True)
class NotModified:
    """Answer to a conditional ``get``: the object still has the version that the caller has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object in a listing."""

    key: str
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing; with a delimiter, ``folders`` are the common prefixes, each ending in ``/``."""

    entries: tuple[Entry, ...]
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    version: Version


@dataclass(frozen=True, slots=True)
class Lost:
    """The condition did not hold. ``current`` is the current object, if it was read."""

    current: Object | None = None


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Unconditional: for objects with one writer, or that any writer may replace."""


@dataclass(frozen=True, slots=True)
class Create:
    """Only if no object has this key."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """Only if absent, under a key that names its bytes (a hash): an existing object is as good as a new one."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Only if the object has this version. A missing object is a lost race."""

    version: Version


Mode = Overwrite | Create | Addressed | IfMatch

Pieces = Callable[[], AsyncIterator[bytes]]
"""A body in pieces. Each call begins with the first piece, because a write may be retried."""

OVERWRITE = Overwrite()
CREATE = Create()
ADDRESSED = Addressed()


class Store(ABC):
    """Objects under one prefix."""

    @property
    def place(self) -> "Place | None":
        """The place of a backend with a server, which may be named by the environment; None for the others."""
        return None

    @abstractmethod
    async def get(self, key: str) -> Object: ...

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        """The object, or ``NotModified`` if it still has this version; most servers then send no bytes."""
        found = await self.get(key)
        return NotModified() if found.version == version else found

    @abstractmethod
    async def head(self, key: str) -> Meta: ...

    @abstractmethod
    async def range(self, key: str, start: int, end: int) -> Part:
        """Bytes ``start`` to ``end`` (exclusive), cut at the object's end; empty if they are past the end."""

    async def link(self, key: str, path: Path) -> int | None:
        """Make ``path`` a hard link to the object's file, and return its size; None if that is not possible.

        The bytes under ``path`` never change, and the caller must not change them.
        """
        return None

    @abstractmethod
    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost: ...

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        """Overwrite the object with a body that need not fit into memory. For keys with one writer.

        The object appears whole or not at all.
        """
        outcome = await self.put(key, b"".join([piece async for piece in pieces()]), OVERWRITE)
        check(isinstance(outcome, Written), f"{key}: an unconditional write was lost")
        return outcome  # type: ignore[return-value]  # checked

    def put_requests(self, size: int, mode: Mode) -> int:
        """How many requests a ``put`` of ``size`` bytes sends: more than one if large bodies are sent in parts."""
        return 1

    def delete_requests(self, keys: int) -> int:
        """How many requests a ``delete_many`` of this many keys sends."""
        return keys

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Afterwards the key is free. Deleting a missing key is not an error."""

    @abstractmethod
    async def delete_many(self, keys: Iterable[str]) -> None: ...

    @abstractmethod
    def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        """Pages of the objects under ``prefix`` (empty, or ending in ``/``), in key order.

        ``after`` leaves out everything up to and including that key (or folder, with ``delimiter``). With ``delimiter``
        deeper objects are represented by ``folders``. There is at least one page, which may be empty.
        """

    async def close(self) -> None:  # noqa: B027  # most stores hold nothing open
        """Release what the store holds open. Idempotent."""

    async def find(self, key: str) -> Object | None:
        """Like ``get``, but None if the object does not exist."""
        try:
            return await self.get(key)
        except NotFound:
            return None

    async def keys(self, prefix: str = "", *, after: str | None = None) -> AsyncIterator[str]:
        """Every key under ``prefix``, in order."""
        async for page in self.list(prefix, after=after):
            for entry in page.entries:
                yield entry.key

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# Control characters, lone surrogates, and the two code points of Unicode that XML, and so an S3 listing, cannot carry.
_FORBIDDEN = "\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff"
_KEY = re.compile(rf"(?!\.{{1,2}}(?:/|\Z))[^/{_FORBIDDEN}]+(?:/(?!\.{{1,2}}(?:/|\Z))[^/{_FORBIDDEN}]+)*")


def check_key(key: str, *, prefix_bytes: int = 0) -> str:
    """The key, if every backend can store it. ``prefix_bytes`` is the size of the store's prefix."""
    if _is_valid(key, prefix_bytes):
        return key
    raise _key_error(key, prefix_bytes)


@lru_cache(maxsize=1024)
def _is_valid(key: str, prefix_bytes: int) -> bool:
    """Cached, because a few keys are written often."""
    return _KEY.fullmatch(key) is not None and len(key.encode()) + prefix_bytes <= MAX_KEY_BYTES


def _key_error(key: str, prefix_bytes: int) -> Invalid:
    size = len(key.encode("utf-8", "surrogatepass"))
    if not key or size + prefix_bytes > MAX_KEY_BYTES:
        return Invalid(
            f"key {_short(key)} has {size} bytes; 1 to {MAX_KEY_BYTES - prefix_bytes} are allowed here",
            remedy="use a shorter key, or a shorter prefix in the store's URI" if key else "give the object a name",
        )
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return Invalid(f"key {_short(key)} has a component {part!r}", remedy="use non-empty names between slashes")
    return Invalid(
        f"key {_short(key)} has a control character, a lone surrogate, U+FFFE or U+FFFF", remedy="use other characters"
    )


def check_write(key: str, body: object, mode: object) -> bytes:
    """The bytes to write, if body and mode have the right types."""
    if not isinstance(mode, Overwrite | Create | Addressed | IfMatch):
        raise Invalid(
            f"{_short(key)}: {mode!r} is not a mode of writing",
            remedy="use OVERWRITE, CREATE, ADDRESSED or IfMatch(version)",
        )
    if isinstance(mode, IfMatch) and not isinstance(mode.version, str):
        raise Invalid(
            f"{_short(key)}: {mode.version!r} is not a version", remedy="use the version that a read or write returned"
        )
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise Invalid(f"{_short(key)}: the body is {type(body).__name__}, not bytes", remedy="encode text with .encode()")


def content_version(body: bytes) -> Version:
    """A version for backends without versions: equal bytes have equal versions, as with most ETags."""
    return Version(hashlib.sha256(body).hexdigest()[:VERSION_DIGITS])


def check_prefix(prefix: str) -> str:
    """The listing prefix, which is empty or ends in a slash: ``a/`` never means ``ab/``."""
    if prefix == "":
        return prefix
    if not prefix.endswith("/"):
        raise Invalid(f"prefix {_short(prefix)} does not end in a slash", remedy=f"list {prefix + '/'!r}")
    check_key(prefix[:-1])
    return prefix


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else shown[:100] + "..." + shown[-15:]
