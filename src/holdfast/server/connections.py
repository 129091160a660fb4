"""Limits of connections and requests, around uvicorn's HTTP protocol.

uvicorn parses HTTP and runs the application. A ``Connection`` is between the transport and uvicorn's protocol and
forwards every call. It adds limits that uvicorn has no setting for:

* the TLS handshake and the head of a request have ``header_timeout_s``; receiving bytes does not reset the timer
* at most ``connections`` are open; a new one replaces the connection that has waited longest for its peer, first of
  those that never sent a valid token; if all are busy, the new one is answered 503
* a peer that does not read a response is disconnected after ``body_timeout_s``

A ``Guard`` is the outermost middleware of each application. It notifies the connection when a request begins and ends,
so HTTP is parsed only once, and it limits the time for a body. If a response begins before the whole body was read, the
connection is closed after it, and the rest of the body is dropped unparsed.

A connection waits for its peer if it is idle; without a valid token, also while the body of a request is arriving or a
response is not read. The ingest listener checks the token before it reads a body, so connections without a token cannot
evict a sender.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.base.telemetry import logger
from holdfast.server.errors import Answers, Fault, failure_of

HEAD_BYTES = 16 << 10
"""The longest head of a request."""
KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than with load balancers, so that they close it first."""
DISCARD_S = 1.0
DISCARD_BYTES = 16 << 20
"""How long, and how much, of a refused body is still received. Closing a socket with unread bytes resets the
connection, and then the sender may not get the response."""
_STATE = "holdfast_connection"
"""Where the ``Connection`` is found in ``scope["state"]``."""

_log = logger("server")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections: int
    header_timeout_s: float
    body_timeout_s: float


class Connections:
    """The open connections of one listener."""

    def __init__(self, limits: ConnectionLimits, context: ssl.SSLContext | None = None) -> None:
        self.limits = limits
        self.context = context
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, context: ssl.SSLContext) -> None:
        """New connections use this TLS context."""
        self.context = context

    def protocol(self) -> type[asyncio.Protocol]:
        """For ``uvicorn.Config(http=...)``, which takes a class: one that belongs to this listener."""
        return type("ListenerConnection", (Connection,), {"listener": self})

    def admit(self, connection: "Connection") -> bool:
        """Whether there is room for another connection, after closing one that waits for its peer if need be."""
        if len(self._open) >= self.limits.connections:
            waiting = (each for each in self._open if each.evictable)
            evicted = min(waiting, key=lambda each: each.eviction_order, default=None)
            if evicted is None:
                return False
            evicted.evict()
            self._open.discard(evicted)
        self._open.add(connection)
        return True

    def remove(self, connection: "Connection") -> None:
        self._open.discard(connection)

    def abort(self, *, handshakes_only: bool = False) -> None:
        """Close all connections at once; ``handshakes_only``: those in a TLS handshake, which uvicorn does not know."""
        for connection in tuple(self._open):
            if connection.in_handshake or not handshakes_only:
                connection.abort()


