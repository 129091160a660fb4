"""What a collector counts, for Prometheus. One registry per collector, so that several can live in one process.

Counting is on the path of every request, so it is plain numbers here; they take the shape of metrics when somebody asks
for the page.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector as Source

from holdfast.objects.usage import Usage

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Meters:
    def __init__(self, usage: Usage) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.requests: Counter[tuple[str, ...]] = Counter()
        """Answers so far, by listener, status and reason."""
        self.batches: Counter[str] = Counter()
        """Batches so far: ``new``, ``duplicate``, ``conflict``."""
        self.records: Counter[str] = Counter()
        """Of new batches, by kind."""
        self.frame_bytes = 0
        """Of new batches."""
        self.seconds = Durations(SECONDS)
        self.registry.register(_Requests(self))
        self.registry.register(_Usage(usage))

    def request(self, listener: str, status: int, reason: str) -> None:
        self.requests[listener, str(status), reason] += 1

    def new(self, frame_bytes: int, records: Mapping[str, int]) -> None:
        """A batch that is new."""
        self.batches["new"] += 1
        self.frame_bytes += frame_bytes
        for kind, count in records.items():
            self.records[kind] += count

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when somebody looks."""
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def page(self) -> bytes:
        return generate_latest(self.registry)


class Durations:
    """How many took how long."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound, and how many took as long or less."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))


class _Requests(Source):
    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def collect(self) -> Iterable[Metric]:
        meters = self._meters
        answers = "Answers by listener (ingest, private), status and reason, without streams and this page."
        yield _counter("requests", answers, ("listener", "status", "reason"), dict(meters.requests))
        for name, meaning, label, counts in (
            ("batches", "Batches, by what became of them.", "result", meters.batches),
            ("records", "Records of new batches, by kind.", "kind", meters.records),
        ):
            yield _counter(name, meaning, (label,), {(value,): count for value, count in list(counts.items())})
        yield _counter("frame_bytes", "Bytes of new batches.", (), {(): meters.frame_bytes})
        seconds = HistogramMetricFamily("holdfast_ingest_accept_seconds", "From the end of a body to its answer.")
        seconds.add_metric([], meters.seconds.buckets(), meters.seconds.total)
        yield seconds


def _counter(
    name: str, meaning: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"holdfast_ingest_{name}", meaning, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


class _Usage(Source):
    """Requests to the store, as its own tally has them."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "holdfast_store_requests", "Requests to the store, retries included.", labels=["verb", "family"]
        )
        errors = CounterMetricFamily(
            "holdfast_store_errors",
            "Requests that the store did not serve; an object that is not there is an answer.",
            labels=["verb", "family"],
        )
        for (verb, family), tally in list(self._usage.tallies.items()):
            requests.add_metric([verb, family], tally.requests)
            errors.add_metric([verb, family], tally.errors)
        yield requests
        yield errors
