"""A server on loopback that answers from a script: what a real store says once in a million requests, on demand.

    async with ScriptedServer(Answer(503, error_body("SlowDown"))) as server:
        ...
        assert server.seen == ["PUT /bucket/key"]

It runs in the test's own loop; obstore asks from its own threads. With ``tls`` it speaks TLS.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """``cut_at`` closes the connection after that many bytes of the body."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_at: int | None = None


class HangUp:
    """Read the request, close the connection, answer nothing."""


class Silence:
    """Read the request, keep the connection open, answer nothing."""


HANG_UP, SILENCE = HangUp(), Silence()
Reply = Answer | HangUp | Silence


def error_body(code: str, message: str = "as scripted") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


class ScriptedServer:
    """``reply`` answers every request, or is called with each one."""

    def __init__(
        self, reply: Reply | Callable[[Request], Reply | Awaitable[Reply]], *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.reply = reply
        self.requests: list[Request] = []
        self._tls = tls
        self._end = asyncio.Event()
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def seen(self) -> list[str]:
        return [f"{request.method} {request.target}" for request in self.requests]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        scheme = "http" if self._tls is None else "https"
        self.endpoint = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._end.set()
        for connection in list(self._connections):
            connection.close()
        while self._connections:
            await asyncio.sleep(0)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()
            self._connections.discard(writer)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; False when the connection is to be closed."""
        method, target, headers = await self._read_head(reader)
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return await self._answer(Request(method, target, headers, body), writer)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        self.requests.append(request)
        reply = self.reply(request) if callable(self.reply) else self.reply
        if isinstance(reply, Awaitable):
            reply = await reply
        if isinstance(reply, Silence):
            await self._end.wait()
        if not isinstance(reply, Answer):
            return False
        headers = {"content-length": str(len(reply.body)), **reply.headers}
        lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
        body = b"" if request.method == "HEAD" else reply.body[: reply.cut_at]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return reply.cut_at is None

    async def _read_head(self, reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        return method, target, headers
