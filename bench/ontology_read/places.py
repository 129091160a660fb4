"""Where the data lies: a folder, or an S3 server; and a meter for what goes over the wire to the latter."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.objects.server import BUCKET, s3_server
from holdfast.base.config import Settings
from holdfast.base.portal import Portal
from holdfast.sim.proxy.proxy import FaultProxy

KEY_ID, SECRET, REGION = "bench", "benchbench", "us-east-1"
PIECE = 64 * 1024


@dataclass(frozen=True)
class Place:
    """``endpoint`` is None for a folder."""

    folder: Path
    endpoint: str | None = None

    def uri(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}" if self.endpoint is not None else str(self.folder / name)

    @property
    def settings(self) -> Settings:
        if self.endpoint is None:
            return Settings()
        keys = {"access_key_id": KEY_ID, "secret_access_key": SECRET, "region": REGION, "endpoint": self.endpoint}
        return Settings.model_validate({"s3": keys})

    @property
    def delta_options(self) -> dict[str, str]:
        if self.endpoint is None:
            return {}
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }

    @property
    def iceberg_options(self) -> dict[str, str]:
        if self.endpoint is None:
            return {}
        return {
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": SECRET,
            "s3.region": REGION,
            "s3.endpoint": self.endpoint,
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        }


class Meter:
    """A door to the server that counts requests and the bytes that come back."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._listener: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.received = 0
        self.endpoint = ""

    @property
    def requests(self) -> int:
        return self._proxy.counts.asked()

    async def __aenter__(self) -> "Meter":
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *details: object) -> None:
        if self._listener is not None:
            self._listener.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        behind = urlsplit(self._proxy.endpoint)
        onward, back = await asyncio.open_connection(behind.hostname, behind.port)
        try:
            # Cancelled when the door is closed: what clients keep open has no end of its own.
            with suppress(ConnectionError, asyncio.CancelledError):
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, back, counted=False))
                    both.create_task(self._pass(onward, writer, counted=True))
        finally:
            for end in (writer, back):
                end.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counted: bool) -> None:
        with suppress(ConnectionError):
            while piece := await source.read(PIECE):
                self.received += len(piece) if counted else 0
                sink.write(piece)
                await sink.drain()
            if sink.can_write_eof():
                sink.write_eof()


@contextmanager
def served(folder: Path) -> Iterator[tuple[Place, Place, Meter]]:
    """An S3 server: reached straight, for times, and through a meter, for counts."""
    with s3_server(folder) as address, Portal() as portal:
        proxy = FaultProxy(address)
        portal.enter(proxy)
        meter = Meter(proxy)
        view: Any = portal.enter(meter)
        yield Place(folder, address), Place(folder, view.endpoint), meter
