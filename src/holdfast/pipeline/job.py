"""A job as durable runs: started, resumed after a crash, and recorded.

A driver that finds an unfinished run of its job resumes it at the first step that is not recorded. A lease keeps
healthy drivers from working on the same job at once; safety does not depend on it. A driver that was paused is fenced
by the journal, and every object that it could still write is written by a conditional create.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Incompatible, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.lease import Lease, LeaseHeld
from holdfast.objects.store import Store
from holdfast.pipeline import layout
from holdfast.pipeline.engine.relations import Step
from holdfast.pipeline.options import Env
from holdfast.runs import Context, Outcome, RunSummary, Workflow, describe, find, workflow

PREFIX = "pipeline."
UNFINISHED = ("open", "suspended", "sleeping", "retrying", "cancelling")

_log = logger("pipeline")


class Steps(Protocol):
    """What a job needs of a run: each step is done once, even if the run is resumed."""

    @property
    def run_id(self) -> str: ...

    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any: ...


class Job(Protocol):
    name: str
    version: str

    async def is_due(self) -> bool:
        """Whether a run would find anything to do."""
        ...

    async def split(self, request: Document) -> list[Document]:
        """Divide a request into several that are small enough for one run each."""
        ...

    async def run(self, ctx: Steps, request: Document) -> Document:
        """Do the steps; returns a summary of what was read and written."""
        ...


@runtime_checkable
class Relational(Protocol):
    """A job whose steps an engine can explain."""

    async def explain(self, request: Document) -> list[Step]:
        """The relational steps as the engine would run them. Reads and writes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended."""

    job: str
    run_id: str
    status: str
    summary: Document
    resumed: bool
    error: str | None = None

    def document(self) -> Document:
        found = {"job": self.job, "run_id": self.run_id, "status": self.status, "resumed": self.resumed}
        return {**found, **self.summary, **({} if self.error is None else {"error": self.error})}


def flow_of(job: Job) -> Workflow:
    async def body(ctx: Context, request: Document) -> Document:
        return await job.run(ctx, request)

    return workflow(name=f"{PREFIX}{job.name}", version=job.version)(body)


async def resume(env: Env, job: Job) -> list[Ran]:
    """Resume runs of this job that any driver has left unfinished."""
    flow = flow_of(job)
    ended: list[Ran] = []
    left = [each async for each in find(env.store, status=UNFINISHED, workflow=flow.name)]
    if left:
        await env.engine.cores()  # what cannot start is no failure of a run
    for each in sorted(left, key=lambda summary: summary.started_ms):
        try:
            ended.append(_ran(job, await flow.proceed(env.store, each.run_id), resumed=True))
        except Incompatible as error:  # begun by another version: what it left undone is still due
            _log.warning("run %s cannot be resumed here: %s", each.run_id, error)
        except NotFound:  # it is in the index before its first entry, and its driver may have been killed in between
            _log.debug("run %s has not begun", each.run_id)
    return ended


async def begin(env: Env, job: Job, request: Document) -> Ran:
    """A new run."""
    # To the microsecond, so that the order of names is the order in which runs began.
    stamp = iso(env.ambient.clock.wall_ns())[:26].translate({ord(each): None for each in ":-."})
    run_id = f"{PREFIX}{job.name}-{stamp}-{env.ambient.ids.attempt()}"
    outcome = await flow_of(job).start(env.store, request, run_id=run_id, tags=["pipeline"])
    return _ran(job, outcome, resumed=False)


def _holder(error: Conflict) -> str:
    if not isinstance(error, LeaseHeld):
        return str(error)
    return f"{error.owner_id}, for up to {-(-error.remaining_ms // 1000)} s more"


@asynccontextmanager
async def turn(env: Env, job: Job, owner_id: str, *, wait_ms: int, takeover: bool) -> AsyncIterator[None]:
    """Hold the lease of a job. ``Conflict`` if another driver keeps it for longer than ``wait_ms``. ``takeover`` does
    not wait: the journal fences the other driver, if it is alive.
    """
    if takeover:
        yield
        return
    lease = Lease(env.store, layout.lease_key(job.name), owner_id, env.ambient, ttl_ms=env.options.lease_ttl_ms)
    async with AsyncExitStack() as stack:
        try:
            try:
                await stack.enter_async_context(lease.hold(timeout_ms=0))
            except Conflict as error:
                if not wait_ms:
                    raise
                waits = f"waiting up to {wait_ms // 1000} s; --takeover does not wait"
                env.say(f"{job.name}: another process runs this job ({_holder(error)}); {waits}", 0, 0)
                await stack.enter_async_context(lease.hold(timeout_ms=wait_ms))
        except Conflict as error:
            raise Conflict(
                f"job {job.name}: another process runs it ({_holder(error)})", remedy="wait for it, or use --takeover"
            ) from error
        yield


async def history(store: Store, *, limit: int = 20, job: str | None = None) -> list[tuple[RunSummary, Document]]:
    """Past runs, the latest first, each with what it read and wrote."""
    rows: list[tuple[RunSummary, Document]] = []
    async for each in find(store, workflow=None if job is None else f"{PREFIX}{job}", tag="pipeline"):
        if not each.workflow.startswith(PREFIX):
            continue
        try:
            described = await describe(store, each.run_id)
        except NotFound:  # it has not begun
            continue
        rows.append((each, described.result if isinstance(described.result, dict) else {}))
        if len(rows) >= limit:
            break
    return rows


async def latest(store: Store, job: str) -> RunSummary | None:
    """The latest run of a job, whatever its status."""
    async for each in find(store, workflow=f"{PREFIX}{job}", tag="pipeline", limit=1):
        return each
    return None


def _ran(job: Job, outcome: Outcome, *, resumed: bool) -> Ran:
    summary = outcome.result if isinstance(outcome.result, dict) else {}
    return Ran(job.name, outcome.run_id, outcome.status, summary, resumed, outcome.error)
