"""``/metrics`` and ``/health`` of a worker: a few lines of HTTP, for whoever scrapes and whoever restarts.

``/health`` answers 200 while the worker has looked for events within a lease, else 503, with a line of JSON. Each
request is answered and its connection closed; one that is too long, too slow or no HTTP gets an error or nothing at
all, and never disturbs the worker. The endpoint lives as long as the loop.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import Invalid
from holdfast.bus.runner import Runner
from holdfast.objects.observe import Usage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

REQUEST_LIMIT = 8 * 1024
PATIENCE_S = 5.0

COUNTERS = {
    "handled": "events that were handled",
    "failed": "tries that failed",
    "dead": "events that were buried",
    "lost": "events that another worker took over",
    "handed_back": "events that were handed back unfinished",
    "fired": "ticks of schedules that were published",
}
GAUGES = {"in_flight": "events in handlers now", "waiting": "events that are not due yet"}


async def serve_metrics(where: str, runner: Runner, usage: Usage) -> str:
    """Serve at ``host:port`` until the loop ends; where it really is."""
    host, colon, port = where.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise Invalid(f"{where!r} is not HOST:PORT", remedy="write it like 127.0.0.1:9100; port 0 takes a free one")
    registry = _registry(runner, usage)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, registry, runner))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host.strip("[]"), int(port), limit=REQUEST_LIMIT)
    except (OSError, OverflowError) as error:
        raise Invalid(f"metrics cannot be served at {where}: {error}", remedy="choose a free port") from error
    return f"{host}:{server.sockets[0].getsockname()[1]}"


def _response(head: bytes, registry: "CollectorRegistry", runner: Runner) -> bytes:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415  # an extra

    verb, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if verb not in (b"GET", b"HEAD"):
        status, kind, body = "405 Method Not Allowed", "text/plain", b"only GET\n"
    elif path == b"/metrics":
        status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(registry)
    elif path == b"/health":
        status = "200 OK" if runner.is_healthy else "503 Service Unavailable"
        kind, body = "application/json", json.dumps(_health(runner)).encode() + b"\n"
    else:
        status, kind, body = "404 Not Found", "text/plain", b"see /metrics and /health\n"
    lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return lines.encode() + (b"" if verb == b"HEAD" else body)


def _health(runner: Runner) -> dict[str, Any]:
    silent_s = runner.silent_s
    return {
        "healthy": runner.is_healthy,
        "session": runner.session_id,
        "namespace": runner.namespace,
        "seconds_since_poll": None if silent_s is None else round(silent_s, 3),
        "in_flight": runner.worked.in_flight,
    }


def _registry(runner: Runner, usage: Usage) -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise Invalid("metrics need prometheus-client", remedy="install holdfast[server]") from error
    registry = CollectorRegistry()
    registry.register(_Collector(runner, usage))
    return registry


class _Collector:
    """Reads the worker's own figures when somebody asks: nothing is counted twice."""

    def __init__(self, runner: Runner, usage: Usage) -> None:
        self._runner = runner
        self._usage = usage

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415  # an extra

        namespace = [self._runner.namespace]
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"holdfast_worker_{name}", text, labels=["namespace"])
            counter.add_metric(namespace, getattr(self._runner.worked, name))
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"holdfast_worker_{name}", text, labels=["namespace"])
            gauge.add_metric(namespace, getattr(self._runner.worked, name))
            yield gauge
        if self._runner.silent_s is not None:
            text = "seconds since the store last answered a poll"
            silent = GaugeMetricFamily("holdfast_worker_seconds_since_poll", text, labels=["namespace"])
            silent.add_metric(namespace, self._runner.silent_s)
            yield silent
        requests = CounterMetricFamily("holdfast_store_requests", "requests to the store", labels=["verb"])
        for verb, count in sorted(self._usage.by_verb.items()):
            requests.add_metric([verb], count)
        yield requests
