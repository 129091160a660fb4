"""HTTP/1.1 as far as a proxy needs it: heads, framing, and bodies in pieces as they stand on the wire.

Bodies are never decoded: a chunked body is passed on with its chunk lines, so what the server gets is what the client
sent. Nothing here holds a whole body unless a caller collects the pieces.

Errors: ``Gone`` when a peer closed or reset its connection in the middle of a message, and tells which peer;
``Malformed`` for bytes that are not HTTP/1.1.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

PIECE_BYTES = 64 * 1024
HEAD_BYTES = 128 * 1024
"""Limit of one head, and of what a stream buffers before it stops reading."""

CLIENT, SERVER = "client", "server"

Headers = tuple[tuple[str, str], ...]


class Gone(Exception):  # how a peer behaves, not an error of ours
    """``side`` ended its connection in the middle of a message."""

    def __init__(self, side: str) -> None:
        super().__init__(f"the {side} closed its connection in the middle of a message")
        self.side = side


class Malformed(Exception):  # what a peer sent, not an error of ours
    """Bytes that are no HTTP/1.1 message."""


class Framing(Enum):
    """How a body ends, where its head does not give a length."""

    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


@dataclass(frozen=True, slots=True)
class Head:
    version: str
    headers: Headers

    def header(self, name: str) -> str | None:
        wanted = name.lower()
        return next((value for given, value in self.headers if given.lower() == wanted), None)

    def without(self, *names: str) -> Self:
        dropped = {name.lower() for name in names}
        return replace(self, headers=tuple(pair for pair in self.headers if pair[0].lower() not in dropped))

    @property
    def keep_alive(self) -> bool:
        said = (self.header("connection") or "").lower()
        return "close" not in said and (self.version == "HTTP/1.1" or "keep-alive" in said)

    def _framing(self, absent: int | Framing) -> int | Framing:
        if "chunked" in (self.header("transfer-encoding") or "").lower():
            return Framing.CHUNKED
        length = self.header("content-length")
        if length is None:
            return absent
        if not length.strip().isdecimal():
            raise Malformed(f"content-length {length!r}")
        return int(length)

    def _wire(self, start: str) -> bytes:
        lines = [start, *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")


@dataclass(frozen=True, slots=True)
class RequestHead(Head):
    method: str
    target: str

    @property
    def framing(self) -> int | Framing:
        return self._framing(0)

    @property
    def wire(self) -> bytes:
        return self._wire(f"{self.method} {self.target} {self.version}")


@dataclass(frozen=True, slots=True)
class ResponseHead(Head):
    status: int
    reason: str

    def framing(self, method: str) -> int | Framing:
        if method == "HEAD" or self.status in (204, 304) or self.status < 200:
            return 0
        return self._framing(Framing.UNTIL_CLOSE)

    @property
    def wire(self) -> bytes:
        return self._wire(f"{self.version} {self.status} {self.reason}")


class Wire:
    """One connection, and on which side of the proxy it is."""

    def __init__(self, side: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.side = side
        self._reader = reader
        self._writer = writer

    async def request_head(self) -> RequestHead | None:
        """The next request; None if the client is done with the connection."""
        raw = await self._head()
        if raw is None:
            return None
        start, headers = _split(raw)
        parts = start.split(" ")
        if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
            raise Malformed(f"request line {start[:100]!r}")
        head = RequestHead(parts[2], headers, parts[0], parts[1])
        _ = head.framing  # a length that is no number is refused here
        return head

    async def response_head(self) -> ResponseHead:
        """The final answer; interim ones (1xx) are passed over."""
        while True:
            raw = await self._head()
            if raw is None:
                raise Gone(self.side)
            start, headers = _split(raw)
            version, _, rest = start.partition(" ")
            status, _, reason = rest.partition(" ")
            if not version.startswith("HTTP/1.") or not status.isdecimal():
                raise Malformed(f"status line {start[:100]!r}")
            if int(status) >= 200:
                return ResponseHead(version, headers, int(status), reason)

    async def pieces(self, framing: int | Framing) -> AsyncIterator[bytes]:
        """The body as it stands on the wire. After the last piece the connection is at the next message."""
        if framing is Framing.CHUNKED:
            parts = self._chunked()
        elif framing is Framing.UNTIL_CLOSE:
            parts = self._rest()
        else:
            parts = self._exactly(framing)
        try:
            async for piece in parts:
                yield piece
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise Gone(self.side) from error

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise Gone(self.side) from error

    async def until_closed(self) -> None:
        """Wait until the peer hangs up; what it sends meanwhile is thrown away."""
        try:
            while await self._reader.read(PIECE_BYTES):
                continue
        except ConnectionError:
            return

    @property
    def usable(self) -> bool:
        """False once the peer is known to have hung up."""
        return not (self._reader.at_eof() or self._reader.exception() or self.closed)

    @property
    def closed(self) -> bool:
        """Whether we have hung up, or are about to."""
        return self._writer.is_closing()

    def close(self) -> None:
        """Hang up after what was written has been sent."""
        self._writer.close()

    def cut(self) -> None:
        """Reset the connection: the peer gets nothing that was not sent yet, and an error."""
        raw = self._writer.get_extra_info("socket")
        if raw is not None and not self.closed:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _head(self) -> bytes | None:
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial.strip():
                raise Gone(self.side) from error
            return None
        except asyncio.LimitOverrunError as error:
            raise Malformed("a head that is too long") from error
        except ConnectionError as error:
            raise Gone(self.side) from error

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        left = size
        while left:
            piece = await self._reader.read(min(left, PIECE_BYTES))
            if not piece:
                raise Gone(self.side)
            left -= len(piece)
            yield piece

    async def _chunked(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._line()
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError as error:
                raise Malformed(f"chunk size {line[:40]!r}") from error
            yield line
            if size == 0:
                break
            async for piece in self._exactly(size + 2):  # with the line end after the data
                yield piece
        while True:  # trailers, then an empty line
            line = await self._line()
            yield line
            if line == b"\r\n":
                return

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\r\n")
        except asyncio.LimitOverrunError as error:
            raise Malformed("a chunk line that is too long") from error

    async def _rest(self) -> AsyncIterator[bytes]:
        while piece := await self._reader.read(PIECE_BYTES):
            yield piece


def _split(raw: bytes) -> tuple[str, Headers]:
    start, *lines = raw.decode("latin-1").strip("\r\n").split("\r\n")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise Malformed(f"header line {line[:100]!r}")
        headers.append((name, value.strip()))
    return start, tuple(headers)
