"""One request of a client and the means to carry it out: forward, deliver again, answer, cut.

Every delivery and every answer is logged before the client can see its effect, so that a test that has its answer finds
the counts complete. ``forward`` streams. ``collect`` and ``deliver`` hold a body in memory: the faults that send a
request more than once, or later, need it whole.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus

from holdfast.sim.proxy.http import SERVER, Framing, Gone, RequestHead, ResponseHead, Wire
from holdfast.sim.proxy.log import NONE, Log, Record
from holdfast.sim.proxy.request import Request, classify
from holdfast.sim.proxy.server import Response, Server

S3_CODES = {
    400: "BadRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
    504: "RequestTimeout",
}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response, its body as it stood on the wire."""

    head: ResponseHead
    body: bytes


def error_reply(status: int, method: str, *, maybe_landed: bool = False) -> Reply:
    """An answer of the proxy's own, in the form that S3 gives to errors.

    ``SlowDown`` is a promise that nothing was done, so a request that may have landed is never answered with it.
    """
    code = S3_CODES.get(status, "ServiceUnavailable")
    if maybe_landed and code in ("SlowDown", "TooManyRequests"):
        code = "ServiceUnavailable"
    body = f"<Error><Code>{code}</Code><Message>answered by the fault proxy</Message></Error>".encode()
    if method == "HEAD":
        body = b""
    headers = (("Content-Type", "application/xml"), ("Content-Length", str(len(body))))
    reason = _PHRASES.get(status, "Error")
    return Reply(ResponseHead("HTTP/1.1", headers, status, reason), body)


class Lists:
    """Older answers to listings, by address; the least recently listed addresses are forgotten."""

    ADDRESSES = 1_000

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._answers: OrderedDict[str, deque[Reply]] = OrderedDict()

    def remember(self, address: str, reply: Reply) -> None:
        if reply.head.status == HTTPStatus.OK:
            self._answers.setdefault(address, deque(maxlen=self.keep + 1)).append(reply)
            self._answers.move_to_end(address)
            if len(self._answers) > self.ADDRESSES:
                self._answers.popitem(last=False)

    def older(self, address: str, lag: int, newest: Reply) -> Reply:
        """The answer ``lag`` listings before the newest, or the oldest that is known."""
        answers = self._answers.get(address)
        return answers[max(0, len(answers) - 1 - lag)] if answers else newest


@dataclass(frozen=True)
class Surroundings:
    """What the exchanges of one proxy share. ``later`` runs something after the exchange has ended."""

    server: Server
    log: Log
    lists: Lists
    later: Callable[[Awaitable[object]], None]


class Exchange:
    def __init__(self, client: Wire, head: RequestHead, record: Record, around: Surroundings) -> None:
        self.client = client
        # The proxy itself asks the client to continue; the server is sent the body in any case.
        self.head = head.without("expect")
        self.request: Request = record.request
        self.around = around
        self._expects = (head.header("expect") or "").lower() == "100-continue"
        self._record = record
        self._body_read = head.framing == 0
        self._ends = not head.keep_alive

    @property
    def reusable(self) -> bool:
        """Whether the client's connection stands at its next request."""
        return self._body_read and not self._ends

    async def body(self) -> AsyncIterator[bytes]:
        if self._expects:
            await self.client.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async for piece in self.client.pieces(self.head.framing):
            yield piece
        self._body_read = True

    async def drop_body(self) -> None:
        async for _ in self.body():
            continue

    async def collect(self) -> bytes:
        return b"".join([piece async for piece in self.body()])

    @asynccontextmanager
    async def forward(self, head: RequestHead | None = None) -> AsyncIterator[Response]:
        """Stream the request to the server; its response is open inside the block."""
        body = None if self.head.framing == 0 else self.body()
        async with self._sent(head or self.head, body) as response:
            yield response

    async def deliver(self, head: RequestHead, body: bytes) -> Reply:
        """Send a request that is held whole, and take its response whole."""
        async with self._sent(head, _once(body)) as response:
            return Reply(response.head, b"".join([piece async for piece in response.pieces()]))

    async def relay(self, response: Response) -> None:
        """Stream the server's response to the client."""
        self._answered(response.head, response.framing)
        await self.client.write(response.head.wire)
        async for piece in response.pieces():
            await self.client.write(piece)

    async def reply(self, reply: Reply) -> None:
        self._answered(reply.head, reply.head.framing(self.head.method))
        await self.client.write(reply.head.wire + reply.body)

    async def answer(self, status: int, *, maybe_landed: bool = False) -> None:
        """An error of the proxy's own."""
        await self.reply(error_reply(status, self.head.method, maybe_landed=maybe_landed))

    def cut(self, *, gently: bool = False) -> None:
        """End the client's connection without (the rest of) an answer; gently lets what was written arrive."""
        self._ends = True
        self.lost()
        if gently:
            self.client.close()
        else:
            self.client.cut()

    def lost(self) -> None:
        """Log that the client gets no answer."""
        self.around.log.answered(self._record, NONE)

    @asynccontextmanager
    async def _sent(self, head: RequestHead, body: AsyncIterator[bytes] | None) -> AsyncIterator[Response]:
        verb = classify(head).verb
        arrived = False
        try:
            async with self.around.server.send(head, body) as response:
                arrived = True
                self.around.log.served(self._record, verb, response.head.status)
                yield response
        except Gone as gone:
            if gone.side == SERVER and not arrived:
                self.around.log.served(self._record, verb, NONE)
            raise

    def _answered(self, head: ResponseHead, framing: int | Framing) -> None:
        self._ends = self._ends or not head.keep_alive or framing is Framing.UNTIL_CLOSE
        self.around.log.answered(self._record, head.status)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body
