"""The short way past the parser: it takes nothing that the parser would not take, and answers as the long way does."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import h11
import pytest
from starlette.requests import ClientDisconnect

from holdfast.server.shortcut import MOST_BODY, Answered, Body, Shortcut, plain_head
from holdfast.server.wire import Address, Wire, bound, server_for

WIRE = Wire(connections=20, header_timeout_s=60, body_timeout_s=60, drain_s=30)
PATH = b"/batch"
HEAD = b"POST /batch HTTP/1.1\r\nhost: a\r\nAuthorization: Bearer x\r\nx-agent: w\xc3\xa9b\r\nContent-Length: 3\r\n\r\n"
PIECES = tuple(
    rb"\r\n|\n|\r| |\t|:|\x00|\x7f|\xff|content-length: 3\r\n|content-length: 7\r\n|Transfer-Encoding: chunked\r\n"
    rb"|connection: close\r\n|expect: 100-continue\r\n|host: b\r\n|HTTP/1.0| \r\n|upgrade: websocket\r\n|GET |/other"
    rb"|X-Forwarded-For: 10.0.0.1\r\n|+3|-3|3_0".decode("unicode_escape")
    .encode("latin-1")
    .split(b"|")
)


def by_the_parser(data: bytes) -> tuple[dict[str, str], int] | None:
    """What the parser makes of a head; None if it refuses it or it is not whole."""
    conn = h11.Connection(h11.SERVER, max_incomplete_event_size=16 << 10)
    try:
        conn.receive_data(data)
        event = conn.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.Request) or event.method != b"POST" or event.target != PATH:
        return None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
    length = 0
    while (part := conn.next_event()) is not h11.NEED_DATA and not isinstance(part, h11.EndOfMessage):
        if isinstance(part, h11.Data):
            length += len(part.data)
    return headers, length


@pytest.mark.parametrize("seed", range(20))
def test_whatever_it_takes_the_parser_takes_and_reads_alike(seed: int) -> None:
    rng = random.Random(seed)
    taken = 0
    for _ in range(1_000):
        head = bytearray(HEAD)
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(head))
            match rng.randrange(4):
                case 0:
                    head[at] = rng.randrange(256)
                case 1:
                    del head[at : at + rng.randrange(1, 5)]
                case 2:
                    head[at:at] = rng.choice(PIECES)
                case _:
                    line = head.find(b"\r\n", at) + 2
                    head[line:line] = rng.choice(PIECES)
        found = plain_head(bytes(head), PATH)
        if found is not None:
            taken += 1
            body = b"b" * found.length
            assert by_the_parser(bytes(head[: found.size]) + body) == (found.headers, found.length), bytes(head)
    assert taken > 50


@pytest.mark.parametrize(
    "more",
    [
        b"transfer-encoding: chunked\r\n",
        b"content-length: 3\r\n",
        b"connection: close\r\n",
        b"expect: 100-continue\r\n",
        b"x-forwarded-for: 10.0.0.1\r\n",
        b" folded\r\n",
        b"x: \x00\r\n",
        b"x y: 1\r\n",
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(more: bytes) -> None:
    assert plain_head(HEAD, PATH) is not None
    assert plain_head(HEAD[:-2] + more + b"\r\n", PATH) is None


def test_what_is_large_or_not_whole_is_left_to_the_parser() -> None:
    assert plain_head(HEAD.replace(b": 3", b": %d" % MOST_BODY), PATH) is not None
    assert plain_head(HEAD.replace(b": 3", b": %d" % (MOST_BODY + 1)), PATH) is None
    assert plain_head(HEAD[:-1], PATH) is None
    assert plain_head(HEAD.replace(b"host: a\r\n", b""), PATH) is None
    assert plain_head(HEAD.replace(b"x-agent: ", b"x-agent: " + b"y" * 5_000), PATH) is None


@dataclass
class Echo:
    """Says what it was given; ``no`` in the body's place of honour is refused before the body has come."""

    seen: list[bytes] = field(default_factory=list)
    hold: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, headers: dict[str, str], body: Body, peer: tuple[str, int] | None) -> Answered:
        if headers["authorization"] == "Bearer no":
            return 401, {"content-type": "text/plain"}, b"no"
        try:
            whole = body if isinstance(body, bytes) else b"".join([part async for part in body])
        except ClientDisconnect:
            return 400, {}, b"gone"
        if whole == b"sit":
            await self.hold.wait()
        self.seen.append(whole)
        return 200, {"x-peer": peer[0] if peer else ""}, b"<" + whole + b">"


