"""Run a collector: two listeners over one service, until a signal ends it.

On the first SIGTERM or SIGINT the collector drains: the ingest listener accepts no connections and no batches, and
requests in progress get their responses. Until then the private listener serves, and reports at ``/readyz`` that the
collector is draining. Then it ends too, and the rest of the spool lands. All of this takes at most ``drain_ms``, and
some seconds more if the store does not answer. A second signal cancels it.
"""

import asyncio
import errno
import ipaddress
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from holdfast.base.aio import restarting
from holdfast.base.config import IngestSection
from holdfast.base.errors import Denied, HoldfastError, Invalid, Refused
from holdfast.base.telemetry import logger
from holdfast.objects.client import Client
from holdfast.server.app import ingest_app, private_app
from holdfast.server.connections import HEAD_BYTES, KEEP_ALIVE_S, ConnectionLimits, Connections
from holdfast.server.service import Service, Shutdown, open_service
from holdfast.server.tls import Certificate

FILES = 256
"""Open files besides connections of clients: those of the store, and a few others."""
BACKLOG = 1024
_ANY = "0.0.0.0"  # noqa: S104  # only compared with
_log = logger("server")


@dataclass(frozen=True, slots=True)
class Serving:
    """A running collector and its addresses."""

    service: Service
    ingest_url: str
    private_url: str


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdigit() or int(port) > 65_535:
            raise Invalid(f"{text!r} is not an address to listen on", remedy="write HOST:PORT, such as 127.0.0.1:8080")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def run_collector(
    store: Client,
    section: IngestSection,
    *,
    query: bool = False,
    unsafe_any_place: bool = False,
    on_serving: Callable[[Serving], Awaitable[None]],
) -> None:
    """Serve until a signal arrives. ``on_serving`` runs in the background and is cancelled at the end."""
    ending = asyncio.Event()
    _on_signals(ending)
    limits = ConnectionLimits(
        allow_files(section.connections), section.header_timeout_ms / 1000, section.body_timeout_ms / 1000
    )
    ingest_connections, private_connections = Connections(limits), Connections(limits)
    certificate = await _certificate(section, ingest_connections)
    with ExitStack() as sockets:
        listen, at = sockets.enter_context(bound(Address.parse(section.listen)))
        private, private_at = sockets.enter_context(bound(Address.parse(section.private)))
        check_apart(listen, private)
        opening = open_service(store, section, query=query, unsafe_any_place=unsafe_any_place)
        async with opening as service:
            listeners = [
                Listener(ingest_app(service), listen, ingest_connections),
                Listener(private_app(service), private, private_connections),
            ]
            for listener in listeners:
                listener.listen()
            warn_of_plain(listen, "ingest", encrypted=certificate is not None)
            warn_of_plain(private, "private", encrypted=False)
            scheme = "http" if certificate is None else "https"
            serving = Serving(service, f"{scheme}://{at}", f"http://{private_at}")
            tasks = [asyncio.create_task(listener.serve()) for listener in listeners]
            background = [asyncio.ensure_future(on_serving(serving))]
            if certificate is not None:
                background.append(asyncio.create_task(restarting("watching the certificate", certificate.run)))
            try:
                await _until(ending, tasks)
            finally:
                service.begin_draining()
                _log.info("draining", extra={"under_way": service.limits.under_way})
                try:
                    await _end(listeners, tasks, service.shutdown)
                finally:
                    for task in background:
                        task.cancel()
                    await asyncio.gather(*background, return_exceptions=True)
    _log.info("ended")


