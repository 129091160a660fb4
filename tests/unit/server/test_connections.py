"""Limits of connections and requests, over real sockets."""

import asyncio
import json
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
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

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SHORT = ConnectionLimits(connections=20, header_timeout_s=0.2, body_timeout_s=0.2)
LONG = ConnectionLimits(connections=20, header_timeout_s=3_600, body_timeout_s=3_600)
LIVE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
LIFT = (
    b"POST /api/v1/holds/lift HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n"
)


def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(ROOT / "tests/golden/tls/certificate.pem", ROOT / "tests/golden/tls/key.pem")
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def connect(url: str, context: ssl.SSLContext | None = None) -> Streams:
    place = urlsplit(url)
    return await asyncio.open_connection(place.hostname, place.port, ssl=context)


async def response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return int(lines[0].split()[1]), headers, json.loads(body)


async def exchange(url: str, request: bytes, context: ssl.SSLContext | None = None) -> tuple[int, dict[str, str], Any]:
    reader, writer = await connect(url, context)
    writer.write(request)
    found = await response(reader)
    writer.close()
    return found


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
    async with server_desk(tmp_path) as desk, listening(private_app(desk.service), SHORT) as url:
        reader, writer = await connect(url)
        writer.write(sent[: len(LIVE)])
        if len(sent) > len(LIVE):
            assert (await response(reader))[0] == 200
            writer.write(sent[len(LIVE) :])
        status, headers, body = await response(reader)
        assert (status, headers["connection"], body["error"]["reason"]) == (408, "close", "timeout")
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("head", "body", "status", "reason"),
    [
        (LIFT, b"{", 408, "timeout"),
        (LIFT.replace(b"content-length: 100", b"content-length: 10000000"), LIVE * 1_000, 413, "too_large"),
    ],
)
async def test_an_early_refusal_closes_the_connection_and_drops_the_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, body: bytes, status: int, reason: str
) -> None:
    monkeypatch.setattr(connections, "DISCARD_S", 0.05)
    async with server_desk(tmp_path, body_timeout_ms=200) as desk, listening(private_app(desk.service), LONG) as url:
        reader, writer = await connect(url)
        writer.write(head + body)
        found, headers, document = await response(reader)
        assert (found, headers["connection"], document["error"]["reason"]) == (status, "close", reason)
        assert await reader.read() == b""
        writer.close()


async def test_a_head_that_is_too_long_is_refused_in_one_piece_too(tmp_path: Path) -> None:
    async with server_desk(tmp_path) as desk, listening(private_app(desk.service), LONG) as url:
        for filler, expected in ((HEAD_BYTES - 200, b"200"), (HEAD_BYTES + 1, b"400"), (60_000, b"400")):
            reader, writer = await connect(url)
            writer.write(LIVE.replace(b"host:", b"x: " + b"a" * filler + b"\r\nhost:"))
            assert (await reader.readline()).split()[1] == expected
            writer.close()


async def test_idle_connections_make_room_longest_idle_first(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=3, header_timeout_s=3_600, body_timeout_s=3_600)
    async with server_desk(tmp_path) as desk, listening(private_app(desk.service), few) as url:
        first, second, third = [await connect(url) for _ in range(3)]
        second[1].write(LIVE)
        assert (await response(second[0]))[0] == 200
        first[1].write(LIVE)
        assert (await response(first[0]))[0] == 200
        newest = await connect(url)
        status, headers, body = await response(third[0])
        assert (status, body["error"]["reason"], headers["retry-after"]) == (503, "overloaded", "1")
        newest[1].write(LIVE)
        assert (await response(newest[0]))[0] == 200
        assert (await exchange(url, LIVE))[0] == 200
        assert (await response(second[0]))[0] == 503
        first[1].write(LIVE)
        assert (await response(first[0]))[0] == 200
        for _, writer in (first, second, third, newest):
            writer.close()


