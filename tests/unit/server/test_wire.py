"""Connections that hold on: what is written to them and never read does not keep them open."""

import asyncio
import errno
import json
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.base.errors import Refused
from holdfast.server import door, run
from holdfast.server.wire import HEAD_BYTES, Address, Server, Wire, bound, server_for
from tests.tidy.tree import ROOT

WIRE = Wire(connections=20, header_timeout_s=0.2, body_timeout_s=0.2, drain_s=30)
PATIENT = Wire(connections=20, header_timeout_s=20, body_timeout_s=20, drain_s=30)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """An answer without end: it stops when the connection is gone, or for ever when nobody reads."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    gone = asyncio.ensure_future(until_gone(receive))
    while not gone.done():
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
    await gone


async def until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_a_port_that_somebody_else_was_quicker_to_listen_at_is_named() -> None:
    with bound(Address("127.0.0.1", 0)) as (first, address), bound(address) as (second, _):
        first.listen()
        with pytest.raises(Refused, match=f"{address}: cannot be listened at: Address already in use"):
            await server_for(endless, WIRE).serve(sockets=[second])


async def test_a_client_that_never_reads_is_cut_off() -> None:
    with bound(Address("127.0.0.1", 0)) as (listening, address):
        server = server_for(endless, WIRE)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        await server.listening.wait()
        place = urlsplit(f"http://{address}")
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            async with asyncio.timeout(20):
                while not server.server_state.tasks:
                    await asyncio.sleep(0.01)
                while server.server_state.tasks or server.server_state.connections:
                    await asyncio.sleep(0.01)
        server.should_exit = True
        await task
        assert not server.server_state.connections


async def after_a_while(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await asyncio.sleep(0.05)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_a_sender_that_has_closed_its_half_gets_its_answer() -> None:
    with bound(Address("127.0.0.1", 0)) as (listening, address):
        server = server_for(after_a_while, Wire(connections=20, header_timeout_s=20, body_timeout_s=20, drain_s=30))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        await server.listening.wait()
        for request in (
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc",
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(request)
            writer.write_eof()
            async with asyncio.timeout(20):
                assert (await reader.read()).endswith(b"\r\n\r\nok")  # and then the connection ends
            writer.close()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nab")
        writer.write_eof()
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
        server.should_exit = True
        await task


TLS = replace(
    WIRE,
    certificate=ROOT / "tests/golden/tls/certificate.pem",
    key=ROOT / "tests/golden/tls/key.pem",
)
REQUEST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc"


@asynccontextmanager
async def serving(
    wire: Wire, listening: socket.socket | None = None, app: Any = None
) -> AsyncIterator[tuple[Server, Address]]:
    with bound(Address("127.0.0.1", 0)) as (own, address):
        server = server_for(app or after_a_while, wire)
        used = own if listening is None else listening
        task = asyncio.create_task(server.serve(sockets=[used]))
        await server.listening.wait()
        try:
            async with asyncio.timeout(60):
                yield server, Address(address.host, used.getsockname()[1])
        finally:
            server.should_exit = True
            await task


async def answer(address: Address, context: ssl.SSLContext | None = None) -> bytes:
    """Empty if there is no room."""
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    except OSError:
        return b""
    writer.write(REQUEST)
    found = await reader.read()
    writer.close()
    return found


async def test_who_does_not_begin_tls_takes_a_place_among_connections_and_not_for_long() -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    patient = replace(TLS, connections=2, header_timeout_s=3_600, body_timeout_s=3_600)
    async with serving(patient) as (_, address):
        silent = [await asyncio.open_connection(address.host, address.port) for _ in range(5)]
        ends = [asyncio.create_task(reader.read()) for reader, _ in silent]
        await asyncio.gather(*ends[2:])  # nobody but the first two is let in, and those have an hour
        assert [end.done() for end in ends] == [False, False, True, True, True]
        for end, (_, writer) in zip(ends, silent, strict=True):
            writer.close()
            await end
        while not (await answer(address, context)).endswith(b"ok"):
            await asyncio.sleep(0.01)  # until it was noticed that they are gone
    async with serving(replace(patient, header_timeout_s=0.2)) as (_, address):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        assert await reader.read() == b""  # it has the time of a head
        writer.close()


class Scarce(socket.socket):
    """A listener of a process that has no file descriptor left, for a while."""

    refusals = 5

    def accept(self) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_want_of_files_is_said_once_and_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door, "PAUSE_S", 0.01)
    with Scarce() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        async with serving(PATIENT, listening) as (_, address):
            assert (await answer(address)).endswith(b"ok")
        assert listening.refusals == 0
    said = [record.getMessage() for record in caplog.records if record.name == "holdfast.server"]
    assert [line.partition(":")[0] for line in said] == ["no connection can be let in"]


def test_a_collector_asks_for_as_many_files_as_it_may_have(
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
    assert connections == [1_000, 1_000, 1_000, 622, 24, 1]  # fewer, so that who is too much can be told
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


async def asked_whole(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    found = await reader.read()
    writer.close()
    return found


async def test_a_head_that_is_too_long_is_refused_in_one_piece_too() -> None:
    async with serving(PATIENT) as (_, address):
        for filler in (b"a" * (HEAD_BYTES - 200), b"a" * (HEAD_BYTES + 1), b"a" * 60_000):
            long = REQUEST.replace(b"host: a", b"host: a\r\nx: " + filler)
            found = await asked_whole(address, long)
            expected = b"HTTP/1.1 200" if len(filler) < HEAD_BYTES else b"HTTP/1.1 400"
            assert found.startswith(expected), found[:200]


async def test_of_what_is_no_http_it_is_said_who_sent_it(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(PATIENT) as (_, address):
        found = await asked_whole(address, b"\x16\x03\x01 no HTTP\r\n\r\n")
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    told = json.loads(body)["error"]
    assert (told["reason"], "HTTP/1.1" in told["remedy"]) == ("bad_request", True)
    (record,) = [each for each in caplog.records if each.name == "uvicorn.error"]
    assert vars(record)["peer"] == "127.0.0.1"


async def where(scope: Any, receive: Any, send: Any) -> None:
    told = f"{scope['method']} {scope['path']} {scope['query_string'].decode()}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
    await send({"type": "http.response.body", "body": told})


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (b"/a/b?c=d", b"GET /a/b c=d"),
        (b"http://host/a/b?c=d", b"GET /a/b c=d"),
        (b"HTTPS://[::1]:80/a%20b", b"GET /a b "),
        (b"http://host", b"GET / "),
        (b"http://host?c=http://x/y", b"GET / c=http://x/y"),
        (b"http:///a", b"GET http:///a "),
        (b"http://user@host/a", b"GET http://user@host/a "),
        (b"ftp://host/a", b"GET ftp://host/a "),
    ],
)
async def test_a_target_may_be_absolute(target: bytes, told: bytes) -> None:
    async with serving(PATIENT, app=where) as (_, address):
        found = await asked_whole(address, b"GET %s HTTP/1.1\r\nhost: b\r\nconnection: close\r\n\r\n" % target)
        assert found.endswith(b"\r\n\r\n" + told)
