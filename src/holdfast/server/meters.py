"""What a collector counts, for Prometheus. One registry per collector, so that several can live in one process."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector as Source

from holdfast.objects.observe import Usage

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Meters:
    def __init__(self, usage: Usage) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "holdfast_ingest_requests",
            "Requests that were answered, by status and reason.",
            ["status", "reason"],
            registry=self.registry,
        )
        self._batches = Counter(
            "holdfast_ingest_batches", "Batches, by what became of them.", ["result"], registry=self.registry
        )
        self._records = Counter(
            "holdfast_ingest_records", "Records of new batches, by kind.", ["kind"], registry=self.registry
        )
        self.frame_bytes = Counter("holdfast_ingest_frame_bytes", "Bytes of new batches.", registry=self.registry)
        self.seconds = Histogram(
            "holdfast_ingest_accept_seconds",
            "From the end of a body to its answer.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(_Usage(usage))
        self.batches: dict[str, int] = {}
        """Batches so far: ``new``, ``duplicate``, ``conflict``."""
        self._known: dict[tuple[str, ...], Counter] = {}

    def request(self, status: int, reason: str) -> None:
        self._of("requests", self._requests, str(status), reason).inc()

    def batch(self, result: str) -> None:
        self.batches[result] = self.batches.get(result, 0) + 1
        self._of("batches", self._batches, result).inc()

    def records(self, kind: str, count: int) -> None:
        self._of("records", self._records, kind).inc(count)

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when somebody looks."""
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def _of(self, name: str, counter: Counter, *labels: str) -> Counter:
        """Looking a label up takes the library a lock and a search; this is on the path of every request."""
        key = (name, *labels)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = counter.labels(*labels)
        return found


class _Usage(Source):
    """Requests to the store, as its own tally has them."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "holdfast_store_requests", "Requests to the store, retries included.", labels=["verb", "family"]
        )
        errors = CounterMetricFamily(
            "holdfast_store_errors", "Requests to the store that failed.", labels=["verb", "family"]
        )
        for (verb, family), tally in list(self._usage.tallies.items()):
            requests.add_metric([verb, family], tally.requests)
            errors.add_metric([verb, family], tally.errors)
        yield requests
        yield errors
