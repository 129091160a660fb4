"""The figures of a pipeline that runs as a service, for ``/metrics`` and ``/health``.

``/health`` answers 200 if a round has succeeded within the last three intervals, else 503, with a line of JSON. A round
that found another driver at work counts: a service that stands by is healthy. The lag is that
of the checkpoint as it was after the latest round, whichever driver moved it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import Conflict, HoldfastError
from holdfast.cli.endpoint import new_registry, serve
from holdfast.objects.client import Client
from holdfast.pipeline import Ran
from holdfast.pipeline.checkpoint import Checkpoint, Checkpoints
from holdfast.pipeline.status import lag_s

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COUNTERS = {
    "batches": "accepted batches that were verified",
    "records": "records that were read",
    "units": "units that were made",
    "rows": "rows that were written",
    "problems": "findings that were reported",
    "read_bytes": "bytes of frames and chunks that were read",
    "wrote_bytes": "bytes of chunks that were written",
}
HEALTHY_INTERVALS = 3
HEALTHY_S = 60.0


class Figures:
    def __init__(self, store: Client, every_s: float) -> None:
        self._store = store
        self._every_s = every_s
        self._totals: dict[tuple[str, str], int] = defaultdict(int)
        self._runs: dict[tuple[str, str], int] = defaultdict(int)
        self._checkpoints = Checkpoints(store, store.ambient)
        self._checkpoint: Checkpoint | None = None
        self._good_ns = store.ambient.clock.monotonic_ns()
        self._failures = 0

    async def serve(self, where: str) -> str:
        return await serve(where, new_registry(self), self._health)

    async def ended(self, ran: Sequence[Ran]) -> None:
        """A round has ended."""
        for each in ran:
            self._runs[each.job, each.status] += 1
            for name in COUNTERS:
                self._totals[each.job, name] += int(each.summary.get(name) or 0)
        self._checkpoint = await self._checkpoints.read()
        if all(each.status == "success" for each in ran):
            self._good_ns = self._store.ambient.clock.monotonic_ns()

    async def failed(self, error: HoldfastError) -> None:
        """A round failed: another driver holds the lease, or the store or Spark does not answer."""
        self._failures += 1
        try:
            self._checkpoint = await self._checkpoints.read()
        except HoldfastError:  # what kept the round from its end; the lag grows from where it was
            return
        if isinstance(error, Conflict):
            self._good_ns = self._store.ambient.clock.monotonic_ns()

    def _health(self) -> tuple[bool, dict[str, Any]]:
        silent_s = (self._store.ambient.clock.monotonic_ns() - self._good_ns) / 1e9
        lag = lag_s(self._checkpoint, self._store.ambient)
        good = silent_s < max(HEALTHY_S, HEALTHY_INTERVALS * self._every_s)
        return good, {"seconds_since_round": round(silent_s, 3), "lag_seconds": None if lag is None else round(lag, 3)}

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415  # an extra

        lag = lag_s(self._checkpoint, self._store.ambient)
        if lag is not None:
            gauge = GaugeMetricFamily("holdfast_pipeline_lag_seconds", "age of the latest reconciled position")
            gauge.add_metric([], lag)
            yield gauge
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"holdfast_pipeline_{name}", text, labels=["job"])
            for (job, figure), value in sorted(self._totals.items()):
                if figure == name:
                    counter.add_metric([job], value)
            yield counter
        runs = CounterMetricFamily("holdfast_pipeline_runs", "runs that have ended", labels=["job", "status"])
        for (job, status), value in sorted(self._runs.items()):
            runs.add_metric([job, status], value)
        yield runs
        rounds = CounterMetricFamily("holdfast_pipeline_failed_rounds", "rounds that failed")
        rounds.add_metric([], self._failures)
        yield rounds
        requests = CounterMetricFamily("holdfast_store_requests", "requests of the driver", labels=["verb"])
        for verb, count in sorted(self._store.usage.by_verb.items()):
            requests.add_metric([verb], count)
        yield requests