class _Server(uvicorn.Server):
    """Installs no signal handlers: ``run_collector`` has two servers and handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """A bound socket, the application behind it, and uvicorn between them."""

    def __init__(self, app: Any, socket: socket.socket, connections: Connections) -> None:
        self._socket = socket
        self.connections = connections
        config = uvicorn.Config(
            app,
            http=connections.protocol(),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self._server = _Server(config)

    def listen(self) -> None:
        """The kernel queues connections from now on; ``serve`` accepts them."""
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:  # another socket is bound to the address too, and listened first
            raise _cannot_listen(Address(*self._socket.getsockname()[:2]), error) from error

    async def serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self.connections.abort()

    def end(self, *, within_s: float) -> None:
        """Accept no more connections. End when all requests have their responses, or cancel them after this time."""
        self._server.config.timeout_graceful_shutdown = within_s  # type: ignore[assignment]  # it may be a fraction
        self._server.should_exit = True
        self.connections.abort(handshakes_only=True)


async def _until(ending: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for a signal. A listener that ends before is a failure."""
    waiting = asyncio.create_task(ending.wait())
    try:
        done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    for task in done - {waiting}:
        task.result()


async def _end(listeners: list[Listener], tasks: list[asyncio.Task[None]], shutdown: Shutdown) -> None:
    """The ingest listener first: until its last batch the private listener reports that the collector is draining."""
    ingest, private = listeners
    try:
        ingest.end(within_s=shutdown.drain_ms / 1_000)
        await asyncio.wait(tasks[:1])
        private.end(within_s=shutdown.left_s())
        await asyncio.wait(tasks[1:])
    finally:
        for task in tasks:
            task.cancel()  # after a second signal
        await asyncio.gather(*tasks, return_exceptions=True)


def _on_signals(ending: asyncio.Event) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if ending.is_set() and task is not None:
            task.cancel()
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError):  # only the main thread gets signals
            loop.add_signal_handler(number, on_signal)


async def _certificate(section: IngestSection, connections: Connections) -> Certificate | None:
    """Loaded first, so that a mistake is reported before anything is written to the store."""
    if section.tls_certificate_file is None:
        if section.tls_key_file is not None:
            raise Invalid("--tls-key is given without --tls-certificate", remedy="give --tls-certificate too")
        return None
    certificate = Certificate(section.tls_certificate_file, section.tls_key_file, connections.use)
    await certificate.load()
    return certificate


def warn_of_plain(listening: socket.socket, name: str, *, encrypted: bool) -> None:
    address = Address(*listening.getsockname()[:2])
    if encrypted or ipaddress.ip_address(address.host.partition("%")[0]).is_loopback:
        return
    remedy = "use --tls-certificate" if name == "ingest" else "use a loopback address"
    _log.warning(
        "the %s listener at %s accepts connections from other machines without TLS, so its traffic can be read on the"
        " network: %s, or let only a proxy with TLS connect to it",
        name,
        address,
        remedy,
    )


def allow_files(connections: int) -> int:
    """Raise the limit of open files to that of two listeners with this many connections. If less is allowed, return a
    smaller number of connections: a connection beyond that number can be answered, one without a file cannot."""
    needed = 2 * connections + FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit >= needed:
        return connections
    fewer = max(1, min(connections, (limit - min(FILES, limit // 2)) // 2))
    _log.warning(
        "%d open files are allowed, and %d may be needed: a listener takes %d connections and not %d; raise the limit",
        limit,
        needed,
        fewer,
        connections,
    )
    return fewer


@contextmanager
def bound(address: Address) -> Iterator[tuple[socket.socket, Address]]:
    """A socket bound to this address, and its actual address: port 0 becomes a free one."""
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
    text = f"{address}: cannot listen: {error.strerror}"
    if error.errno == errno.EADDRNOTAVAIL:
        return Invalid(text, remedy="name an address of this machine")
    if error.errno == errno.EACCES:
        return Denied(text, remedy="choose a port from 1024 on, or allow this process to use the port")
    return Refused(text, remedy="stop the process that listens there, or choose another address; port 0 takes any")


def check_apart(listen: socket.socket, private: socket.socket) -> None:
    """Two sockets can be bound to one port with SO_REUSEADDR, but only one of them can listen."""
    (one, port), (two, other) = (each.getsockname()[:2] for each in (listen, private))
    everywhere = "::" in (one, two) or (_ANY in (one, two) and listen.family == private.family)
    if port == other and (one == two or everywhere):
        raise Invalid(
            f"--listen and --private are the same port: {Address(one, port)} and {Address(two, other)}",
            remedy="give each a port of its own; port 0 takes any free one",
        )
