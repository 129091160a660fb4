"""Run a collector: two listeners over one service, until told to end; then finish what is under way, and close.

The first SIGTERM or SIGINT begins the end: no new connections for batches, no new batches, requests under way get their
answers; until then the private listener goes on, and says that this collector drains. Then it ends too, derived
references are written, what a spool still holds lands once more. It takes at most ``drain_ms``, and seconds more where
the store does not answer (``ending``). A second signal cuts it short.
"""

import asyncio
import resource
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from holdfast.base.config import IngestSection
from holdfast.base.errors import Invalid
from holdfast.base.telemetry import logger
from holdfast.ingest.lasting import lasting
from holdfast.objects.client import Client
from holdfast.server.app import IngestApp, private_app
from holdfast.server.certificates import check_pair
from holdfast.server.ending import Ending
from holdfast.server.service import OVERLAP_S, Service, open_service
from holdfast.server.wire import Address, Server, Wire, bound, check_apart, server_for

FILES = 256
"""Open files beside connections of senders: those of the store, and a few of our own."""
_log = logger("server")


@dataclass(frozen=True, slots=True)
class Serving:
    """A collector that listens."""

    service: Service
    ingest_url: str
    private_url: str


async def run_collector(
    store: Client,
    section: IngestSection,
    *,
    query: bool = False,
    unsafe_any_place: bool = False,
    overlap_s: int = OVERLAP_S,
    on_serving: Callable[[Serving], Awaitable[None]],
) -> None:
    """Serve until a signal comes. ``on_serving`` runs beside it and is cancelled at the end."""
    ending = asyncio.Event()
    _on_signals(ending)
    connections = allow_files(section.connections)
    _check_tls(section)
    with ExitStack() as sockets:
        listen, at = sockets.enter_context(bound(Address.parse(section.listen)))
        private, private_at = sockets.enter_context(bound(Address.parse(section.private)))
        check_apart(listen, private)
        opening = open_service(store, section, query=query, unsafe_any_place=unsafe_any_place, overlap_s=overlap_s)
        async with opening as service:
            ingest = IngestApp(service)
            servers = [
                server_for(ingest, _wire(section, connections, tls=True), ingest.shortcut),
                server_for(private_app(service), _wire(section, connections, tls=False)),
            ]
            scheme = "https" if section.tls_certificate_file is not None else "http"
            serving = Serving(service, f"{scheme}://{at}", f"http://{private_at}")
            pairs = zip(servers, (listen, private), strict=True)
            tasks = [asyncio.create_task(server.serve(sockets=[socket])) for server, socket in pairs]
            beside = asyncio.gather(_beside(servers, serving, on_serving), *map(_renewed, servers))
            try:
                await _until(ending, tasks)
            finally:
                service.begin_draining()
                _log.info("draining", extra={"under_way": service.limits.under_way})
                try:
                    await _end(servers, tasks, service.ending)
                finally:
                    beside.cancel()
                    await asyncio.gather(beside, return_exceptions=True)
    _log.info("ended")


async def _beside(servers: list[Server], serving: Serving, on_serving: Callable[[Serving], Awaitable[None]]) -> None:
    for server in servers:
        await server.listening.wait()
    await on_serving(serving)


async def _renewed(server: Server) -> None:
    certificates = server.certificates()
    if certificates is not None:
        await lasting("looking at certificates", certificates.run)


async def _until(ending: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Until a signal comes, or a server ends by itself, which is its failure."""
    waiting = asyncio.create_task(ending.wait())
    try:
        done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    for task in done - {waiting}:
        task.result()


async def _end(servers: list[Server], tasks: list[asyncio.Task[None]], ending: Ending) -> None:
    """One after the other: who asks the private listener is told until the end that batches belong elsewhere now."""
    ingest, private = servers
    try:
        ingest.end(within_s=ending.drain_ms / 1_000)
        await asyncio.wait(tasks[:1])
        private.end(within_s=ending.left_s())
        await asyncio.wait(tasks[1:])
    finally:
        for task in tasks:
            task.cancel()  # a second signal
        await asyncio.gather(*tasks, return_exceptions=True)


def allow_files(connections: int) -> int:
    """Ask for as many open files as two listeners with so many connections need; how many each may have then.

    Every connection is an open file, and most systems allow a process fewer than it may ask for. Where not even that is
    enough, there are fewer connections, and who comes above that is told: without a file it could not be let in at all.
    """
    wanted = 2 * connections + FILES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= wanted:
        return connections
    given = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (given, most))
    if given >= wanted:
        return connections
    fewer = max(1, min(connections, (given - min(FILES, given // 2)) // 2))
    _log.warning(
        "%d open files are allowed, and %d may be needed: a listener takes %d connections and not %d; raise the limit",
        given,
        wanted,
        fewer,
        connections,
    )
    return fewer


def _on_signals(ending: asyncio.Event) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def hear() -> None:
        if ending.is_set() and task is not None:
            task.cancel()
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError):  # not in the main thread, which alone hears of signals
            loop.add_signal_handler(number, hear)


def _check_tls(section: IngestSection) -> None:
    """Before anything is begun in the store."""
    if section.tls_certificate_file is not None:
        check_pair(section.tls_certificate_file, section.tls_key_file)
    elif section.tls_key_file is not None:
        raise Invalid("a TLS key is named and no certificate", remedy="give --tls-certificate too")


def _wire(section: IngestSection, connections: int, *, tls: bool) -> Wire:
    return Wire(
        connections=connections,
        header_timeout_s=section.header_timeout_ms / 1000,
        body_timeout_s=section.body_timeout_ms / 1000,
        drain_s=section.drain_ms / 1000,
        certificate=section.tls_certificate_file if tls else None,
        key=section.tls_key_file if tls else None,
    )
