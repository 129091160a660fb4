"""The figures of a pipeline that runs as a service, for ``/metrics`` and ``/health``.

``/health`` answers 200 if a round has succeeded within the last three intervals, else 503, with a line of JSON. A round
in which another driver held the lease counts: a service that stands by is healthy. The lag is that of the checkpoint
after the latest round, whichever driver advanced it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.base.errors import Conflict, HoldfastError
from holdfast.cli.endpoint import Measure, requests_of, serving
from holdfast.objects.client import Client
from holdfast.pipeline import Ran
from holdfast.pipeline.checkpoint import Checkpoint, Checkpoints
from holdfast.pipeline.status import lag_s

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

    def serving(self, address: str) -> AbstractAsyncContextManager[str]:
        return serving(address, self.measures, self.health)

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
        except HoldfastError:  # the reason why the round failed; the lag keeps growing
            return
        if isinstance(error, Conflict):
            self._good_ns = self._store.ambient.clock.monotonic_ns()

    def health(self) -> tuple[bool, dict[str, Any]]:
        silent_s = (self._store.ambient.clock.monotonic_ns() - self._good_ns) / 1e9
        lag = lag_s(self._checkpoint, self._store.ambient)
        good = silent_s < max(HEALTHY_S, HEALTHY_INTERVALS * self._every_s)
        return good, {"seconds_since_round": round(silent_s, 3), "lag_seconds": None if lag is None else round(lag, 3)}

    def measures(self) -> Iterator[Measure]:
        lag = lag_s(self._checkpoint, self._store.ambient)
        if lag is not None:
            text = "age of the latest reconciled position"
            yield Measure("holdfast_pipeline_lag_seconds", text, [({}, lag)], is_gauge=True)
        totals, runs = sorted(self._totals.items()), sorted(self._runs.items())
        for name, text in COUNTERS.items():
            samples = [({"job": job}, float(value)) for (job, figure), value in totals if figure == name]
            yield Measure(f"holdfast_pipeline_{name}", text, samples)
        ended = [({"job": job, "status": status}, float(value)) for (job, status), value in runs]
        yield Measure("holdfast_pipeline_runs", "runs that have ended", ended)
        yield Measure("holdfast_pipeline_failed_rounds", "rounds that failed", [({}, float(self._failures))])
        yield requests_of(self._store.usage, "requests of the driver")
