"""Answers, however they come in, against h11 as a second reader; and what is left of the connection afterwards."""

import asyncio
import gc
import socket
from collections.abc import Sequence
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.objects.cloud.http1 import (
    CONNECTION_CLOSED,
    CUT_OFF,
    NO_ANSWER,
    NOT_HTTP,
    TOO_SOON,
    Answer,
    Broken,
    Connection,
)

PUT = b"PUT /k HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\n"
REQUEST = b"GET /k HTTP/1.1\r\nhost: h\r\n\r\n"
OK = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 5\r\n\r\nhello'


async def ask(connection: Connection, body: bytes = b"", *, bodiless: bool = False, seconds: float = 30) -> Answer:
    connection.send(REQUEST, body, bodiless=bodiless)
    return await connection.answer(seconds)


async def told(pieces: Sequence[bytes], *, ends: bool = False, bodiless: bool = False) -> tuple[Answer, bool]:
    """What a connection makes of these pieces, and whether it may be used again."""
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection([]), sock=ours)
        asked = asyncio.ensure_future(ask(connection, bodiless=bodiless))
        await asyncio.sleep(0)
        for piece in pieces:
            connection.data_received(piece)
        if ends:
            assert theirs.recv(1000) == REQUEST
            theirs.close()
        try:
            return await asked, connection.usable
        finally:
            connection.abort()
            await asyncio.sleep(0)


async def broken(pieces: Sequence[bytes], *, ends: bool = False) -> str:
    with pytest.raises(Broken) as trouble:
        await told(pieces, ends=ends)
    assert trouble.value.sent
    return trouble.value.said


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


