"""S3 over HTTP on the event loop, for keys that are known: a request costs no other thread, and no hand-over to one.

Every verb is one request, which is never repeated and follows no redirect. Bodies above ``LARGEST_BODY`` are better
hashed and encrypted elsewhere (``sdk``), while the loop goes on.
"""

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import SplitResult, quote

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Invalid
from holdfast.objects.cloud.ahead import Ready
from holdfast.objects.cloud.credentials import Environ, Keys, Unsigned
from holdfast.objects.cloud.http1 import Answer, Broken, Connection, Refused
from holdfast.objects.cloud.pool import Pool, Server
from holdfast.objects.cloud.sigv4 import Signer
from holdfast.objects.cloud.verbs import Found
from holdfast.objects.store import CREATE, Addressed, Create, IfMatch, Mode, NotModified, Overwrite, Version

LARGEST_BODY = 1024 * 1024

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.~/-]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bucket:
    """Where requests go, and what goes with every write. ``address`` has the bucket in its host or else ``path``."""

    address: SplitResult
    path: str
    region: str
    unquoted_if_match: bool
    encryption: tuple[tuple[str, str], ...]
    connect_seconds: float
    request_seconds: float


def is_straight(environ: Environ) -> bool:
    """Whether nothing stands between: a proxy is obstore's to deal with."""
    return not any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES)


class Direct:
    def __init__(self, bucket: Bucket, credentials: Keys | Unsigned) -> None:
        parts = bucket.address
        host, port = parts.hostname or "", parts.port
        tls = parts.scheme == "https"
        shown = f"[{host}]" if ":" in host else host
        if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
            shown = f"{shown}:{port}"
        self._bucket = bucket
        self._base = f"{parts.path.rstrip('/')}{bucket.path}/"
        self._unsigned = {"host": shown}
        keys = credentials if isinstance(credentials, Keys) else None
        clock = SystemClock()
        self._signer = Signer(keys, bucket.region, shown, clock) if keys else None
        self._pool = Pool(
            Server(host, port or _DEFAULT_PORTS[parts.scheme], tls, bucket.connect_seconds, bucket.request_seconds)
        )
        self._ready = Ready(self._pool, self._create, clock)

    async def get(self, path: str) -> Found:
        answer = await self._ask("GET", path, {})
        if answer.status != 200:
            raise Refused(answer)
        return _found(_whole(answer), len(answer.body))

    async def get_unless(self, path: str, version: Version) -> Found | NotModified:
        answer = await self._ask("GET", path, {"if-none-match": _sendable(version)})
        if answer.status == 304:
            return NotModified()
        if answer.status != 200:
            raise Refused(answer)
        found = _found(_whole(answer), len(answer.body))
        return NotModified() if found.version == version else found

    async def part(self, path: str, start: int, end: int) -> Found:
        answer = await self._ask("GET", path, {"range": f"bytes={start}-{end - 1}"})
        if answer.status == 200:  # a server that knows no ranges
            return Found(_whole(answer).body[start:end], len(answer.body), 0, _version(answer))
        if answer.status != 206:
            raise Refused(answer)
        size = _size_of_all(answer, start, end)
        return Found(answer.body, size, 0, _version(answer))

    async def head(self, path: str) -> Found:
        answer = await self._ask("HEAD", path, {})
        size = _number(answer.headers.get("content-length", ""))
        if answer.status != 200 or size is None:
            raise Refused(answer)
        return _found(answer, size)

    async def put(self, path: str, body: bytes, mode: Mode) -> Version | None:
        begun = self._ready.taken(path, body) if isinstance(mode, Create | Addressed) else None
        if isinstance(begun, Connection):
            answer = await self._pool.answer(begun)
        else:
            answer = await self._pool.ask(begun or self._head("PUT", path, self._conditions(mode), body), body)
        if not 200 <= answer.status < 300:
            raise Refused(answer)
        if (version_written := _version(answer)) is None:
            raise Broken("the answer has no version", sent=True)
        return version_written

    def ahead(self, path: str, body: bytes, mode: Create | Addressed) -> AbstractContextManager[None]:
        return self._ready.ahead(path, body, mode)

    def _create(self, path: str, body: bytes) -> bytes:
        return self._head("PUT", path, self._conditions(CREATE), body)

    def _conditions(self, mode: Mode) -> dict[str, str]:
        headers = dict(self._bucket.encryption)
        if isinstance(mode, IfMatch):
            version = _sendable(mode.version)
            headers["if-match"] = version.strip('"') if self._bucket.unquoted_if_match else version
        elif not isinstance(mode, Overwrite):
            headers["if-none-match"] = "*"
        return headers

    async def delete(self, path: str) -> None:
        answer = await self._ask("DELETE", path, {})
        if not 200 <= answer.status < 300:
            raise Refused(answer)

    async def close(self) -> None:
        await self._pool.close()

    async def _ask(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        return await self._pool.ask(self._head(method, path, headers), bodiless=method == "HEAD")

    def _head(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        target = self._base + _UNSAFE.sub(_quoted, path)
        if self._signer is not None:
            headers = self._signer.signed(method, target, headers, body)
        else:
            headers = {**headers, **self._unsigned}
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        length = f"content-length: {len(body)}\r\n" if method == "PUT" else ""
        return f"{method} {target} HTTP/1.1\r\n{lines}{length}user-agent: holdfast\r\n\r\n".encode("ascii")


@lru_cache(maxsize=256)
def _quoted_text(text: str) -> str:
    return quote(text)


def _quoted(found: re.Match[str]) -> str:
    return _quoted_text(found[0])


def _sendable(version: Version) -> str:
    if version.isascii() and version.isprintable():
        return version
    raise Invalid(f"{version!r} is no version", remedy="use the version that a read or write gave")


def _whole(answer: Answer) -> Answer:
    if answer.cut_anywhere:
        raise Broken("the answer does not say where it ends, so it may be cut off", sent=True)
    return answer


def _version(answer: Answer) -> Version | None:
    etag = answer.headers.get("etag")
    return Version(etag) if etag else None


def _found(answer: Answer, size: int) -> Found:
    """Without a time an object is as little known as without a version: how old it is decides whether it may go."""
    moment = answer.headers.get("last-modified")
    if moment is None:
        return Found(answer.body, size, 0, None)
    return Found(answer.body, size, _nanoseconds(moment), _version(answer))


@lru_cache(maxsize=256)
def _nanoseconds(moment: str) -> int:
    try:
        return int((parsedate_to_datetime(moment) - _EPOCH).total_seconds()) * 1_000_000_000
    except (ValueError, TypeError, OverflowError):
        raise Broken(f"the answer has a time that cannot be read: {moment!r}", sent=True) from None


def _size_of_all(answer: Answer, start: int, end: int) -> int:
    """The size of the object that ``answer`` has the wanted range of."""
    span, _, of = answer.headers.get("content-range", "").removeprefix("bytes ").partition("/")
    size = _number(of)
    last = min(end, size or 0)
    if size is None or span != f"{start}-{last - 1}" or len(answer.body) != last - start:
        raise Broken("the answer is another range than was asked for", sent=True)
    return size


def _number(digits: str) -> int | None:
    return int(digits) if digits.isdecimal() and len(digits) < 20 else None