async def test_connections_with_requests_are_not_evicted(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=2, header_timeout_s=3_600, body_timeout_s=3_600)
    async with server_desk(tmp_path) as desk, listening(private_app(desk.service), few) as url:
        busy = [await connect(url) for _ in range(2)]
        for _, writer in busy:
            writer.write(b"GET /api/v1/live/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        for reader, _ in busy:
            await reader.readuntil(b"event: hello")
        another = await connect(url)
        status, _, body = await response(another[0])
        assert (status, body["error"]["reason"]) == (503, "overloaded")
        assert "busy" in body["error"]["message"]
        for _, writer in (*busy, another):
            writer.close()


class InBody:
    """An application that counts how many of its requests wait for a body."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.waiting = asyncio.Semaphore(0)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        def counted() -> Any:
            self.waiting.release()
            return receive()

        await self._app(scope, counted, send)


def batch_request(desk: ServerDesk) -> bytes:
    body = frame()
    head = (
        "POST /ingest/v1/batch HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: Bearer {desk.token}\r\ncontent-length: {len(body)}\r\n"
        "x-lightmetrics-agent: web-1\r\nx-lightmetrics-seq-start: 0\r\nx-lightmetrics-seq-end: 0\r\n\r\n"
    )
    return head.encode() + body


async def half_sent(url: str, app: InBody, request: bytes, context: ssl.SSLContext | None = None) -> Streams:
    reader, writer = await connect(url, context)
    writer.write(request)
    await app.waiting.acquire()
    writer.write(b"{")  # the first part of the body; the application waits for the next one
    await app.waiting.acquire()
    return reader, writer


async def test_half_sent_bodies_make_room_on_the_private_listener(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=3, header_timeout_s=3_600, body_timeout_s=3_600)
    async with server_desk(tmp_path) as desk:
        app = InBody(private_app(desk.service))
        async with listening(app, few) as url:
            slow = [await half_sent(url, app, LIFT) for _ in range(3)]
            assert (await exchange(url, LIVE))[0] == 200
            status, headers, body = await response(slow[0][0])
            assert (status, headers["connection"], body["error"]["reason"]) == (503, "close", "overloaded")
            assert await slow[0][0].read() == b""
            for _, writer in slow:
                writer.close()


async def test_strangers_do_not_evict_a_sender_with_a_token(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=1, header_timeout_s=3_600, body_timeout_s=3_600)
    async with server_desk(tmp_path) as desk:
        app = InBody(ingest_app(desk.service))
        batch = batch_request(desk)
        async with listening(app, few) as url:
            reader, writer = await connect(url)
            writer.write(batch[:-10])
            await app.waiting.acquire()
            await app.waiting.acquire()
            another = await connect(url)
            assert (await response(another[0]))[0] == 503
            writer.write(batch[-10:])
            assert (await response(reader))[0] == 200
            for each in (writer, another[1]):
                each.close()


async def test_an_idle_stranger_makes_room_before_a_sender_with_a_token_that_is_idle_for_longer(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=2, header_timeout_s=3_600, body_timeout_s=3_600)
    async with server_desk(tmp_path) as desk, listening(ingest_app(desk.service), few) as url:
        sender, stranger = [await connect(url) for _ in range(2)]
        for (reader, writer), request in ((sender, batch_request(desk)), (stranger, LIVE)):
            writer.write(request)
            assert (await response(reader))[0] == 200
        assert (await exchange(url, LIVE))[0] == 200
        assert (await response(stranger[0]))[0] == 503
        sender[1].write(batch_request(desk))
        assert (await response(sender[0]))[2]["duplicate"] is True
        for _, writer in (sender, stranger):
            writer.close()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_requests_that_outlast_a_shutdown_are_cancelled_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encrypted: bool
) -> None:
    context = client_context() if encrypted else None
    caplog.set_level("WARNING")
    async with server_desk(tmp_path) as desk:
        app = InBody(private_app(desk.service))
        async with listening(app, LONG, server_context() if encrypted else None) as url:
            reader, writer = await half_sent(url, app, LIFT, context)
        assert await reader.read() == b""
        writer.close()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_tls_handshakes_have_a_time_limit_and_make_room(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=2, header_timeout_s=3_600, body_timeout_s=3_600)
    async with server_desk(tmp_path) as desk:
        app = private_app(desk.service)
        async with listening(app, few, server_context()) as url:
            silent = [await connect(url) for _ in range(2)]
            assert (await exchange(url, LIVE, client_context()))[0] == 200
            assert await silent[0][0].read() == b""
            for _, writer in silent:
                writer.close()
        async with listening(app, SHORT, server_context()) as url:
            for sent in (b"", LIVE):
                reader, writer = await connect(url)
                writer.write(sent)
                assert await reader.read() == b""
                writer.close()


async def test_an_evicted_tls_connection_is_closed_without_waiting_for_its_client(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=1, header_timeout_s=3_600, body_timeout_s=3_600)
    async with server_desk(tmp_path) as desk, listening(private_app(desk.service), few, server_context()) as url:
        place = urlsplit(url)

        def handshake() -> socket.socket:
            plain = socket.create_connection((place.hostname, place.port))
            return socket.socket(fileno=client_context().wrap_socket(plain).detach())

        evicted = await asyncio.to_thread(handshake)  # from here on it answers nothing, and so no close_notify
        with evicted:
            assert (await exchange(url, LIVE, client_context()))[0] == 200
            evicted.setblocking(False)
            with suppress(ConnectionResetError):
                while await asyncio.get_running_loop().sock_recv(evicted, 65_536):
                    pass


async def test_clients_that_do_not_read_make_room(tmp_path: Path) -> None:
    few = ConnectionLimits(connections=2, header_timeout_s=3_600, body_timeout_s=3_600)
    endless = Endless()
    async with server_desk(tmp_path) as desk, AsyncExitStack() as opened:
        answers = Answers(desk.service.metrics, desk.service.refusals, "private")
        guard = Guard(endless, answers, few.body_timeout_s, evict_bodies=True)
        place = urlsplit(url := await opened.enter_async_context(listening(guard, few)))
        with ExitStack() as clients:
            for _ in range(2):
                client = clients.enter_context(socket.create_connection((place.hostname, place.port)))
                client.sendall(LIVE)
                client.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(client, 1)  # it has a request under way
            statuses = set()
            while b"HTTP/1.1 200 OK\r\n" not in statuses:  # until both have filled their sockets, all are busy
                reader, writer = await connect(url)
                writer.write(LIVE)
                statuses.add(await reader.readline())
                writer.transport.abort()
            await endless.closed.wait()
    assert endless.closed.is_set()


async def test_new_connections_use_the_new_certificate(tmp_path: Path) -> None:
    connections = Connections(LONG, server_context())
    second = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    second.load_cert_chain(ROOT / "tests/golden/tls/second-certificate.pem", ROOT / "tests/golden/tls/second-key.pem")

    async def certificate(address: Address) -> bytes:
        _, writer = await asyncio.open_connection(address.host, address.port, ssl=client_context())
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async with server_desk(tmp_path) as desk:
        with bound(Address("127.0.0.1", 0)) as (listening_socket, address):
            listener = Listener(private_app(desk.service), listening_socket, connections)
            listener.listen()
            task = asyncio.create_task(listener.serve())
            before = await certificate(address)
            connections.use(second)
            assert await certificate(address) != before
            listener.end(within_s=1)
            await task


async def test_a_port_where_another_process_listens_is_named() -> None:
    with bound(Address("127.0.0.1", 0)) as (first, address), bound(address) as (second, _):
        first.listen()
        with pytest.raises(Refused, match=f"{address}: cannot listen: Address already in use"):
            Listener(Endless(), second, Connections(SHORT)).listen()


def test_a_collector_asks_for_as_many_files_as_it_needs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    connections: list[int] = []
    enough = ((1_024, 1_048_576), (65_536, 65_536), (1_024, resource.RLIM_INFINITY))
    for limits in (*enough, (1_024, 1_500), (64, 96), (2, 2)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=limits: found)
        connections.append(run.allow_files(1_000))
    assert asked == [(2_256, 1_048_576), (2_256, resource.RLIM_INFINITY), (1_500, 1_500), (96, 96), (2, 2)]
    assert connections == [1_000, 1_000, 1_000, 622, 24, 1]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
