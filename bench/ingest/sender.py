"""A sender that costs little, so that collectors are measured and not their clients: requests built as bytes, one
connection per sender, no streams in between, answers looked at just enough to know that the batch was accepted as new.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from holdfast.telemetry.frame import inspect

_LENGTH = b"content-length: "


def request(frame: bytes, token: str) -> bytes:
    of = inspect(frame).identity
    head = (
        "POST /ingest/v1/batch HTTP/1.1\r\nhost: collector\r\n"
        f"authorization: Bearer {token}\r\nx-lightmetrics-agent: {of.agent_id}\r\n"
        f"x-lightmetrics-seq-start: {of.seq_start}\r\nx-lightmetrics-seq-end: {of.seq_end}\r\n"
        f"content-length: {len(frame)}\r\n\r\n"
    )
    return head.encode() + frame


@asynccontextmanager
async def senders(url: str, count: int) -> AsyncIterator["Senders"]:
    """So many, connected: agents keep their connections, so no turn includes the time to make them."""
    place = urlsplit(url)
    host, port = place.hostname or "", place.port or 0
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(_Sender, host, port) for _ in range(count)]
    try:
        yield Senders([sender for _, sender in made])
    finally:
        for transport, _ in made:
            transport.close()


class Senders:
    def __init__(self, each: "list[_Sender]") -> None:
        self._each = each

    async def send(self, requests: Iterable[bytes]) -> list[float]:
        """Send every request, each sender one at a time; the seconds that each took."""
        waiting = iter(requests)
        took: list[float] = []
        await asyncio.gather(*(sender.begin(waiting, took) for sender in self._each))
        return took


class _Sender(asyncio.Protocol):
    """Sends one request after the other, until there are none."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer = b""
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def begin(self, waiting: Iterator[bytes], took: list[float]) -> "asyncio.Future[None]":
        self._waiting = waiting
        self._took = took
        self._next()
        return self.done

    def data_received(self, data: bytes) -> None:
        self._answer = self._answer + data if self._answer else data
        end = self._answer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        at = self._answer.index(_LENGTH) + len(_LENGTH)
        if len(self._answer) < end + int(self._answer[at : self._answer.index(b"\r\n", at)]):
            return
        answer, self._answer = self._answer, b""
        self._took.append(time.perf_counter() - self._began)
        if answer.startswith(b"HTTP/1.1 200") and b'"duplicate":false' in answer:
            self._next()
        elif not self.done.done():
            self.done.set_exception(RuntimeError(f"not accepted as new: {answer!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or RuntimeError("the collector closed the connection"))

    def _next(self) -> None:
        each = next(self._waiting, None)
        if each is not None:
            self._began = time.perf_counter()
            self._transport.write(each)  # type: ignore[attr-defined]  # of a stream
        elif not self.done.done():
            self.done.set_result(None)
