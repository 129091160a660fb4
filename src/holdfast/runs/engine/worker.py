"""A worker: keeps calling runs that are due. Any number may run at once; a run taken up twice is fenced, not damaged.

Due are timers that have passed, retries, delivered events, cancellations, children that finished, and runs that
have not been written to for ``stale_after_ms`` (their process probably crashed). That last one is a guess: taking over
a run that is alive wastes one step at most, because the older session is fenced.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.base import telemetry
from holdfast.base.errors import Invalid, Unavailable
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.runs.engine.calls import Outcome, check_number
from holdfast.runs.engine.workflow import Workflow
from holdfast.runs.errors import acknowledge
from holdfast.runs.journal.index import RunIndex, RunSummary

log = telemetry.logger("runs")

REST_MS = 5_000
"""How long a run is left alone after a call that got nowhere."""


@dataclass(slots=True)
class Worked:
    """What a worker has done so far."""

    called: int = 0
    finished: int = 0
    failed_calls: int = 0
    unknown: int = 0
    """Runs that are due and whose workflow this worker does not have."""


async def worker(
    store: Store,
    workflows: Iterable[Workflow],
    *,
    concurrency: int = 8,
    poll_ms: int = 1_000,
    stale_after_ms: int = 600_000,
    until_idle: bool = False,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Worked:
    """Call due runs until cancelled; with ``until_idle``, until nothing is due.

    Cancelling it abandons what is in flight: any worker can take those runs up again.
    """
    check_number("poll_ms", poll_ms)
    desk = _Rounds(store, workflows, concurrency, stale_after_ms, on_outcome)
    try:
        while True:
            try:
                found = await desk.round()
            except Unavailable as error:
                if until_idle:
                    raise
                log.warning("the index of runs could not be read (%s); again later", error)
                found = 0
            if until_idle and not found and not desk.busy:
                return desk.worked
            if not found:
                await desk.pause(poll_ms / 1000)
    finally:
        await desk.abandon()


def _checked(workflow: object) -> Workflow:
    if not isinstance(workflow, Workflow):
        raise Invalid(f"{workflow!r:.80} is not a workflow", remedy="decorate it with @runs.workflow")
    return workflow


class _Rounds:
    def __init__(
        self,
        store: Store,
        workflows: Iterable[Workflow],
        concurrency: int,
        stale_after_ms: int,
        on_outcome: Callable[[Outcome], None] | None,
    ) -> None:
        check_number("concurrency", concurrency, least=1, whole=True)
        check_number("stale_after_ms", stale_after_ms)
        self._store = store
        self._ambient = ambient_of(store)
        self._index = RunIndex(store, self._ambient)
        self._workflows = {_checked(workflow).name: workflow for workflow in workflows}
        self._concurrency = concurrency
        self._stale_after_ms = stale_after_ms
        self._on_outcome = on_outcome
        self._running: dict[str, asyncio.Task[None]] = {}
        self._put_off: dict[str, int] = {}
        self.worked = Worked()

    @property
    def busy(self) -> bool:
        return bool(self._running)

    async def round(self) -> int:
        """Take up what is due, as far as there is room; how many were taken up."""
        now_ns = self._ambient.clock.wall_ns()
        taken = 0
        unknown = 0
        due = [summary async for summary in self._index.due(now_ns, stale_after_ms=self._stale_after_ms)]
        self._ambient.rng.shuffle(due)  # workers that look at the same time should not take up the same runs
        for summary in due:
            if summary.run_id in self._running or self._put_off.get(summary.run_id, 0) > now_ns:
                continue
            workflow = self._workflows.get(summary.workflow)
            if workflow is None:
                unknown += 1
                continue
            while len(self._running) >= self._concurrency:
                await self.pause(None)
            self._running[summary.run_id] = asyncio.ensure_future(self._one(workflow, summary))
            taken += 1
        self.worked.unknown = unknown
        return taken

    async def pause(self, seconds: float | None) -> None:
        """Wait until something in flight is done, or for so long."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        elif seconds is not None:
            await asyncio.sleep(seconds)

    async def abandon(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _one(self, workflow: Workflow, summary: RunSummary) -> None:
        self.worked.called += 1
        try:
            outcome = await workflow.proceed(self._store, summary.run_id)
        except Exception as error:  # noqa: BLE001  # the error of one run must not end the others
            self.worked.failed_calls += 1
            hopeless = acknowledge(error)
            self._leave_alone(summary.run_id, self._stale_after_ms if hopeless else REST_MS)
            log.warning("run %s: %s (%s)", summary.run_id, error, "left alone" if hopeless else "again later")
        else:
            self.worked.finished += outcome.finished
            if outcome.session == summary.session and not outcome.finished:
                self._leave_alone(summary.run_id, REST_MS)  # it was not due after all: a nudge without its mail, ...
            self._tell(outcome)
        finally:
            self._running.pop(summary.run_id, None)

    def _leave_alone(self, run_id: str, rest_ms: int) -> None:
        self._put_off[run_id] = self._ambient.clock.wall_ns() + rest_ms * 1_000_000

    def _tell(self, outcome: Outcome) -> None:
        if self._on_outcome is None:
            return
        try:
            self._on_outcome(outcome)
        except Exception:
            log.exception("run %s: on_outcome failed", outcome.run_id)
