"""The connections to one server, kept open between requests.

They belong to the event loop that made them: they are closed with the pool or, if nobody closes it, when the loop ends
or the pool is forgotten. The one that was used last is used next, so that a quiet time leaves few; one that waited for
long is looked at before it is used, because the server may have closed it meanwhile.
"""

import asyncio
import errno
import select
import socket
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import cached_property

from holdfast.objects.cloud.failure import TOO_MANY_FILES
from holdfast.objects.cloud.http1 import NO_ANSWER, Answer, Broken, Connection

_LONGEST_IDLE_SECONDS = 60.0
_LOOK_AFTER_SECONDS = 0.5


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    tls: bool
    connect_seconds: float
    request_seconds: float


class Pool:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._idle: list[Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: AsyncGenerator[None, None] | None = None

    async def ask(self, head: bytes, body: bytes = b"", *, bodiless: bool = False) -> Answer:
        """One request, sent once."""
        connection = self._waiting() or await self._connected()
        answer = await connection.ask(head, body, bodiless=bodiless, seconds=self._server.request_seconds)
        if connection.usable and connection.home is self._idle:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()
        return answer

    async def close(self) -> None:
        _close(self._idle)
        self._idle, self._loop = [], None  # so that those still in use do not come back
        if self._end is not None:
            end, self._end = self._end, None
            await end.aclose()

    def _waiting(self) -> Connection | None:
        """A connection that is open already."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            return None
        now = loop.time()
        while self._idle:
            connection = self._idle.pop()
            since = now - connection.idle_since
            if since < _LOOK_AFTER_SECONDS:
                return connection
            if since < _LONGEST_IDLE_SECONDS and not _spoke(connection):
                return connection
            connection.abort()
        return None

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._idle, self._loop = [], loop
            self._end = _until_the_loop_ends(self._idle)
            await anext(self._end)
        idle = self._idle
        server = self._server
        try:
            async with asyncio.timeout(server.connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(idle), server.host, server.port, ssl=self._tls if server.tls else None
                )
        except (OSError, ssl.SSLError) as error:  # a timeout too
            raise Broken(_reason(error), sent=False) from None
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


async def _until_the_loop_ends(idle: list[Connection]) -> AsyncGenerator[None, None]:
    """A loop closes the generators that were begun in it: so no connection outlives it, whoever forgot to close."""
    try:
        yield
    finally:
        _close(idle)


def _close(idle: list[Connection]) -> None:
    for connection in idle:
        connection.abort()
    idle.clear()


def _spoke(connection: Connection) -> bool:
    """Whether the server did something while nobody asked: nearly always it has closed the connection."""
    if connection.transport.is_closing():
        return True
    fileno = connection.transport.get_extra_info("socket").fileno()
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))


def _reason(error: OSError) -> str:
    """Why no connection came about, in words."""
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS"
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TOO_MANY_FILES
    # Of several addresses, all that failed are told in one text.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    return str(error)
