"""HTTP/1.1 as a client, on the event loop: one connection, one request at a time.

A request is written whole, or first without its last byte, and its answer is read whole: what stores hold under one
key. Whatever breaks in between is ``Broken``, which says whether the request may have reached the server; the
connection is of no use afterwards, and neither is one whose request was given up. A refusal that comes before all of
the request was sent counts, and ends the connection; a success cannot come so soon.
"""

import asyncio
import re
import select
from dataclasses import dataclass

from holdfast.base.errors import check

CONNECTION_CLOSED = "the connection was closed before the answer"
CONNECTION_RESET = "the connection was reset"
CUT_OFF = "the answer was cut off"
NO_ANSWER = "no answer in time"
NOT_HTTP = "it does not speak HTTP"
TOO_SOON = "it answered before it was asked"

_LONGEST_HEAD = 64 * 1024
_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: |$)")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")
_ONCE = {"content-length", "transfer-encoding", "content-range", "etag", "last-modified"}
"""Headers that mean nothing if there are two that differ."""


class Broken(Exception):
    """No whole answer. ``sent``: the request may have reached the server."""

    def __init__(self, said: str, *, sent: bool) -> None:
        super().__init__(said)
        self.said = said
        self.sent = sent


@dataclass(slots=True)
class Answer:
    """``headers`` by their names in small letters. ``cut_anywhere``: only the end of the connection was the end of the
    body, so nobody can tell whether there was more."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    cut_anywhere: bool = False


class Refused(Exception):
    """An answer that is none of those that were hoped for."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.answer = answer


