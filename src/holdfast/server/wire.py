"""Listeners: sockets, TLS, and an HTTP server that no sender can hold up.

uvicorn speaks HTTP. What it leaves open is closed here: a connection has a limited time for the head of a request and
for the rest of it, however few bytes it sends at a time, and as long to read what is written to it; there are only so
many connections; and what is no HTTP is answered in the one JSON shape. Small requests to one path may take a short way
past the parser (``shortcut``), under the same limits.
"""

import asyncio
import errno
import json
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.base.errors import Denied, HoldfastError, Invalid, Refused, check
from holdfast.server.certificates import Certificates, check_pair
from holdfast.server.corked import Corked
from holdfast.server.door import Door
from holdfast.server.faults import Fault, failure_of
from holdfast.server.head import Connection
from holdfast.server.shortcut import Cycle, Shortcut, phrased, plain_head, response

HEAD_BYTES = 16 << 10
"""The longest head of a request."""
ANY = "0.0.0.0"  # noqa: S104  # only compared with
KEEP_ALIVE_S = 75
"""How long an idle connection stays: longer than load balancers keep theirs, so that they close first."""

_SPEAK = "speak HTTP/1.1 here, over TLS if this listener has a certificate, with a head of at most 16 KiB"


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdigit() or int(port) > 65_535:
            raise Invalid(f"{text!r} is no address to listen at", remedy="write HOST:PORT, such as 127.0.0.1:8080")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Wire:
    """How a listener treats its connections."""

    connections: int
    header_timeout_s: float
    body_timeout_s: float
    drain_s: float
    certificate: Path | None = None
    key: Path | None = None


