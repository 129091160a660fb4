"""The connections to one server, kept open between requests.

They belong to the event loop that made them: they are closed with the pool or, if nobody closes it, when the loop ends
or the pool is forgotten. The one that was used last is used next, so that a quiet time leaves few; one that waited for
long is closed. Each is looked at before it is used: the server may have closed it, or said what nobody asked for.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import cached_property

from holdfast.objects.cloud.failure import TOO_MANY_FILES
from holdfast.objects.cloud.http1 import CONNECTION_RESET, NO_ANSWER, TOO_SOON, Answer, Broken, Connection

_LONGEST_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    tls: bool
    connect_seconds: float
    request_seconds: float


@dataclass(frozen=True)
class _Home:
    """A loop, the connections that wait in it, and what closes them when it ends."""

    loop: asyncio.AbstractEventLoop
    idle: list[Connection]
    end: AsyncGenerator[None, None]


class Pool:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._home: _Home | None = None
        self._under_way = 0

    async def ask(self, head: bytes, body: bytes = b"", *, bodiless: bool = False) -> Answer:
        """One request, sent once."""
        connection = self._waiting() or await self._connected()
        connection.send(head, body, bodiless=bodiless)
        self._under_way += 1
        return await self.answer(connection)

    def begin(self, head: bytes, body: bytes) -> Connection | None:
        """One request but for its last byte, to which there is an ``answer``, or which is given up.

        None where no connection waits."""
        connection = self._waiting()
        if connection is not None:
            connection.begin(head, body)
            self._under_way += 1
        return connection

    def give_up(self, connection: Connection) -> None:
        self._under_way -= 1
        connection.give_up()

    @property
    def is_idle(self) -> bool:
        """Whether nothing was asked or begun that is not answered or given up."""
        return not self._under_way

    async def answer(self, connection: Connection) -> Answer:
        """To what was sent on it; what was only begun is sent to its end."""
        try:
            answer = await connection.answer(self._server.request_seconds)
        finally:
            self._under_way -= 1
        home = self._home
        if connection.usable and home is not None and connection.home is home.idle:
            connection.idle_since = now = home.loop.time()
            home.idle.append(connection)
            if now - home.idle[0].idle_since >= _LONGEST_IDLE_SECONDS:  # one at a time, so that no request pays for all
                home.idle.pop(0).abort()
        else:
            connection.abort()
        return answer

    async def close(self) -> None:
        """Those of another loop are left to that loop: nothing of a loop may be touched from outside."""
        home, self._home = self._home, None  # so that those still in use do not come back
        if home is not None and home.loop is asyncio.get_running_loop():
            await home.end.aclose()

    def _waiting(self) -> Connection | None:
        """A connection that is open already."""
        loop, home = asyncio.get_running_loop(), self._home
        if home is None or home.loop is not loop:
            return None
        now = loop.time()
        while home.idle:
            connection = home.idle.pop()
            if now - connection.idle_since < _LONGEST_IDLE_SECONDS and connection.is_quiet():
                return connection
            connection.abort()
        return None

    async def _connected(self) -> Connection:
        loop, home, server = asyncio.get_running_loop(), self._home, self._server
        if home is None or home.loop is not loop:
            idle: list[Connection] = []
            home = _Home(loop, idle, _until_the_loop_ends(idle))
            await anext(home.end)
            self._home = home
        try:
            async with asyncio.timeout(server.connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(home.idle), server.host, server.port, ssl=self._tls if server.tls else None
                )
        except (OSError, UnicodeError) as error:  # a timeout and trouble with TLS too, and a name that cannot be one
            raise Broken(_reason(error), sent=False) from None
        if not server.tls and not connection.is_quiet():  # TLS has a word of its own to say at the beginning
            connection.abort()
            raise Broken(TOO_SOON, sent=False)
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


async def _until_the_loop_ends(idle: list[Connection]) -> AsyncGenerator[None, None]:
    """A loop closes the generators that were begun in it: so no connection outlives it, whoever forgot to close."""
    try:
        yield
    finally:
        for connection in idle:
            connection.abort()
        idle.clear()


def _reason(error: OSError | UnicodeError) -> str:
    """Why no connection came about, in words."""
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "the name is not known"
    if isinstance(error, ConnectionResetError):
        return CONNECTION_RESET
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TOO_MANY_FILES
    # Of several addresses, all that failed are told in one text.
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    return str(error)
