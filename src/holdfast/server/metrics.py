"""Metrics of a collector for Prometheus. Each collector has a registry, so several can run in one process."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.objects.client import Usage

if TYPE_CHECKING:
    from holdfast.server.service import Service

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    def __init__(self, usage: Usage) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self._responses = Counter(
            "holdfast_ingest_requests",
            "Responses by listener (ingest, private), status and reason, without streams and this page.",
            ["listener", "status", "reason"],
            registry=registry,
        )
        self._batches = Counter("holdfast_ingest_batches", "Batches by result.", ["result"], registry=registry)
        self._records = Counter("holdfast_ingest_records", "Records of new batches.", ["kind"], registry=registry)
        self._frame_bytes = Counter("holdfast_ingest_frame_bytes", "Bytes of new batches.", registry=registry)
        self.accept_seconds = Histogram(
            "holdfast_ingest_accept_seconds",
            "From the end of a body to its response.",
            buckets=SECONDS,
            registry=registry,
        )
        registry.register(_StoreRequests(usage))

    def count_response(self, listener: str, status: int, reason: str) -> None:
        self._responses.labels(listener, str(status), reason).inc()

    def count_new(self, frame_bytes: int, records: Mapping[str, int]) -> None:
        self.count_batch("new")
        self._frame_bytes.inc(frame_bytes)
        for kind, count in records.items():
            self._records.labels(kind).inc(count)

    def count_batch(self, result: str) -> None:
        """``new``, ``duplicate`` or ``conflict``."""
        self._batches.labels(result).inc()

    def batches(self, result: str) -> int:
        return int(self.registry.get_sample_value("holdfast_ingest_batches_total", {"result": result}) or 0)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _StoreRequests(Collector):
    """Requests to the store, as the store's client counts them."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "holdfast_store_requests", "Requests to the store, retries included.", labels=["verb", "family"]
        )
        errors = CounterMetricFamily(
            "holdfast_store_errors",
            "Requests that the store did not serve; a missing object is an answer and not an error.",
            labels=["verb", "family"],
        )
        for (verb, family), tally in list(self._usage.tallies.items()):
            requests.add_metric([verb, family], tally.requests)
            errors.add_metric([verb, family], tally.errors)
        yield requests
        yield errors


def add_gauges(service: "Service") -> None:
    """Gauges whose values are read when the page is requested."""

    def gauge(name: str, meaning: str, value: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=service.metrics.registry).set_function(value)

    gauge("holdfast_ingest_under_way", "Requests in progress.", lambda: service.limits.under_way)
    gauge("holdfast_ingest_in_flight_bytes", "Memory held by requests.", lambda: service.limits.in_flight_bytes)
    gauge(
        "holdfast_spool_batches",
        "Accepted here, and not in the store yet.",
        lambda: 0 if service.spooling is None else len(service.spooling.spool),
    )
    gauge(
        "holdfast_spool_landing_lag_seconds",
        "Since everything in the spool had landed; NaN without a spool.",
        lambda: _or_nan(service.landing_lag_s()),
    )
    gauge("holdfast_ingest_tokens", "Tokens in the token file.", lambda: len(service.tokens.table.tokens))
    gauge("holdfast_live_batches", "Batches in live state.", lambda: len(service.live))
    gauge("holdfast_live_bytes", "Estimated memory of live state.", lambda: service.live.size)
    gauge("holdfast_live_evicted", "Batches that did not fit into live state.", lambda: service.live.evicted)
    gauge("holdfast_live_problems", "Accepted batches that could not be read.", lambda: service.follower.problems)
    gauge(
        "holdfast_live_follow_lag_seconds",
        "Since a query collector has seen everything; NaN if never.",
        lambda: _or_nan(service.follow_lag_s()),
    )


def _or_nan(lag: float | None) -> float:
    return float("nan") if lag is None else lag
