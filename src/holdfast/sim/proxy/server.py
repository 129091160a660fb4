"""The way to the real server: kept-alive connections, and one request over one of them.

A connection that idled for a second is not used again: servers drop idle ones, and a request written into a dropped
connection would be a fault that no rule asked for. The Host header goes through as the client sent it, because the
client's signature covers it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from holdfast.base.errors import Invalid
from holdfast.sim.proxy.http import HEAD_BYTES, SERVER, Framing, Gone, RequestHead, ResponseHead, Wire

IDLE_S = 1.0


class Response:
    """A server's answer: its head, and its body while it arrives."""

    def __init__(self, head: ResponseHead, wire: Wire, method: str) -> None:
        self.head = head
        self.framing = head.framing(method)
        self._wire = wire
        self.finished = self.framing == 0

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._wire.pieces(self.framing):
            yield piece
        self.finished = True

    @property
    def reusable(self) -> bool:
        return self.finished and self.framing is not Framing.UNTIL_CLOSE and self.head.keep_alive


class Server:
    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise Invalid(f"upstream {address!r} is no http://host:port", remedy="write http://127.0.0.1:9000")
        self.address = address.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port or 80
        self._idle: list[tuple[float, Wire]] = []

    @asynccontextmanager
    async def send(self, head: RequestHead, body: AsyncIterator[bytes] | None) -> AsyncIterator[Response]:
        """One request; the response is open inside the block. ``Gone`` tells which side failed."""
        wire = await self._acquire()
        sending = asyncio.ensure_future(_send(wire, head, body))
        reusable = False
        try:
            response = Response(await _answer(wire, sending), wire, head.method)
            yield response
            # An answer may overtake the body: whatever the client has begun to send still goes to the server.
            await asyncio.wait({sending})
            reusable = sending.exception() is None and response.reusable and head.keep_alive
        finally:
            # The connection first: a cancellation may strike at the await.
            if reusable:
                self._idle.append((asyncio.get_running_loop().time(), wire))
            else:
                wire.cut()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].cut()

    async def _acquire(self) -> Wire:
        now = asyncio.get_running_loop().time()
        while self._idle:
            since, wire = self._idle.pop()
            if now - since < IDLE_S and wire.usable:
                return wire
            wire.cut()
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES)
        except OSError as error:
            raise Gone(SERVER) from error
        return Wire(SERVER, reader, writer)


async def _send(wire: Wire, head: RequestHead, body: AsyncIterator[bytes] | None) -> None:
    await wire.write(head.wire)
    if body is not None:
        async for piece in body:
            await wire.write(piece)


async def _answer(wire: Wire, sending: "asyncio.Future[None]") -> ResponseHead:
    """The response head. A server may answer before it has read everything, and a client may vanish while it sends."""
    reading = asyncio.ensure_future(wire.response_head())
    try:
        both: set[asyncio.Future[Any]] = {sending, reading}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not reading.done():
            failure = sending.exception()
            # A server that stopped reading may have answered all the same; any other failure ends the exchange.
            if failure is not None and not (isinstance(failure, Gone) and failure.side == SERVER):
                raise failure
        return await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