async def long_way(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = b"long " + body
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def serving(wire: Wire = WIRE) -> AsyncIterator[tuple[Echo, Address, Any]]:
    echo = Echo()
    with bound(Address("127.0.0.1", 0)) as (listening, address):
        server = server_for(long_way, wire, Shortcut(PATH, echo.answer))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        await server.listening.wait()
        try:
            async with asyncio.timeout(60):
                yield echo, address, server
        finally:
            echo.hold.set()
            server.should_exit = True
            await task
    assert not server.server_state.connections


async def heard(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def test_requests_follow_each_other_on_one_connection_by_both_ways() -> None:
    async with serving() as (echo, address, _):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(HEAD + b"abc")
        assert await heard(reader) == (200, b"<abc>")
        writer.write(HEAD.replace(b"host", b"connection: Keep-Alive\r\nhost") + b"def")
        assert await heard(reader) == (200, b"<def>")
        writer.write(HEAD.replace(b"/batch", b"/other") + b"ghi")
        assert await heard(reader) == (200, b"long ghi")
        writer.write(HEAD[:20])
        await asyncio.sleep(0.01)
        writer.write(HEAD[20:] + b"jkl")
        assert await heard(reader) in {(200, b"long jkl"), (200, b"<jkl>")}
        writer.write(HEAD)
        await asyncio.sleep(0.01)
        writer.write(b"m")
        await asyncio.sleep(0.01)
        writer.write(b"no")
        assert await heard(reader) == (200, b"<mno>")
        writer.close()
        assert echo.seen[:2] == [b"abc", b"def"]


async def test_what_is_sent_before_the_answer_came_waits_for_it() -> None:
    async with serving() as (echo, address, _):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        other = HEAD.replace(b"/batch", b"/other")
        writer.write(HEAD + b"sit" + HEAD + b"two" + other + b"thr" + HEAD)
        writer.write(b"fou")
        while not echo.hold.is_set():
            await asyncio.sleep(0.01)
            assert echo.seen == []
            echo.hold.set()
        answers = [await heard(reader) for _ in range(4)]
        assert answers[:3] == [(200, b"<sit>"), (200, b"<two>"), (200, b"long thr")]
        assert answers[3] in {(200, b"<fou>"), (200, b"long fou")}
        writer.close()


async def test_who_is_refused_before_its_body_came_may_go_on_after_it() -> None:
    async with serving() as (_, address, _):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(HEAD.replace(b"Bearer x", b"Bearer no"))
        assert await heard(reader) == (401, b"no")
        writer.write(b"abc" + HEAD + b"def")
        assert await heard(reader) == (200, b"<def>")
        writer.close()


async def test_a_body_that_never_ends_is_cut_off_and_one_that_breaks_off_is_no_request() -> None:
    wire = Wire(connections=20, header_timeout_s=60, body_timeout_s=0.1, drain_s=30)
    async with serving(wire) as (echo, address, server):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(HEAD + b"a")
        assert await reader.read() == b""
        writer.close()
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(HEAD + b"a")
        writer.close()
        while server.server_state.tasks or server.server_state.connections:
            await asyncio.sleep(0.01)
        assert echo.seen == []


async def test_a_sender_that_has_closed_its_half_gets_its_answer() -> None:
    async with serving() as (_, address, _):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(HEAD + b"abc")
        writer.write_eof()
        assert (await reader.read()).endswith(b"<abc>")
        writer.close()


async def test_a_server_that_ends_answers_what_is_under_way() -> None:
    async with serving() as (echo, address, server):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(HEAD + b"sit")
        while not server.server_state.tasks:
            await asyncio.sleep(0.01)
        server.should_exit = True
        await asyncio.sleep(0.2)
        echo.hold.set()
        answer = await reader.read()
        assert answer.endswith(b"<sit>")
        assert b"connection: close" in answer or b"HTTP/1.1 200" in answer
        writer.close()


async def test_a_server_that_has_waited_long_enough_says_so_and_hangs_up() -> None:
    async with serving(replace(WIRE, drain_s=0)) as (echo, address, server):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(HEAD + b"sit")
        while not server.server_state.tasks:
            await asyncio.sleep(0.01)
        server.should_exit = True
        status, body = await heard(reader)
        assert (status, json.loads(body)["error"]["reason"]) == (503, "draining")
        assert await reader.read() == b""
        assert not echo.seen
        writer.close()
