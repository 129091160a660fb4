"""A proxy between an S3 client and a real S3 server that loses, repeats, delays and falsifies on purpose.

    async with FaultProxy("http://127.0.0.1:9000", lossy(seed=7)) as proxy:
        ...                     # clients use proxy.endpoint
        proxy.counts.served("put", 200)

It runs on the loop that enters it; ``in_thread`` gives it one of its own, for blocking tests. Closing it cuts every
connection and drops what was to be applied later; ``settle`` waits for that first. A failure of the proxy itself is
raised when it is closed, never passed off as a fault.

Messages are held whole: the target and the headers go through as they came, because the client's signature covers
them, and each delivery has a connection to the server of its own. Every delivery and every answer is logged before the
client can see its effect, so that a test that has its answer finds the counts complete.
"""

import asyncio
import socket
import struct
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from holdfast.base.portal import Portal
from tests.fakes.fault_plans import (
    Answer,
    AnswerAfter,
    ApplyLater,
    Chooser,
    CutResponse,
    DelayResponse,
    Fault,
    LoseRequest,
    Plan,
    Request,
    Rule,
    Stall,
    Twice,
)

NONE = 0
"""In place of a status: nothing came back."""
PIECE_BYTES = 64 * 1024
CONDITIONS = ("if-match", "if-none-match")
_FIRST_LISTING_API = {"prefix", "delimiter", "marker", "max-keys", "encoding-type"}
_CODES = {
    HTTPStatus.FORBIDDEN: "AccessDenied",
    HTTPStatus.CONFLICT: "ConditionalRequestConflict",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalError",
    HTTPStatus.SERVICE_UNAVAILABLE: "SlowDown",
}

Headers = tuple[tuple[bytes, bytes], ...]


class Gone(Exception):  # how a peer behaves, not an error of ours
    """A peer ended its connection in the middle of a message."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request or a response, whole. ``start`` is method and target, or the status."""

    start: tuple[bytes, bytes] | int
    headers: Headers
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return next((value.decode() for given, value in self.headers if given == name.encode()), None)

    def without(self, *names: str) -> "Message":
        return replace(self, headers=tuple(pair for pair in self.headers if pair[0].decode() not in names))

    @property
    def method(self) -> bytes:
        return b"" if isinstance(self.start, int) else self.start[0]

    @property
    def target(self) -> bytes:
        return b"" if isinstance(self.start, int) else self.start[1]

    @property
    def status(self) -> int:
        return self.start if isinstance(self.start, int) else NONE


