"""HTTP/1.1 as a client, on the event loop: one connection, one request at a time.

A request is written whole and its answer is read whole: what stores hold under one key. Whatever breaks in between is
``Broken``, which says whether the request may have reached the server; the connection is of no use afterwards, and
neither is one whose request was given up. An answer that comes before all of the request was sent (a refusal) counts,
and ends the connection.
"""

import asyncio
from dataclasses import dataclass

CONNECTION_CLOSED = "the connection was closed before the answer"
CONNECTION_RESET = "the connection was reset"
CUT_OFF = "the answer was cut off"
NO_ANSWER = "no answer in time"
NOT_HTTP = "it does not speak HTTP"

_LONGEST_HEAD = 64 * 1024
_END = b"\r\n\r\n"


class Broken(Exception):
    """No whole answer. ``sent``: the request may have reached the server."""

    def __init__(self, said: str, *, sent: bool) -> None:
        super().__init__(said)
        self.said = said
        self.sent = sent


@dataclass(slots=True)
class Answer:
    """``headers`` by their names in small letters; of several with one name, the last."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


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

    async def ask(self, head: bytes, body: bytes, *, bodiless: bool, seconds: float) -> Answer:
        """Send a request; ``bodiless`` if its answer has no body (HEAD), whatever its headers say."""
        loop = asyncio.get_running_loop()
        self._bodiless = bodiless
        waiting: asyncio.Future[Answer] = loop.create_future()
        self._waiting = waiting
        clock = loop.call_later(seconds, self._fail, NO_ANSWER)
        self.transport.write(head + body if len(body) < _LONGEST_HEAD else head)
        if len(body) >= _LONGEST_HEAD:
            self.transport.write(body)
        try:
            return await waiting
        except BaseException:
            self.abort()
            raise
        finally:
            clock.cancel()
            self._waiting = None
            self._reset()

    def abort(self) -> None:
        self.usable = False
        self.transport.abort()

    # Reading an answer.

    def _read_head(self, data: bytes) -> None:
        end = data.find(_END)
        if end < 0:
            self._head = data
            if len(data) > _LONGEST_HEAD or not b"HTTP/1.".startswith(data[:7]):
                self._fail(NOT_HTTP)
            return
        try:
            answer, lasting = _parsed(data[:end])
            self._begin_body(answer, lasting=lasting)
        except ValueError:
            self._fail(NOT_HTTP)
            return
        self._head = b""
        rest = data[end + 4 :]
        if answer.status < 200:  # a word in between
            self._answer = None
            if rest:
                self._read_head(rest)
        elif self._missing or self._chunks or self._to_the_end:
            if rest:
                self._read_body(rest)
        else:
            self._finish(beyond=len(rest))

    def _begin_body(self, answer: Answer, *, lasting: bool) -> None:
        self._answer = answer
        self.usable = self.usable and lasting
        self._missing, self._chunks, self._to_the_end = 0, None, False
        if self._bodiless or answer.status in (204, 304) or answer.status < 200:
            return
        if "transfer-encoding" in answer.headers:
            if answer.headers["transfer-encoding"].lower() != "chunked":
                raise ValueError("an encoding that nobody asked for")
            self._chunks = _Chunks()
        elif (length := answer.headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdigit()):
                raise ValueError("no length")
            self._missing = int(length)
        else:
            self._to_the_end = True
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
        if beyond or self.transport.get_write_buffer_size():
            self.usable = False
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
            line, self._line = (self._line + data[at:end]).removesuffix(b"\r"), b""
            at = end + 1
            if self._took_last(line):
                return len(data) - at
        return None

    def _took_last(self, line: bytes) -> bool:
        """Take one line between chunks; whether it was the last of the body."""
        if self._trailing:
            return not line
        if self._after_chunk:
            if line:
                raise ValueError("a chunk that does not end where it says")
            self._after_chunk = False
            return False
        digits = line.partition(b";")[0].strip()
        if not digits.isalnum():
            raise ValueError("a chunk without a size")
        self._missing = int(digits, 16)
        self._after_chunk, self._trailing = self._missing > 0, self._missing == 0
        return False


def _parsed(head: bytes) -> tuple[Answer, bool]:
    """The head of an answer, and whether the connection lasts after it."""
    first, *lines = head.decode("latin-1").split("\r\n")
    if not first.startswith("HTTP/1.") or not first[9:12].isdigit():
        raise ValueError("no answer")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError("no header")
        headers[name.lower()] = value.strip()
    wish = headers.get("connection", "").lower()
    lasting = "close" not in wish if first[7] == "1" else "keep-alive" in wish
    return Answer(int(first[9:12]), headers), lasting