class Connection(asyncio.Protocol):
    """One connection. uvicorn constructs it like its own HTTP protocols."""

    listener: ClassVar[Connections]
    _transport: asyncio.Transport

    def __init__(self, *, app_state: dict[str, Any], **arguments: Any) -> None:
        self._http = H11Protocol(app_state={**app_state, _STATE: self}, **arguments)
        self._loop = asyncio.get_running_loop()
        self._limits = self.listener.limits
        self._established = False
        """Whether ``_http`` has a transport, which it gets after the TLS handshake."""
        self._early: list[bytes] = []
        self._handshake: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._requests = 0
        """In the application: 0 or 1, or 2 for a moment if the next one begins while the last one is cleaned up."""
        self._in_head = True
        """Whether ``header_timeout_s`` runs for the head of a request; after a request, from its first byte."""
        self._waiting_since = self._loop.time()
        self._write_paused = False
        self._closed = asyncio.Event()
        """Set after ``connection_lost``."""
        self._discarding = False
        self._discarded = 0
        self._discard_ended = asyncio.Event()
        self.authenticated = False
        """Whether a valid token was sent over this connection. Others are evicted first."""
        self.in_body = False
        """Whether the application waits for the body of a request."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream's transport
        self._transport = transport
        if not self.listener.admit(self):
            self._refuse(_overloaded(self._limits.connections, "and all of them are busy"))
        elif self.listener.context is None:
            self._establish(transport)
        else:
            transport.pause_reading()  # until the handshake: its bytes are not for HTTP
            self._handshake = self._loop.create_task(self._secure(transport, self.listener.context))

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discarded += len(data)
            if self._discarded > DISCARD_BYTES:
                self._discard_ended.set()
        elif not self._established:
            self._early.append(data)
        else:
            if not self._requests and not self._in_head:
                self._await_head()
            self._http.data_received(data)

    def eof_received(self) -> None:
        self._discard_ended.set()
        if self._established:
            self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._discard_ended.set()
        self.listener.remove(self)
        if self._established:
            self._http.connection_lost(exc)
        self._closed.set()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._arm(self._limits.body_timeout_s, self.abort)
        if self._established:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._established:
            self._http.resume_writing()
        if self._requests:
            self._disarm()
        elif not self._in_head:
            self._await_next()

    # Called by the guard.

    def begin(self) -> None:
        """The application got a request."""
        self._requests += 1
        self._in_head = False
        self._waiting_since = self._loop.time()
        if not self._write_paused:
            self._disarm()

    def end(self) -> None:
        """The application has ended a request."""
        self._requests -= 1
        if not self._requests:
            self._waiting_since = self._loop.time()
            self._await_next()

    async def abort_request(self) -> None:
        """Close the connection and wait until uvicorn knows, so that it expects no response."""
        self.abort()
        await self._closed.wait()

    async def discard(self) -> None:
        """Drop received bytes until the peer closes the connection or a limit is reached."""
        self._discarding = True
        self._waiting_since = self._loop.time()
        self._transport.resume_reading()  # uvicorn pauses it when a body is not read
        try:
            async with asyncio.timeout(DISCARD_S):
                await self._discard_ended.wait()
        except TimeoutError:
            return

    # Called by the listener.

    @property
    def evictable(self) -> bool:
        waits = self.in_body or self._write_paused
        return self._requests == 0 or self._discarding or (waits and not self.authenticated)

    @property
    def eviction_order(self) -> tuple[bool, float]:
        return self.authenticated, self._waiting_since

    def evict(self) -> None:
        """Close it and free its descriptor at once: an orderly end of TLS would wait for the peer."""
        if self.listener.context is None and not self._discarding and not self._write_paused:
            self._refuse(_overloaded(self._limits.connections, "and this one waited for its client"))
        if not self._transport.is_closing() or self._transport.get_write_buffer_size():
            self.abort()

    @property
    def in_handshake(self) -> bool:
        return not self._established

    def abort(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
        self.listener.remove(self)
        self._transport.abort()

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        try:
            secured = await self._loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._limits.header_timeout_s,
                ssl_shutdown_timeout=self._limits.header_timeout_s,
            )
        except OSError as error:  # also what ssl raises
            _log.debug("TLS handshake failed: %s", error)
            secured = None
        if secured is None or self._closed.is_set():
            self.listener.remove(self)
            transport.abort()
            return
        self._establish(secured)

    def _establish(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._established = True
        self._http.connection_made(transport)
        self._await_head()
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def _await_head(self) -> None:
        self._in_head = True
        self._arm(self._limits.header_timeout_s, self._head_late)

    def _await_next(self) -> None:
        """uvicorn closes an idle connection after ``KEEP_ALIVE_S``; the peer then has time to read the response."""
        self._arm(self._limits.body_timeout_s + (0 if self._write_paused else KEEP_ALIVE_S), self.abort)

    def _head_late(self) -> None:
        if self._transport.is_closing():  # uvicorn has responded, and the peer does not read it
            self.abort()
            return
        message = f"the head of a request did not arrive within {self._limits.header_timeout_s:g} s"
        self._refuse(Fault("timeout", message, remedy="send the head of a request at once"))

    def _refuse(self, fault: Fault) -> None:
        """Respond in place of uvicorn, which has no request, and close."""
        if self._transport.is_closing():
            return
        if self.listener.context is not None and not self._established:
            self.abort()
            return
        failure = failure_of(fault)
        body = json.dumps(failure.document).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **failure.headers}.items())
        phrase = HTTPStatus(failure.status).phrase
        self._transport.write(f"HTTP/1.1 {failure.status} {phrase}\r\n{lines}\r\n".encode() + body)
        self._discarding = True
        self._transport.close()
        self._arm(self._limits.body_timeout_s, self.abort)

    def _arm(self, seconds: float, action: Any) -> None:
        self._disarm()
        self._timer = self._loop.call_later(seconds, action)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _overloaded(connections: int, why: str) -> Fault:
    return Fault(
        "overloaded",
        f"{connections} connections are open, {why}",
        remedy="try again later, or raise ingest.connections",
    )


def mark_authenticated(scope: Scope) -> None:
    """A valid token was sent over this connection."""
    connection = _connection(scope)
    if connection is not None:
        connection.authenticated = True


def _connection(scope: Scope) -> Connection | None:
    """None if the application runs without a listener, as in tests."""
    found: Connection | None = scope.get("state", {}).get(_STATE)
    return found


class Guard:
    """See the module. It also responds to exceptions that no handler has caught."""

    def __init__(self, app: ASGIApp, answers: Answers, body_timeout_s: float) -> None:
        self._app = app
        self._answers = answers
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = _connection(scope)
        exchange = _Exchange(scope, receive, send, connection, self._body_timeout_s)
        if connection is not None:
            connection.begin()
        try:
            await self._answer(scope, exchange)
        except asyncio.CancelledError:  # by uvicorn, at the end of the time for a shutdown
            if connection is None:
                raise
            await connection.abort_request()  # not raised again: uvicorn would log it as an error of the application
        finally:
            if connection is not None:
                connection.end()

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> None:
        try:
            if _head_size(scope) > HEAD_BYTES:  # h11 limits only heads that arrive in several reads
                raise Fault("bad_request", f"the head is longer than {HEAD_BYTES} bytes", remedy="send fewer headers")
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.started:
                raise
            response = self._answers.refusal(Request(scope), error)
            await response(scope, exchange.receive, exchange.send)


def _head_size(scope: Scope) -> int:
    target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    return target + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


class _Exchange:
    """One request and its response, between uvicorn and the application."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        connection: Connection | None,
        body_timeout_s: float,
    ) -> None:
        headers = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self._connection = connection
        self._timeout_s = body_timeout_s
        self._deadline = asyncio.get_running_loop().time() + body_timeout_s
        self._unread = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        """Whether there is a body that the application has not read to its end."""
        self._closes = False
        self.started = False

    async def receive(self) -> Message:
        if not self._unread:
            return await self._receive()  # the end of the connection, without a time limit
        if self._connection is not None:
            self._connection.in_body = True
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            text = f"the body did not arrive within {self._timeout_s:g} s"
            raise Fault("timeout", text, remedy="send less at a time, or raise ingest.body_timeout_ms") from None
        finally:
            if self._connection is not None:
                self._connection.in_body = False
        self._unread = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self._closes = self._unread
            if self._closes:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        elif self._closes and self._connection is not None and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._connection.discard()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)
