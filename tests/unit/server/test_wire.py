"""Connections that hold on: what is written to them and never read does not keep them open."""

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

from holdfast.server.wire import Address, Wire, bound, server_for

WIRE = Wire(connections=20, header_timeout_s=0.2, body_timeout_s=0.2, drain_s=30)


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
