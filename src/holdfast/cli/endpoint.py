"""``/metrics`` and ``/health`` of a command that keeps running: a few lines of HTTP, for a scraper and a supervisor.

Each request is answered and its connection closed; one that is too long, too slow or not HTTP gets an error or no
answer, and does not disturb the command. The endpoint lives as long as the loop.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import Invalid
from holdfast.objects.client import Usage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

REQUEST_LIMIT = 8 * 1024
TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Measure:
    """One metric: its values, each with its labels."""

    name: str
    text: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    is_gauge: bool = False


def requests_of(usage: Usage, text: str) -> Measure:
    samples = [({"verb": verb}, float(count)) for verb, count in sorted(usage.by_verb.items())]
    return Measure("holdfast_store_requests", text, samples)


Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether all is well, and what else to say."""


async def serve(where: str, measure: Callable[[], Iterable[Measure]], health: Health) -> str:
    """Serve at ``host:port`` until the loop ends; the address with the port that was taken. ``measure`` is called at
    every scrape.
    """
    registry = _registry(measure)
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


def _registry(measure: Callable[[], Iterable[Measure]]) -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  # an extra
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise Invalid("metrics need prometheus-client", remedy="install holdfast[server]") from error

    class Collector:
        def collect(self) -> Iterator[Metric]:
            for each in measure():
                labels = sorted(each.samples[0][0]) if each.samples else []
                family = GaugeMetricFamily if each.is_gauge else CounterMetricFamily
                metric = family(each.name, each.text, labels=labels)
                for named, value in each.samples:
                    metric.add_metric([named[label] for label in labels], value)
                yield metric

    registry = CollectorRegistry()
    registry.register(Collector())
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