class Wire:
    """One connection, spoken by h11."""

    def __init__(self, role: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http = h11.Connection(role)
        self.reader = reader
        self.writer = writer

    async def receive(self) -> Message | None:
        """The next message of the peer; None if it has closed the connection before one."""
        start: h11.Request | h11.Response | None = None
        body = bytearray()
        while True:
            if start is not None and self.http.they_are_waiting_for_100_continue:
                self.write(self.http.send(h11.InformationalResponse(status_code=100, headers=[])))
            match self.http.next_event():
                case h11.Request() | h11.Response() as start:
                    pass
                case h11.Data(data):
                    body += data
                case h11.EndOfMessage() if start is not None:
                    head = (start.method, start.target) if isinstance(start, h11.Request) else start.status_code
                    return Message(head, tuple(start.headers), bytes(body))
                case h11.ConnectionClosed():
                    return None
                case h11.NEED_DATA:
                    await self._read()

    async def _read(self) -> None:
        try:
            self.http.receive_data(await self.reader.read(PIECE_BYTES))
        except ConnectionError as error:
            raise Gone from error

    def encoded(self, message: Message) -> bytes:
        """A message as bytes, with the length of its body in place of other framing."""
        headers = list(message.without("transfer-encoding", "connection", "expect").headers)
        if message.body:
            length = b"%d" % len(message.body)
            headers = [pair for pair in headers if pair[0] != b"content-length"] + [(b"content-length", length)]
        if isinstance(message.start, int):
            start: h11.Request | h11.Response = h11.Response(status_code=message.start, headers=headers)
        else:
            start = h11.Request(method=message.method, target=message.target, headers=headers)
        events = [start, *([h11.Data(data=message.body)] if message.body else []), h11.EndOfMessage()]
        return b"".join(self.http.send(event) or b"" for event in events)

    def write(self, data: bytes | None) -> None:
        self.writer.write(data or b"")

    async def send(self, data: bytes) -> None:
        try:
            self.write(data)
            await self.writer.drain()
        except ConnectionError as error:
            raise Gone from error

    def cut(self) -> None:
        """Reset the connection: the peer gets nothing that was not sent yet, and an error."""
        raw = self.writer.get_extra_info("socket")
        if raw is not None and not self.writer.is_closing():
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def classify(message: Message) -> Request:
    """What a request is to S3, in the verbs that ``objects`` counts by, so that the two counts can be compared.

    What the port has no word for is ``copy``, ``multipart`` or ``bucket``. The key of a listing is its prefix.
    """
    parts = urlsplit(message.target.decode())
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket, _, raw_key = parts.path.removeprefix("/").partition("/")
    key = unquote(raw_key)
    method = message.method.decode()
    verb = method.lower()
    if method == "POST" and "delete" in query:
        verb = "delete"
    elif not key:
        listing = "list-type" in query or query.keys() <= _FIRST_LISTING_API
        verb = "list" if method == "GET" and bucket and listing else "bucket"
    elif "uploadId" in query or "uploads" in query:
        verb = "multipart"
    elif method == "PUT" and message.header("x-amz-copy-source") is not None:
        verb = "copy"
    elif method == "GET" and message.header("range") is not None:
        verb = "range"
    if verb == "list":
        key = query.get("prefix", [""])[0]
    return Request(method, verb, key, any(message.header(name) is not None for name in CONDITIONS))


@dataclass(slots=True)
class Record:
    """One request of a client."""

    request: Request
    fault: str | None
    landed: list[int] = field(default_factory=list)
    """The server's answers, one per delivery."""


class Counts:
    """Totals since the proxy started, or since ``clear``. What was asked and what was served differ by the faults."""

    def __init__(self) -> None:
        self.most_at_once = 0
        """Requests that were waiting for their answers."""
        self.received_bytes = 0
        """Of bodies, from the server."""
        self.requests: Counter[str] = Counter()
        self.at_server: Counter[tuple[str, int]] = Counter()
        self.faults: Counter[str] = Counter()

    def asked(self, verb: str | None = None) -> int:
        """Requests that clients sent."""
        return sum(number for its_verb, number in self.requests.items() if verb in (None, its_verb))

    def served(self, verb: str | None = None, status: int | None = None) -> int:
        """Requests that reached the server."""
        return sum(
            number for (its, code), number in self.at_server.items() if verb in (None, its) and status in (None, code)
        )

    def by_answer(self) -> dict[str, int]:
        """What was served, as ``get 200``."""
        return {f"{verb} {status}": number for (verb, status), number in sorted(self.at_server.items())}

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]  # all counts at once, on the object that tests hold