@contextmanager
def bound(address: Address) -> Iterator[tuple[socket.socket, Address]]:
    """A socket that listens there, and where that is: port 0 becomes the one that was free."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Invalid(f"{address}: {error.strerror}", remedy="name an address of this machine") from error
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(place)
        except OSError as error:
            raise _cannot_listen(address, error) from error
        listening.setblocking(False)
        yield listening, Address(address.host, listening.getsockname()[1])


def _cannot_listen(address: Address, error: OSError) -> HoldfastError:
    text = f"{address}: cannot be listened at: {error.strerror}"
    if error.errno == errno.EADDRNOTAVAIL:
        return Invalid(text, remedy="name an address of this machine")
    if error.errno == errno.EACCES:
        return Denied(text, remedy="choose a port from 1024 on, or give this process the right to the port")
    return Refused(text, remedy="end what listens there, or choose another address; port 0 takes any free port")


def check_apart(listen: socket.socket, private: socket.socket) -> None:
    """Both can be bound to one port, and only one of them can listen there."""
    (one, port), (two, other) = (each.getsockname()[:2] for each in (listen, private))
    everywhere = "::" in (one, two) or (ANY in (one, two) and listen.family == private.family)
    if port == other and (one == two or everywhere):
        raise Invalid(
            f"--listen and --private are the same port: {Address(one, port)} and {Address(two, other)}",
            remedy="give each a port of its own; port 0 takes any free one",
        )


class Server(uvicorn.Server):
    """Signals are for whoever runs several listeners at once. ``listening`` is set once it does."""

    def __init__(self, config: uvicorn.Config, wire: Wire) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._wire = wire
        self._doors: list[Door] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for each in sockets or []:
            try:
                self._doors.append(self._door(each))
            except OSError as error:  # somebody else was bound there too, and began to listen first
                raise _cannot_listen(Address(*each.getsockname()[:2]), error) from error
        self.servers = self._doors  # type: ignore[assignment]  # uvicorn closes them
        self.listening.set()

    def end(self, *, within_s: float) -> None:
        """Let nobody in any more, and end when requests under way have their answers, or when the time is over."""
        self.config.timeout_graceful_shutdown = max(1, round(within_s))
        self.should_exit = True

    def certificates(self) -> Certificates | None:
        """What keeps the certificate new; None without TLS."""
        paths = tuple(path for path in (self._wire.certificate, self._wire.key) if path is not None)
        return Certificates(paths, self._context, self._speak) if paths else None

    def _context(self) -> ssl.SSLContext:
        again = server_for(self.config.app, self._wire).config.ssl
        check(again is not None, "a listener with a certificate speaks TLS")
        return again  # type: ignore[return-value]  # checked

    def _speak(self, context: ssl.SSLContext) -> None:
        self.config.ssl = context
        for door in self._doors:
            door.context = context

    def _door(self, listening: socket.socket) -> Door:
        state, wire = self.server_state, self._wire
        protocol: Any = self.config.http_protocol_class
        make = partial(protocol, config=self.config, server_state=state, app_state={})
        return Door(
            listening,
            make,
            context=self.config.ssl,
            inside=state.connections,
            most=wire.connections,
            handshake_s=wire.header_timeout_s,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_for(app: Any, wire: Wire, shortcut: Shortcut | None = None) -> Server:
    config = uvicorn.Config(
        app,
        http=guarded(wire, shortcut),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(wire.drain_s)),
        ssl_certfile=wire.certificate,
        ssl_keyfile=wire.key,
    )
    if wire.certificate is not None:
        check_pair(wire.certificate, wire.key)
    config.load()
    return Server(config, wire)


def guarded(wire: Wire, shortcut: Shortcut | None = None) -> type[H11Protocol]:
    """uvicorn makes protocols from a class alone, so the limits are in the class."""
    return type("GuardedProtocol", (_Guarded,), {"wire": wire, "shortcut": shortcut})


class _OfPeer(logging.LoggerAdapter[logging.Logger]):
    """Lines of uvicorn that say whose connection they are about."""

    @property
    def level(self) -> int:
        return self.logger.level


class _Guarded(H11Protocol):
    wire: ClassVar[Wire]
    shortcut: ClassVar[Shortcut | None]
    _short: Cycle | None = None
    """The request that is on the short way."""
    _rest: bytes = b""
    """What came after it, while it was under way."""
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _phase: object = None
    _half_closed: bool = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = Connection(HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.logger = _OfPeer(self.logger, {"peer": self.client[0] if self.client else None})  # type: ignore[assignment]  # as far as uvicorn uses one
        self.transport = Corked(transport, self.loop)  # type: ignore[assignment]  # as far as uvicorn uses one
        if len(self.connections) > self.wire.connections:
            full = f"there are {self.wire.connections} connections already"
            self._turn_away(Fault("overloaded", full, remedy="come again later, or raise ingest.connections"))
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._was_read()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_reader()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._await_reader()

    def data_received(self, data: bytes) -> None:
        if self._short is not None:
            self._unset_keepalive_if_required()
            self._more(self._short, data)
            return
        if self.shortcut is not None and self._between_requests():
            head = plain_head(data, self.shortcut.path)
            if head is not None:
                self._unset_keepalive_if_required()
                self._begin(Cycle(head), self.shortcut, data[head.size :])
                return
        super().data_received(data)

    def _between_requests(self) -> bool:
        """The parser has nothing under way and nothing in its hands."""
        conn = self.conn
        idle = conn.their_state is h11.IDLE and conn.our_state is h11.IDLE and not conn.trailing_data[0]
        return idle and not self.transport.is_closing()

    def _begin(self, cycle: Cycle, shortcut: Shortcut, data: bytes) -> None:
        self._short = cycle
        self.cycle = cycle  # type: ignore[assignment]  # as far as uvicorn looks at one
        self._more(cycle, data)
        task = self.loop.create_task(self._answer(cycle, shortcut))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _more(self, cycle: Cycle, data: bytes) -> None:
        rest = cycle.feed(data)
        if rest:  # the next request, before this one was answered
            self._rest += rest
            self.flow.pause_reading()
        self._finish(cycle)
        self._watch()

    async def _answer(self, cycle: Cycle, shortcut: Shortcut) -> None:
        try:
            answered = await shortcut.answer(cycle.head.headers, cycle.body(), self.client)
        except asyncio.CancelledError:  # the time for requests under way is over
            self._turn_away(Fault("draining", "this collector ends", remedy="send the same batch again"))
            raise
        cycle.response_complete = True
        if cycle.disconnected or self.transport.is_closing():
            return
        keep = cycle.keep_alive
        self.transport.push(response(answered, self.server_state.default_headers, keep_alive=keep))  # type: ignore[attr-defined]  # Corked
        if not keep:
            self.transport.close()
        self._finish(cycle)
        self.on_response_complete()

    def _finish(self, cycle: Cycle) -> None:
        """Once it is answered and its body has come to its end, the next request begins."""
        if cycle.missing or not cycle.response_complete or self._short is not cycle:
            return
        self._short = None
        rest, self._rest = self._rest, b""
        if rest and not self.transport.is_closing():
            self.flow.resume_reading()
            self.loop.call_soon(self.data_received, rest)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # as in asyncio
        """A sender that has said all it has to say still wants to hear the answer. TLS has no such half."""
        cycle: Any = self.cycle
        self._half_closed = (
            cycle is not None
            and not cycle.response_complete
            and self._their_state() in (h11.DONE, h11.MUST_CLOSE)
            and self.transport.get_extra_info("sslcontext") is None
        )
        return self._half_closed or None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed:
            self.transport.close()
            self._await_reader()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        self._turn_away(Fault("bad_request", f"this is no HTTP request: {msg}", remedy=_SPEAK))

    def _watch(self) -> None:
        """One timer per phase: bytes that trickle in do not wind it up again."""
        state = self._their_state()
        idle = state is h11.IDLE and self.timeout_keep_alive_task is not None
        phase = None if idle else state
        if phase is self._phase:
            return
        self._stop()
        self._phase = phase
        if phase is h11.IDLE:
            self._timer = self.loop.call_later(self.wire.header_timeout_s, self._too_slow)
        elif phase is h11.SEND_BODY:
            # The one who reads the body has the same time, and answers better; this ends what nobody reads any more.
            self._timer = self.loop.call_later(self.wire.body_timeout_s + 1, self._too_slow)

    def _their_state(self) -> object:
        if self._short is None:
            return self.conn.their_state
        return h11.SEND_BODY if self._short.missing else h11.DONE

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_reader(self) -> None:
        """Whoever does not read what is written does not get to hold its connection and its memory for ever."""
        if self._unread is None:
            self._unread = self.loop.call_later(self.wire.body_timeout_s, self.transport.abort)

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _too_slow(self) -> None:
        if self._phase is h11.SEND_BODY:
            self.transport.close()  # an answer is under way, or was given
            self._await_reader()
        else:
            slow = f"no whole head of a request came within {self.wire.header_timeout_s:g} s"
            self._turn_away(Fault("timeout", slow, remedy="send the head of a request at once"))

    def _turn_away(self, fault: Fault) -> None:
        """Answer outside of any application, and close."""
        self._stop()
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle
        if cycle is not None:
            cycle.disconnected = True  # the application may still be at work on this request, and must not answer too
            cycle.message_event.set()
        failure = failure_of(fault)
        body = json.dumps(failure.document).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **failure.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        # h11 may be in an error state already, so these bytes go past it.
        self.transport.write(f"HTTP/1.1 {phrased(failure.status)}\r\n{lines}\r\n".encode() + body)
        self.transport.close()
        self._await_reader()
