"""Limits of connections and requests, over real sockets."""

import asyncio
import json
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.base.errors import Refused
from holdfast.server import connections, run
from holdfast.server.app import ingest_app, private_app
from holdfast.server.connections import HEAD_BYTES, ConnectionLimits, Connections, Guard
from holdfast.server.errors import Answers
from holdfast.server.run import Address, Listener, bound
from tests.tidy.tree import ROOT
from tests.unit.server.server_desk import ServerDesk, frame, listening, server_desk

SHORT = ConnectionLimits(connections=20, header_timeout_s=0.2, body_timeout_s=0.2)
LONG = ConnectionLimits(connections=20, header_timeout_s=3_600, body_timeout_s=3_600)
LIVE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
LIFT = (
    b"POST /api/v1/holds/lift HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n"
)


def few(number: int) -> ConnectionLimits:
    return ConnectionLimits(connections=number, header_timeout_s=3_600, body_timeout_s=3_600)


def server_context(name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(ROOT / f"tests/golden/tls/{name}certificate.pem", ROOT / f"tests/golden/tls/{name}key.pem")
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.send = writer.write

    async def response(self) -> tuple[int, dict[str, str], Any]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(lines[0].split()[1]), headers, json.loads(body)

    async def refusal(self) -> tuple[int, str]:
        """Status and reason of a response that closes the connection."""
        status, headers, body = await self.response()
        assert headers["connection"] == "close"
        assert await self.reader.read() == b""
        return status, body["error"]["reason"]

    async def status(self, request: bytes = LIVE) -> int:
        self.send(request)
        return (await self.response())[0]


@asynccontextmanager
async def connected(url: str, count: int = 1, context: ssl.SSLContext | None = None) -> AsyncIterator[list[Client]]:
    place = urlsplit(url)
    clients = [Client(*await asyncio.open_connection(place.hostname, place.port, ssl=context)) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            client.writer.close()


@asynccontextmanager
async def private(
    folder: Path, limits: ConnectionLimits, context: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[str]:
    """The URL of a private listener."""
    async with server_desk(folder, **settings) as desk, listening(private_app(desk.service), limits, context) as url:
        yield url


class Endless:
    """A response without end, until the connection is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        closed = asyncio.ensure_future(until_closed(receive))
        while not closed.done():
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
        await closed
        self.closed.set()


async def until_closed(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_a_client_that_never_reads_is_disconnected() -> None:
    endless = Endless()
    async with listening(endless, SHORT) as url:
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(LIVE)
            await endless.closed.wait()
    assert endless.closed.is_set()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HT", LIVE + b"GET"])
async def test_a_head_has_a_time_limit(tmp_path: Path, sent: bytes) -> None:
    async with private(tmp_path, SHORT) as url, connected(url) as (client,):
        client.send(sent[: len(LIVE)])
        if len(sent) > len(LIVE):
            assert (await client.response())[0] == 200
            client.send(sent[len(LIVE) :])
        assert await client.refusal() == (408, "timeout")


@pytest.mark.parametrize(
    ("head", "body", "refusal"),
    [
        (LIFT, b"{", (408, "timeout")),
        (LIFT.replace(b"content-length: 100", b"content-length: 10000000"), LIVE * 1_000, (413, "too_large")),
    ],
)
async def test_an_early_refusal_closes_the_connection_and_drops_the_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, body: bytes, refusal: tuple[int, str]
) -> None:
    monkeypatch.setattr(connections, "DISCARD_S", 0.05)
    async with private(tmp_path, LONG, body_timeout_ms=200) as url, connected(url) as (client,):
        client.send(head + body)
        assert await client.refusal() == refusal


async def test_a_head_that_is_too_long_is_refused_in_one_piece_too(tmp_path: Path) -> None:
    async with private(tmp_path, LONG) as url:
        for filler, expected in ((HEAD_BYTES - 200, b"200"), (HEAD_BYTES + 1, b"400"), (60_000, b"400")):
            async with connected(url) as (client,):
                client.send(LIVE.replace(b"host:", b"x: " + b"a" * filler + b"\r\nhost:"))
                assert (await client.reader.readline()).split()[1] == expected


async def test_idle_connections_are_evicted_longest_idle_first(tmp_path: Path) -> None:
    async with private(tmp_path, few(3)) as url, connected(url, 3) as (first, second, third):
        assert [await second.status(), await first.status()] == [200, 200]
        async with connected(url) as (newest,):
            status, headers, body = await third.response()
            assert (status, body["error"]["reason"], headers["retry-after"]) == (503, "overloaded", "1")
            assert await newest.status() == 200
            async with connected(url) as (another,):
                assert await another.status() == 200
            assert await second.refusal() == (503, "overloaded")
            assert await first.status() == 200


async def test_connections_with_requests_are_not_evicted(tmp_path: Path) -> None:
    async with private(tmp_path, few(2)) as url, connected(url, 2) as busy:
        for client in busy:
            client.send(b"GET /api/v1/live/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for client in busy:
            await client.reader.readuntil(b"event: hello")
        async with connected(url) as (another,):
            assert await another.refusal() == (503, "overloaded")


class InBody:
    """An application that counts the calls with which it waits for a body."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.waiting = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        def counted() -> Any:
            self.waiting.release()
            return receive()

        await self._app(scope, counted, send)

    async def half_sent(self, client: Client, request: bytes) -> None:
        client.send(request)
        await self.waiting.acquire()
        client.send(b"{")  # the first part of the body; the application waits for the next one
        await self.waiting.acquire()


def batch_request(desk: ServerDesk) -> bytes:
    body = frame()
    head = (
        "POST /ingest/v1/batch HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: Bearer {desk.token}\r\ncontent-length: {len(body)}\r\n"
        "x-lightmetrics-agent: web-1\r\nx-lightmetrics-seq-start: 0\r\nx-lightmetrics-seq-end: 0\r\n\r\n"
    )
    return head.encode() + body


async def test_connections_with_half_a_body_are_evicted_on_the_private_listener(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        app = InBody(private_app(desk.service))
        async with listening(app, few(3)) as url, connected(url, 3) as slow:
            for client in slow:
                await app.half_sent(client, LIFT)
            async with connected(url) as (another,):
                assert await another.status() == 200
            assert await slow[0].refusal() == (503, "overloaded")


async def test_connections_without_a_token_do_not_evict_a_sender(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        app = InBody(ingest_app(desk.service))
        batch = batch_request(desk)
        async with listening(app, few(1)) as url, connected(url) as (sender,):
            sender.send(batch[:-10])
            await app.waiting.acquire()
            await app.waiting.acquire()
            async with connected(url) as (another,):
                assert await another.refusal() == (503, "overloaded")
            assert await sender.status(batch[-10:]) == 200
        async with listening(app, few(2)) as url, connected(url, 2) as (idle_sender, idle_stranger):
            assert [await idle_sender.status(batch), await idle_stranger.status()] == [200, 200]
            async with connected(url) as (another,):
                assert await another.status() == 200
            assert await idle_stranger.refusal() == (503, "overloaded"), "although the sender is idle for longer"
            assert await idle_sender.status(batch) == 200


@pytest.mark.parametrize("encrypted", [False, True])
async def test_requests_that_outlast_a_shutdown_are_cancelled_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encrypted: bool
) -> None:
    caplog.set_level("WARNING")
    async with server_desk(tmp_path) as desk:
        app = InBody(private_app(desk.service))
        context = server_context() if encrypted else None
        async with AsyncExitStack() as clients:
            async with listening(app, LONG, context) as url:
                client_side = client_context() if encrypted else None
                (client,) = await clients.enter_async_context(connected(url, context=client_side))
                await app.half_sent(client, LIFT)
            assert await client.reader.read() == b""
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")]
    assert lines == ["Cancel 1 running task(s), timeout graceful shutdown exceeded"]


async def test_tls_handshakes_have_a_time_limit_and_are_evicted(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk:
        app = private_app(desk.service)
        async with listening(app, few(2), server_context()) as url, connected(url, 2) as silent:
            async with connected(url, context=client_context()) as (another,):
                assert await another.status() == 200
            assert await silent[0].reader.read() == b""
        async with listening(app, SHORT, server_context()) as url:
            for sent in (b"", LIVE):
                async with connected(url) as (client,):
                    client.send(sent)
                    assert await client.reader.read() == b""


async def test_an_evicted_tls_connection_is_closed_without_waiting_for_its_client(tmp_path: Path) -> None:
    async with private(tmp_path, few(1), server_context()) as url:
        place = urlsplit(url)

        def handshake() -> socket.socket:
            plain = socket.create_connection((place.hostname, place.port))
            return socket.socket(fileno=client_context().wrap_socket(plain).detach())

        evicted = await asyncio.to_thread(handshake)  # from here on it answers nothing, and so no close_notify
        with evicted:
            async with connected(url, context=client_context()) as (another,):
                assert await another.status() == 200
            evicted.setblocking(False)
            with suppress(ConnectionResetError):
                while await asyncio.get_running_loop().sock_recv(evicted, 65_536):
                    pass


async def test_clients_that_do_not_read_are_evicted(tmp_path: Path) -> None:
    endless = Endless()
    async with server_desk(tmp_path) as desk, AsyncExitStack() as opened:
        guard = Guard(endless, Answers(desk.service.metrics, "private"), LONG.body_timeout_s)
        place = urlsplit(url := await opened.enter_async_context(listening(guard, few(2))))
        with ExitStack() as clients:
            for _ in range(2):
                client = clients.enter_context(socket.create_connection((place.hostname, place.port)))
                client.sendall(LIVE)
                client.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(client, 1)  # it has a request in progress
            statuses = set()
            while b"HTTP/1.1 200 OK\r\n" not in statuses:  # until both have filled their sockets, all are busy
                async with connected(url) as (another,):
                    another.send(LIVE)
                    statuses.add(await another.reader.readline())
                    another.writer.transport.abort()
            await endless.closed.wait()
    assert endless.closed.is_set()


async def test_a_port_where_another_process_listens_is_named() -> None:
    with bound(Address("127.0.0.1", 0)) as (first, address), bound(address) as (second, _):
        first.listen()
        with pytest.raises(Refused, match=f"{address}: cannot listen: Address already in use"):
            Listener(Endless(), second, Connections(SHORT)).listen()


def test_a_collector_raises_the_limit_of_open_files_or_takes_fewer_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_limits.append(limits))
    found: list[int] = []
    enough = ((1_024, 1_048_576), (65_536, 65_536), (1_024, resource.RLIM_INFINITY))
    for limits in (*enough, (1_024, 1_500), (64, 96), (2, 2)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        found.append(run.allow_files(1_000))
    assert set_limits == [(2_256, 1_048_576), (2_256, resource.RLIM_INFINITY), (1_500, 1_500), (96, 96), (2, 2)]
    assert found == [1_000, 1_000, 1_000, 622, 24, 1]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
