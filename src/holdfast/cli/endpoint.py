"""``/metrics`` and ``/health`` of a command that keeps running, for a scraper and a supervisor.

The standard library's HTTP server answers in threads of its own. The figures are read on the command's event loop, so
that they need no lock.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.objects.client import Usage

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
"""Whether the command is healthy, and the other fields of the answer."""


@asynccontextmanager
async def serving(address: str, measure: Callable[[], Iterable[Measure]], health: Health) -> AsyncIterator[str]:
    """Serve at ``host:port`` until the block ends; gives the address with the actual port. ``measure`` is called at
    every scrape.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise Invalid(f"{address!r} is not HOST:PORT", remedy="write it like 127.0.0.1:9100; port 0 takes a free one")
    generate = _exposition(measure)
    loop = asyncio.get_running_loop()

    async def answer(path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, *generate()
        if path == "/health":
            healthy, details = health()
            return 200 if healthy else 503, "application/json", json.dumps({"healthy": healthy, **details}).encode()
        return 404, "text/plain", b"see /metrics and /health\n"

    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_S

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            status, kind, body = asyncio.run_coroutine_threadsafe(answer(path), loop).result(TIMEOUT_S)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host.strip("[]"), int(port)), Handler)
    except (OSError, OverflowError) as error:
        raise Invalid(f"metrics cannot be served at {address}: {error}", remedy="choose a free port") from error
    thread = Thread(target=server.serve_forever, args=(0.1,), name="holdfast-metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        await blocking(server.shutdown)
        server.server_close()
        thread.join()


def _exposition(measure: Callable[[], Iterable[Measure]]) -> Callable[[], tuple[str, bytes]]:
    """Makes the content type and the text of an answer to a scrape."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415  # an extra
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
    return lambda: (CONTENT_TYPE_LATEST, generate_latest(registry))
