"""The figures of a worker, for ``/metrics`` and ``/health``.

``/health`` answers 200 while the worker has looked for events within a lease, else 503, with a line of JSON.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.bus.runner import Runner
from holdfast.cli.metrics_http import new_registry, serve
from holdfast.objects.client import Usage

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COUNTERS = {
    "handled": "events that were handled",
    "failed": "tries that failed",
    "dead": "events that were buried",
    "lost": "events that another worker took over",
    "handed_back": "events that were handed back unfinished",
    "fired": "ticks of schedules that were published",
}
GAUGES = {"in_flight": "events in handlers now", "waiting": "open events that are in no handler of this worker"}


async def serve_metrics(where: str, runner: Runner, usage: Usage) -> str:
    """Serve at ``host:port`` until the loop ends; where it really is."""
    return await serve(where, new_registry(_Collector(runner, usage)), lambda: (runner.is_healthy, _health(runner)))


def _health(runner: Runner) -> dict[str, Any]:
    silent_s = runner.silent_s
    return {
        "session": runner.session_id,
        "namespace": runner.namespace,
        "seconds_since_poll": None if silent_s is None else round(silent_s, 3),
        "in_flight": runner.worked.in_flight,
    }


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
