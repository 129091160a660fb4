"""The short way of a small request: a head that is plain in every respect, for one path, read without a parser.

Most of what a collector hears are batches of a few kilobytes, and a general parser takes as long for the head of one as
the rest takes for the batch. ``plain_head`` knows one method, one path, one version, and heads that came whole and mean
one thing only. Everything else, and whatever is doubtful, is ``None``: then the parser decides, and refuses what is to
be refused. So nothing is accepted here that it would not accept, and nothing is refused here at all.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus

from starlette.requests import ClientDisconnect

MOST_HEAD = 4 << 10
MOST_BODY = 64 << 10
"""What may wait in memory before anybody asks for it; the parser's own bound."""

_END = b"\r\n\r\n"
_LINES = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)+")
_NOT_PLAIN = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"forwarded"))

Body = bytes | AsyncIterator[bytes]
"""All of it, or as it comes."""
Answered = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    path: bytes
    answer: Callable[[dict[str, str], Body, tuple[str, int] | None], Awaitable[Answered]]
    """From headers, body and peer to an answer. It raises nothing."""


@dataclass(frozen=True, slots=True)
class Head:
    headers: dict[str, str]
    length: int
    """Of the body."""
    size: int
    """Of the head."""


def plain_head(data: bytes, path: bytes) -> Head | None:
    """The head at the beginning of ``data``, if it is all there and there is no doubt about it."""
    end = data.find(_END, 0, MOST_HEAD)
    first = b"POST " + path + b" HTTP/1.1\r\n"
    if end < 0 or not data.startswith(first):
        return None
    lines = data[len(first) : end + 2]
    if _LINES.fullmatch(lines) is None:
        return None
    headers: dict[str, str] = {}
    for line in lines[:-2].split(b"\r\n"):
        name, _, value = line.partition(b":")
        lower = name.lower()
        if lower in _NOT_PLAIN or lower.startswith(b"x-forwarded-"):
            return None
        headers[lower.decode("latin-1")] = value.strip(b" \t").decode("latin-1")
    length = headers.get("content-length", "")
    alone = len(headers) == lines.count(b"\r\n")  # none is there twice
    if not alone or "host" not in headers or headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    if not (length.isascii() and length.isdigit() and len(length) <= 6 and int(length) <= MOST_BODY):
        return None
    return Head(headers, int(length), end + len(_END))


class Cycle:
    """One request on the short way. The names are those by which uvicorn knows a request that is under way."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.message_event = asyncio.Event()
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False
        self._parts: list[bytes] = []
        self.missing = head.length

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the body; the rest is returned."""
        mine = data[: self.missing] if len(data) > self.missing else data
        self.missing -= len(mine)
        if mine and not self.response_complete:  # who has answered already does not want the rest
            self._parts.append(mine)
        self.message_event.set()
        return data[len(mine) :]

    def body(self) -> Body:
        return self._coming() if self.missing else b"".join(self._parts)

    async def _coming(self) -> AsyncIterator[bytes]:
        while True:
            parts, self._parts = self._parts, []
            for part in parts:
                yield part
            if not self.missing and not self._parts:
                return
            if self.disconnected:
                raise ClientDisconnect
            self.message_event.clear()
            if not self._parts:
                await self.message_event.wait()


def response(answered: Answered, defaults: list[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """An answer as bytes."""
    status, headers, body = answered
    lines = [f"HTTP/1.1 {phrased(status)}\r\n".encode()]
    lines += [b"%s: %s\r\n" % each for each in defaults]
    lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
    lines.append(b"content-length: %d\r\n" % len(body))
    lines.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    lines.append(body)
    return b"".join(lines)


@cache
def phrased(status: int) -> str:
    """A status with the words that HTTP has for it."""
    return f"{status} {HTTPStatus(status).phrase}"