class FaultProxy:
    def __init__(self, upstream: str, plan: Plan | None = None) -> None:
        self.upstream = upstream
        self.counts = Counts()
        self.log: deque[Record] = deque(maxlen=100_000)
        """The newest records, oldest first."""
        self._port = 0
        self._waiting = 0
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self.use(plan or Plan())

    def use(self, plan: Plan) -> None:
        """Follow another plan from the next request on, with fresh counters of its rules. The log goes on."""
        self._chooser = Chooser(plan)

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self._port}"

    async def settle(self) -> None:
        """Wait until everything that was to be applied later has been."""
        while self._late:
            await asyncio.gather(*self._late, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_listening()
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        if self._failure is not None and error is None:
            raise self._failure

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await listener.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Wire(h11.SERVER, reader, writer)
        if self._listener is None:  # the kernel had accepted it before we closed
            client.cut()
            return
        task = self._spawn(self._serve(client), self._connections)
        # Not in the task's own ``finally``: a task that is cancelled before it began runs none.
        task.add_done_callback(lambda _: None if writer.is_closing() else client.cut())

    async def _serve(self, client: Wire) -> None:
        """All requests of one connection, one after the other."""
        try:
            while (message := await client.receive()) is not None:
                await self._exchange(client, message)
                if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                    break
                client.http.start_next_cycle()
            client.writer.close()
        except (Gone, h11.RemoteProtocolError):
            client.cut()

    async def _exchange(self, client: Wire, message: Message) -> None:
        request = classify(message)
        fault = self._chooser.choose(request)
        record = Record(request, fault.kind if fault is not None else None)
        self.log.append(record)
        self.counts.requests[request.verb] += 1
        if record.fault is not None:
            self.counts.faults[record.fault] += 1
        exchange = self.exchange(client, message, record)
        self._waiting += 1
        self.counts.most_at_once = max(self.counts.most_at_once, self._waiting)
        try:
            await exchange.perform(fault)
        except (Gone, h11.RemoteProtocolError):
            client.cut()  # no fault of a plan: one of the peers failed
        finally:
            self._waiting -= 1

    def exchange(self, client: Wire, message: Message, record: Record) -> "Exchange":
        return Exchange(self, client, message, record)

    def later(self, work: Coroutine[Any, Any, object]) -> None:
        """Run something after the exchange has ended."""
        self._spawn(_finish(work), self._late)

    def _spawn(self, work: Coroutine[Any, Any, None], home: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        home.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            home.discard(done)
            if not done.cancelled() and (failure := done.exception()) is not None and self._failure is None:
                self._failure = failure

        task.add_done_callback(ended)
        return task


async def _finish(work: Awaitable[object]) -> None:
    with suppress(Gone):  # the client has its answer, and the log has this one
        await work


@dataclass
class Exchange:
    """One request of a client, and what each fault makes of it."""

    proxy: FaultProxy
    client: Wire
    message: Message
    record: Record

    async def perform(self, fault: Fault | None) -> None:
        match fault:
            case CutResponse(after_bytes):
                await self._cut_response(after_bytes)
            case DelayResponse(ms):
                reply = await self.deliver(self.message)
                await asyncio.sleep(ms / 1000)
                await self.reply(reply)
            case Twice(cut):
                await self.deliver(self.message)
                second = await self.deliver(self.message)
                if cut:
                    self.client.cut()
                else:
                    await self.reply(second)
            case Answer(status):
                await self.reply(refusal(status, self.message))
            case AnswerAfter(status):
                await self.deliver(self.message)
                await self.reply(refusal(status, self.message, maybe_landed=True))
            case Stall():
                await self.deliver(self.message)
                with suppress(ConnectionError):
                    await self.client.reader.read()  # until the client gives up
                self.client.cut()
            case LoseRequest():
                self.client.cut()
            case ApplyLater(ms):
                self.proxy.later(self._deliver_later(ms))
                self.client.cut()
            case _:
                await self.reply(await self.deliver(self.message))

    async def deliver(self, message: Message) -> Message:
        """Send a request to the server, and take its response."""
        verb, status = classify(message).verb, NONE
        try:
            wire = await _connected(self.proxy.upstream)
            try:
                with suppress(Gone):  # a server that stopped reading may have answered all the same
                    await wire.send(wire.encoded(message))
                response = await wire.receive()
            finally:
                wire.writer.close()
            if response is None:
                raise Gone
            status = response.status
            self.proxy.counts.received_bytes += len(response.body)
            return response
        finally:
            self.record.landed.append(status)
            self.proxy.counts.at_server[verb, status] += 1

    async def reply(self, reply: Message) -> None:
        await self.client.send(self.client.encoded(reply))

    async def _cut_response(self, after_bytes: int) -> None:
        reply = await self.deliver(self.message)
        if after_bytes:
            await self.client.send(self.client.encoded(reply)[:after_bytes])
            self.client.writer.close()
        else:
            self.client.cut()

    async def _deliver_later(self, ms: float) -> None:
        await asyncio.sleep(ms / 1000)
        await self.deliver(self.message)


async def _connected(address: str) -> Wire:
    server = urlsplit(address)
    try:
        return Wire(h11.CLIENT, *await asyncio.open_connection(server.hostname, server.port))
    except OSError as error:
        raise Gone from error


def refusal(status: int, request: Message, *, maybe_landed: bool = False) -> Message:
    """An answer of the proxy's own, in the form that S3 gives to errors.

    ``SlowDown`` is a promise that nothing was done, so a request that may have landed is never answered with it.
    """
    code = _CODES.get(HTTPStatus(status), "ServiceUnavailable")
    if maybe_landed and code == "SlowDown":
        code = "ServiceUnavailable"
    body = f"<Error><Code>{code}</Code><Message>answered by the fault proxy</Message></Error>".encode()
    headers = ((b"content-type", b"application/xml"), (b"content-length", b"%d" % len(body)))
    return Message(status, headers, b"" if request.method == b"HEAD" else body)


@contextmanager
def in_thread(upstream: str, plan: Plan | None = None) -> Iterator[FaultProxy]:
    """A running proxy for blocking code. Its loop runs in a thread; ``use``, ``log`` and ``counts`` work from here."""
    with Portal() as portal:
        proxy = FaultProxy(upstream, plan)
        portal.enter(proxy)
        yield proxy


async def _delay(upstream: str, ms: float) -> None:
    async with FaultProxy(upstream, Plan.of(Rule(fault=DelayResponse(ms)))) as proxy:
        print(proxy.endpoint, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":  # a process of its own for benchmarks: answers of a server, later by so many milliseconds
    asyncio.run(_delay(sys.argv[1], float(sys.argv[2])))