def chunked(body: bytes, cuts: Sequence[int]) -> bytes:
    chunks = [piece for piece in split(body, cuts) if piece]
    return b"".join(b"%x;some=thing\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\nlate: header\r\n\r\n"


def by_h11(data: bytes) -> tuple[int, bytes, bool]:
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/k", headers=[("host", "h")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(data)
    status, body = 0, b""
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
    return status, body, reader.their_state is h11.DONE


@given(
    status=st.sampled_from([200, 201, 206, 400, 403, 404, 409, 412, 500, 503]),
    body=st.binary(max_size=300),
    in_chunks=st.booleans(),
    closes=st.booleans(),
    interim=st.booleans(),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
    again=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_an_answer_reads_alike_however_it_is_cut(
    status: int, body: bytes, in_chunks: bool, closes: bool, interim: bool, cuts: list[int], again: list[int]
) -> None:
    head = b"HTTP/1.1 %d Some Words\r\nX-A:  b \r\n" % status
    head += b"Connection: close\r\n" if closes else b""
    if in_chunks:
        data = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, cuts)
    else:
        data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    data = (b"HTTP/1.1 100 Continue\r\n\r\n" if interim else b"") + data
    answer, usable = asyncio.run(told(split(data, again)))
    assert (answer.status, answer.body, usable) == by_h11(data)
    assert answer.headers["x-a"] == "b"


async def test_a_body_without_a_length_goes_on_to_the_end() -> None:
    answer, usable = await told([b"HTTP/1.0 200 OK\r\n\r\nhel", b"lo"], ends=True)
    assert (answer.body, answer.cut_anywhere, usable) == (b"hello", True, False)
    assert not (await told([OK]))[0].cut_anywhere


async def test_of_two_lengths_none_is_trusted_with_the_connection() -> None:
    both = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    answer, usable = await told([both])
    assert (answer.body, usable) == (b"hello", False)
    answer, usable = await told([OK.replace(b"\r\nContent", b"\r\nContent-Length: 5\r\nContent")])
    assert (answer.body, usable) == (b"hello", True)  # twice the same


async def test_of_several_wishes_none_is_forgotten() -> None:
    wishes = b"HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: x\r\nContent-Length: 0\r\n\r\n"
    answer, usable = await told([wishes])
    assert (answer.headers["connection"], usable) == ("close, x", False)


async def test_any_number_of_words_in_between() -> None:
    answer, usable = await told([b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + OK])
    assert (answer.body, usable) == (b"hello", True)


async def test_some_answers_have_no_body_whatever_they_say() -> None:
    for status in (204, 304):
        answer, usable = await told([b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status])
        assert (answer.status, answer.body, usable) == (status, b"", True)
    answer, usable = await told([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"], bodiless=True)
    assert (answer.body, answer.headers["content-length"], usable) == (b"", "5", True)


async def test_an_older_server_keeps_a_connection_only_if_it_says_so() -> None:
    for says, usable in ((b"", False), (b"Connection: Keep-Alive\r\n", True)):
        assert (await told([b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n" + says + b"\r\n"]))[1] is usable


async def test_bytes_beyond_an_answer_are_never_taken_for_the_next_one() -> None:
    answer, usable = await told([OK + b"HTTP/1.1 404 Not Found\r\n"])
    assert (answer.body, usable) == (b"hello", False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x15\x03\x01\x00\x02",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1x200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\nX: a\r\n b: c\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nb: c\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rb: c\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\x0b\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n: 5\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 3\r\n\r\nhello",
        b'HTTP/1.1 200 OK\r\nETag: "a"\r\nETag: "b"\r\nContent-Length: 0\r\n\r\n',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 70_000,
    ],
)
async def test_what_is_no_answer(data: bytes) -> None:
    assert await broken([data]) == NOT_HTTP


async def test_an_end_before_the_answer_and_one_within_it() -> None:
    assert await broken([], ends=True) == CONNECTION_CLOSED
    assert await broken([OK[:10]], ends=True) == CONNECTION_CLOSED
    assert await broken([OK[:-2]], ends=True) == CUT_OFF
    assert await broken([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"], ends=True) == CUT_OFF


async def test_a_server_that_says_nothing() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection([]), sock=ours)
        with pytest.raises(Broken, match=NO_ANSWER):
            await ask(connection, seconds=0.01)
        assert not connection.usable
        await asyncio.sleep(0)


async def test_what_is_closed_carries_nothing() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection([]), sock=ours)
        connection.abort()
        with pytest.raises(Broken, match=CONNECTION_CLOSED) as trouble:
            await ask(connection)
        assert not trouble.value.sent
        await asyncio.sleep(0)  # for it to be closed
        theirs.setblocking(False)
        assert theirs.recv(1000) == b""


@pytest.mark.parametrize("status", [412, 200])
async def test_before_all_was_sent_a_refusal_counts_and_ends_the_connection(status: int) -> None:
    """What was not read cannot have been written."""
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection([]), sock=ours)
        theirs.sendall(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
        asked = ask(connection, bytes(64 * 1024 * 1024))
        if status == 412:
            assert (await asked).status == 412
        else:
            with pytest.raises(Broken, match=TOO_SOON) as trouble:
                await asked
            assert trouble.value.sent
        assert not connection.usable
        connection.abort()
        await asyncio.sleep(0)


async def begun(theirs: socket.socket, ours: socket.socket) -> Connection:
    """A connection on which a request was begun, of which the server has all but the last byte."""
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection([]), sock=ours)
    connection.begin(PUT, b"12345")
    await asyncio.sleep(0)
    theirs.setblocking(False)
    assert theirs.recv(1000) == PUT + b"1234"
    assert connection.is_held()
    return connection


async def test_the_last_byte_goes_when_the_answer_is_wanted() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = await begun(theirs, ours)
        answered = asyncio.ensure_future(connection.answer(30))
        await asyncio.sleep(0)
        assert theirs.recv(1000) == b"5"
        theirs.sendall(OK)
        assert (await answered).body == b"hello"
        assert connection.usable
        assert not connection.is_held()
        answered = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0)
        assert theirs.recv(1000) == REQUEST  # the last byte was that of one request
        answered.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize("heard", [True, False], ids=["heard of", "not heard of yet"])
@pytest.mark.parametrize(
    "said",
    [b"", OK, OK[:5], OK[:-2], b"HTTP/1.1 412 X\r\nContent-Length: 0\r\n\r\n"],
    ids=["end", "200", "a beginning", "without an end", "412"],
)
async def test_what_the_server_has_ended_or_answered_is_not_held(said: bytes, heard: bool) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = await begun(theirs, ours)
        if said:
            theirs.sendall(said)
        else:
            theirs.shutdown(socket.SHUT_WR)
        for _ in range(5 if heard else 0):
            await asyncio.sleep(0)
        assert not connection.is_held()
        connection.give_up()
        await asyncio.sleep(0)


async def test_what_is_given_up_ends_without_its_last_byte_and_nobody_hears_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for ended in (True, False):
        ours, theirs = socket.socketpair()
        with theirs:
            connection = await begun(theirs, ours)
            if ended:
                theirs.close()
                for _ in range(5):
                    await asyncio.sleep(0)
            connection.give_up()
            assert not connection.usable
            assert not connection.is_held()
            await asyncio.sleep(0)
            if not ended:
                assert theirs.recv(1000) == b""
        del connection
    gc.collect()
    assert not caplog.records


async def test_the_clock_of_one_request_is_not_that_of_the_next() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection([]), sock=ours)
        theirs.sendall(OK)
        assert (await ask(connection, seconds=0.05)).body == b"hello"
        answered = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0.1)
        theirs.sendall(OK)
        assert (await answered).body == b"hello"
        connection.abort()
        await asyncio.sleep(0)


async def test_who_is_cancelled_closes_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = await begun(theirs, ours)
        answered = asyncio.ensure_future(connection.answer(30))
        await asyncio.sleep(0)
        answered.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answered
        await asyncio.sleep(0)
        assert theirs.recv(1000) == b"5"
        assert theirs.recv(1000) == b""
        assert not connection.usable


async def test_what_comes_after_the_answer_spoils_the_connection() -> None:
    """Before anybody has looked at it, too."""
    assert await told([OK]) == (Answer(200, {"etag": '"e"', "content-length": "5"}, b"hello"), True)
    assert (await told([OK, OK]))[1] is False