class Connection(asyncio.Protocol):
    def __init__(self, home: "list[Connection]") -> None:
        self.home = home
        """Where the connections of its pool wait; it leaves when the server closes it."""
        self.idle_since = 0.0
        self._waiting: asyncio.Future[Answer] | None = None
        self._held_back = b""
        self._bodiless = False
        self._reset()
        self.usable = False

    def _reset(self) -> None:
        self._head = b""
        self._answer: Answer | None = None
        self._pieces: list[bytes] = []
        self._missing = 0
        self._chunks: _Chunks | None = None
        self._to_the_end = False

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]  # a stream's
        self._news = select.poll()
        self._news.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            self.abort()  # what nobody asked for
        elif self._answer is None:
            self._read_head(self._head + data if self._head else data)
        else:
            self._read_body(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self in self.home:
            self.home.remove(self)
        if self._to_the_end and error is None:
            self._finish()
        elif self._answer is not None:
            self._fail(CUT_OFF)
        else:
            self._fail(CONNECTION_RESET if isinstance(error, ConnectionResetError) else CONNECTION_CLOSED)

    # What the pool calls.

    def is_quiet(self) -> bool:
        """Whether the server did nothing while nobody asked; the loop may not have heard of it yet.

        Nearly always it has closed the connection. What it said, however, would be taken for the next answer.
        """
        return self.usable and not self.transport.is_closing() and not self._news.poll(0)

    def send(self, head: bytes, body: bytes, *, bodiless: bool = False) -> None:
        """Send a request; ``bodiless`` if its answer has no body (HEAD), whatever its headers say."""
        if not self.usable or self.transport.is_closing():  # it went as soon as it had come
            raise Broken(CONNECTION_CLOSED, sent=False)
        self._bodiless = bodiless
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(head + body if len(body) < _LONGEST_HEAD else head)
        if len(body) >= _LONGEST_HEAD:
            self.transport.write(body)

    def begin(self, head: bytes, body: bytes) -> None:
        """Send a request but for the last byte of its body, without which the server has nothing to act upon."""
        self.send(head, body[:-1])
        self._held_back = body[-1:]

    def is_held(self) -> bool:
        """Whether what was begun can be ended: the server has not closed the connection, nor begun to answer."""
        waits = self._waiting is not None and not self._waiting.done()
        return waits and self._answer is None and not self._head and self.is_quiet()

    def give_up(self) -> None:
        """What was begun was not asked for."""
        waiting, self._waiting = self._waiting, None
        self.usable = False
        if waiting is None or waiting.get_loop().is_closed():  # its connections went with it
            return
        waiting.cancel()  # also if it has failed: nobody wants to hear of that
        self.transport.abort()

    async def answer(self, seconds: float) -> Answer:
        """To what was sent; if it was only begun, it is ended first."""
        check(self._waiting is not None, "a request was sent")
        waiting: asyncio.Future[Answer] = self._waiting  # type: ignore[assignment]  # checked
        clock = asyncio.get_running_loop().call_later(seconds, self._fail, NO_ANSWER)
        try:
            if self._held_back:
                self.transport.write(self._held_back)
            return await waiting
        except BaseException:
            self.abort()
            raise
        finally:
            clock.cancel()
            self._waiting, self._held_back = None, b""
            self._reset()

    def abort(self) -> None:
        self.usable = False
        self.transport.abort()

    # Reading an answer.

    def _read_head(self, data: bytes) -> None:
        at = 0
        while (end := data.find(_END, at)) >= 0:
            try:
                answer, lasting = _parsed(data[at:end])
                self._begin_body(answer, lasting=lasting)
            except ValueError:
                self._fail(NOT_HTTP)
                return
            at = end + len(_END)
            if answer.status >= 200:
                self._head = b""
                self._go_on(data[at:])
                return
            self._answer = None  # a word in between
        self._head = data[at:]
        if len(self._head) > _LONGEST_HEAD or not b"HTTP/1.".startswith(self._head[:7]):
            self._fail(NOT_HTTP)

    def _go_on(self, rest: bytes) -> None:
        if not (self._missing or self._chunks or self._to_the_end):
            self._finish(beyond=len(rest))
        elif rest:
            self._read_body(rest)

    def _begin_body(self, answer: Answer, *, lasting: bool) -> None:
        self._answer = answer
        self.usable = self.usable and lasting
        self._missing, self._chunks, self._to_the_end = 0, None, False
        if answer.status == 101:
            raise ValueError("another protocol, which nobody asked for")
        if self._bodiless or answer.status in (204, 304) or answer.status < 200:
            return
        if "transfer-encoding" in answer.headers:
            if answer.headers["transfer-encoding"].lower() != "chunked":
                raise ValueError("an encoding that nobody asked for")
            self._chunks = _Chunks()
            self.usable = self.usable and "content-length" not in answer.headers  # which of the two is true?
        elif (length := answer.headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdigit()):
                raise ValueError("no length")
            self._missing = int(length)
        else:
            self._to_the_end = answer.cut_anywhere = True
            self.usable = False

    def _read_body(self, data: bytes) -> None:
        if self._chunks is not None:
            try:
                beyond = self._chunks.feed(data)
            except ValueError:
                self._fail(NOT_HTTP)
                return
            if beyond is not None:
                self._pieces = self._chunks.pieces
                self._finish(beyond=beyond)
        elif self._to_the_end:
            self._pieces.append(data)
        elif len(data) < self._missing:
            self._pieces.append(data)
            self._missing -= len(data)
        else:
            beyond = len(data) - self._missing
            self._pieces.append(data[: self._missing] if beyond else data)
            self._finish(beyond=beyond)

    def _finish(self, *, beyond: int = 0) -> None:
        """The answer is whole. Bytes beyond it, or a request that is not sent yet, spoil the connection."""
        if self._waiting is None or self._waiting.done() or self._answer is None:
            return
        if beyond:
            self.usable = False
        if self.transport.get_write_buffer_size():
            self.usable = False
            if self._answer.status < 300:
                self._fail(TOO_SOON)
                return
        pieces = self._pieces
        self._answer.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._waiting.set_result(self._answer)

    def _fail(self, said: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Broken(said, sent=True))


class _Chunks:
    """A body in chunks, taken apart as it comes."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._line = b""
        self._missing = 0
        self._after_chunk = False
        self._trailing = False

    def feed(self, data: bytes) -> int | None:
        """How many bytes came beyond the end of the body; None before the end."""
        at = 0
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                self.pieces.append(piece)
                self._missing -= len(piece)
                at += len(piece)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                if len(self._line) > _LONGEST_HEAD:
                    raise ValueError("a line without end")
                return None
            line, self._line = self._line + data[at:end], b""
            at = end + 1
            if not line.endswith(b"\r"):
                raise ValueError("half the end of a line")
            if self._took_last(line[:-1]):
                return len(data) - at
        return None

    def _took_last(self, line: bytes) -> bool:
        """Take one line between chunks; whether it was the last of the body."""
        if self._trailing:
            if line and b":" not in line:
                raise ValueError("no header after the last chunk")
            return not line
        if self._after_chunk:
            if line:
                raise ValueError("a chunk that does not end where it says")
            self._after_chunk = False
            return False
        digits = line.partition(b";")[0].rstrip(b" \t")
        if not _CHUNK_SIZE.fullmatch(digits):
            raise ValueError("a chunk without a size")
        self._missing = int(digits, 16)
        self._after_chunk, self._trailing = self._missing > 0, self._missing == 0
        return False


def _parsed(head: bytes) -> tuple[Answer, bool]:
    """The head of an answer, and whether the connection lasts after it."""
    first, *lines = head.decode("latin-1").split("\r\n")
    status = _STATUS_LINE.match(first)
    if status is None or not head.count(b"\n") == head.count(b"\r") == len(lines) or b"\0" in head:
        raise ValueError("no answer, or letters that belong into none")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name[0] in " \t" or name[-1] in " \t":
            raise ValueError("no header, or one in several lines")
        name, value = name.lower(), value.strip(" \t")
        if (other := headers.get(name, value)) != value:
            if name in _ONCE:
                raise ValueError("two that differ")
            value = f"{other}, {value}"
        headers[name] = value
    wish = headers.get("connection", "").lower()
    lasting = "close" not in wish if status[1] == "1" else "keep-alive" in wish and "close" not in wish
    return Answer(int(status[2]), headers), lasting
