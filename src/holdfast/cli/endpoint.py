"""``/metrics`` and ``/health`` of a command that keeps running: a few lines of HTTP, for a scraper and a supervisor.

Each request is answered and its connection closed; one that is too long, too slow or not HTTP gets an error or no
answer, and does not disturb the command. The endpoint lives as long as the loop.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import Invalid

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

REQUEST_LIMIT = 8 * 1024
TIMEOUT_S = 5.0

Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether all is well, and what else to say."""


async def serve(where: str, registry: "CollectorRegistry", health: Health) -> str:
    """Serve at ``host:port`` until the loop ends; where it really is."""
    host, colon, port = where.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise Invalid(f"{where!r} is not HOST:PORT", remedy="write it like 127.0.0.1:9100; port 0 takes a free one")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, registry, health))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host.strip("[]"), int(port), limit=REQUEST_LIMIT)
    except (OSError, OverflowError) as error:
        raise Invalid(f"metrics cannot be served at {where}: {error}", remedy="choose a free port") from error
    return f"{host}:{server.sockets[0].getsockname()[1]}"


def new_registry(collector: Any) -> "CollectorRegistry":
    """A registry of its own, which reads the collector's figures at every scrape."""
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise Invalid("metrics need prometheus-client", remedy="install holdfast[server]") from error
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def _response(head: bytes, registry: "CollectorRegistry", health: Health) -> bytes:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415  # an extra

    verb, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if verb not in (b"GET", b"HEAD"):
        status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET\n"
    elif path == b"/metrics":
        status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(registry)
    elif path == b"/health":
        healthy, details = health()
        status = "200 OK" if healthy else "503 Service Unavailable"
        kind, body = "application/json", json.dumps({"healthy": healthy, **details}).encode() + b"\n"
    else:
        status, kind, body = "404 Not Found", "text/plain", b"see /metrics and /health\n"
    lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return lines.encode() + (b"" if verb == b"HEAD" else body)
