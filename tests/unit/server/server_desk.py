"""What tests of the server share: a collector on a store in memory, asked through its applications."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from holdfast.base.config import IngestSection
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.uri import StoreSpec
from holdfast.server.app import ingest_app, private_app
from holdfast.server.connections import ConnectionLimits, Connections
from holdfast.server.run import Address, Listener, bound
from holdfast.server.service import Service, open_service
from holdfast.server.tokens import add_token
from holdfast.telemetry import Gauge
from holdfast.telemetry.frame import encode, pack
from holdfast.telemetry.records import Record
from tests.unit.objects.scripted import Scripted
from tests.unit.runs.desk import Watch
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

LIMITS = ConnectionLimits(connections=20, header_timeout_s=5, body_timeout_s=5)
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


def frame(*records: Record, agent: str = "web-1", boot: str = "boot", seq: int = 0) -> bytes:
    return encode(pack(agent, boot, records or [Gauge("load", 1.5, 1_000)], seq_start=seq))


@dataclass
class ServerDesk:
    service: Service
    ingest: httpx.AsyncClient
    private: httpx.AsyncClient
    token: str
    usage: Usage
    script: Scripted
    watch: Watch

    async def post(
        self, body: bytes | AsyncIterator[bytes], *, seqs: tuple[int, int] = (0, 0), length: int | None = None
    ) -> httpx.Response:
        headers = {
            "authorization": f"Bearer {self.token}",
            "x-lightmetrics-agent": "web-1",
            "x-lightmetrics-seq-start": str(seqs[0]),
            "x-lightmetrics-seq-end": str(seqs[1]),
        }
        if length is not None:
            headers["content-length"] = str(length)
        return await self.ingest.post("/ingest/v1/batch", content=body, headers=headers)

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.private.get(path)
        assert answer.status_code == status, answer.text
        return answer.json()


@asynccontextmanager
async def server_desk(folder: Path, *, query: bool = False, **settings: Any) -> AsyncIterator[ServerDesk]:
    desk = AcceptDesk()
    ambient = desk.ambient()
    tokens = folder / "tokens.toml"
    token = add_token(tokens, ("web-*",), ambient)[1]
    usage = Usage()
    script = Scripted(inner=MemoryStore(desk.shelf, clock=desk.watch))
    retry = RetryPolicy(attempts=2, base_ms=0, max_ms=0)
    store = Client(script, ambient=ambient, retry=retry, usage=usage, spec=StoreSpec("memory", "desk"))
    section = IngestSection.model_validate({"tokens": tokens, "backfill": True, **settings})
    async with open_service(store, section, query=query) as service:
        transports = [httpx.ASGITransport(app, False) for app in (ingest_app(service), private_app(service))]
        clients = [httpx.AsyncClient(transport=each, base_url="http://localhost") for each in transports]
        async with clients[0] as ingest, clients[1] as private:
            yield ServerDesk(service, ingest, private, token, usage, script, desk.watch)


@asynccontextmanager
async def listening(
    app: Asgi, limits: ConnectionLimits = LIMITS, context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """A real listener with this application; its URL. No connection is left open afterwards."""
    connections = Connections(limits, context)
    with bound(Address("127.0.0.1", 0)) as (socket, address):
        listener = Listener(app, socket, connections)
        listener.listen()
        task = asyncio.create_task(listener.serve())
        try:
            async with asyncio.timeout(60):
                yield f"{'http' if context is None else 'https'}://{address}"
        finally:
            listener.end(within_s=0.1)
            await task
    assert len(connections) == 0
