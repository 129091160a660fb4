"""Run the pipeline: its jobs in order, once or again and again.

    async with holdfast.open(uri) as hf:
        await pipeline.run(hf.store)                       # in this process
        await pipeline.run(hf.store, engine=await SparkEngine.open(hf.store.spec))

``reconcile`` finds accepted batches, ``derive`` makes rollups and indexes of them, ``feed`` updates the ontology. Each
run is recorded (``job.history``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Fenced, HoldfastError, Invalid, Unavailable
from holdfast.base.telemetry import logger
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.pipeline import job as jobs
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.engine import Engine, Inline
from holdfast.pipeline.engine.relations import Step
from holdfast.pipeline.errors import SparkLost
from holdfast.pipeline.feed import Feed
from holdfast.pipeline.job import Job, Ran, Relational
from holdfast.pipeline.jobs.audit import Audit
from holdfast.pipeline.jobs.derive import Derive
from holdfast.pipeline.jobs.gc import Gc
from holdfast.pipeline.jobs.reconcile import Reconcile
from holdfast.pipeline.options import Env, Options, Say, unsaid
from holdfast.telemetry.rollup.layout import hour_name

JOBS: dict[str, Callable[[Env], Job]] = {
    "reconcile": Reconcile,
    "derive": Derive,
    "feed": Feed,
}
ASKED: dict[str, Callable[[Env], Job]] = {"audit": Audit, "gc": Gc}
"""Jobs that run only when they are named."""
_TIMES = {"since_ns", "until_ns"}
_WANTED = {
    "reconcile": {*_TIMES, "full", "agents", "keys"},
    "derive": _TIMES,
    "feed": set[str](),
    "audit": {"scopes", "deep", "one_in", "older_than_ns", "inventory"},
    "gc": {"kinds", "apply", "limit"},
}
"""The keys of a request that a job understands."""
MOST_ROUNDS = 100_000
WAIT_MS = 120_000

_log = logger("pipeline")


async def run(
    store: Store,
    names: Sequence[str] = (),
    *,
    engine: Engine | None = None,
    options: Options | None = None,
    request: Document | None = None,
    takeover: bool = False,
    wait_ms: int = WAIT_MS,
    say: Say = unsaid,
) -> list[Ran]:
    """Run these jobs, or all of them, until none has anything left to do. A failed run ends the call. A key of the
    request that none of the jobs understands is ``Invalid``.
    """
    check_request(names, request or {})
    ambient = ambient_of(store)
    env = Env(store, ambient, engine if engine is not None else Inline(), options or Options(), say)
    owner_id = f"driver-{ambient.ids.unique()}"
    ended: list[Ran] = []
    for name in check_names(names):
        job = {**JOBS, **ASKED}[name](env)
        async with jobs.turn(env, job, owner_id, wait_ms=wait_ms, takeover=takeover):
            ended += await jobs.resume(env, job)
            ended += await _rounds(env, job, await _own(env, name, request or {}))
        if ended and ended[-1].status != "success":
            return ended
    return ended


async def serve(
    store: Store,
    names: Sequence[str] = (),
    *,
    every_s: float,
    stop: asyncio.Event,
    engine: Engine,
    options: Options,
    on_round: Callable[[list[Ran]], Awaitable[None]],
    on_error: Callable[[HoldfastError], Awaitable[None]] | None = None,
    say: Say = unsaid,
) -> None:
    """Run the jobs at this interval until ``stop`` is set. If another driver holds the lease, or the store does not
    answer, the round is skipped; what was due stays due. When a full scan is due, the reconciler makes it.
    """
    while not stop.is_set():
        try:
            request = {"full": True} if await _is_scan_due(store, names, options) else None
            ran = await run(store, names, engine=engine, options=options, request=request, wait_ms=0, say=say)
            await on_round(ran)
        except SparkLost:
            raise  # no later round could start another JVM
        except (Conflict, Fenced, Unavailable, Ambiguous) as error:
            if on_error is not None:
                await on_error(error)
            _log.warning("the pipeline continues in %g s: %s", every_s, error)
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            continue


async def _is_scan_due(store: Store, names: Sequence[str], options: Options) -> bool:
    """Whether the last completed full scan is older than this. One GET."""
    if not options.full_scan_every_ns or "reconcile" not in check_names(names):
        return False
    ambient = ambient_of(store)
    found = await Checkpoints(store, ambient).read()
    last_ns = 0 if found is None else found.full_at_unix_ns or 0
    return ambient.clock.wall_ns() - last_ns >= options.full_scan_every_ns


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would do for one hour, or to the references that were found."""

    job: str
    hour: str
    generation: int
    """The current generation; 0 if there is none."""
    units: int
    to_make: int
    inputs: int


async def preview(
    store: Store, names: Sequence[str] = (), *, options: Options | None = None, request: Document | None = None
) -> list[Preview]:
    """What a run would do now. Writes nothing."""
    check_request(names, request or {})
    ambient = ambient_of(store)
    env = Env(store, ambient, Inline(), options or Options())
    found: list[Preview] = []
    for name in check_names(names):
        own = _meant(name, request or {})
        if name == "reconcile":
            keys = await Reconcile(env).preview(own)
            found += [Preview(name, "", 0, 0, 0, keys)] if keys else []
            continue
        if name in ASKED:
            raise Invalid(f"{name} has no plan by hours", remedy=f"name it alone, or see `holdfast {name} --help`")
        if name == "feed":
            found += [Preview(name, hour_name(hour), 0, 0, 0, inputs) for hour, inputs in await Feed(env).preview()]
            continue
        for plan in await Derive(env).preview(own):
            place, to_make = plan.place, [each for each in plan.units if not each.is_current]
            inputs = sum(len(each.unit.inputs) for each in to_make)
            hour = hour_name(place.hour)
            found.append(Preview(str(place.kind), hour, place.base, len(plan.units), len(to_make), inputs))
    return found


async def explain(
    store: Store, name: str, *, engine: Engine, options: Options | None = None, request: Document | None = None
) -> list[Step]:
    """The relational steps of a job, each query with the engine's plan of it. Reads and writes nothing."""
    check_request([name], request or {})
    job = {**JOBS, **ASKED}[name](Env(store, ambient_of(store), engine, options or Options()))
    if not isinstance(job, Relational):
        raise Invalid(
            f"{name} has no relational steps to explain", remedy="see `holdfast pipeline plan` without --master"
        )
    return await job.explain(dict(request or {}))


def check_names(names: Sequence[str]) -> list[str]:
    """The named jobs, or all, in the order in which they depend on each other."""
    known = {**JOBS, **ASKED}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
            raise Invalid(f"there is no job {name!r}", remedy=hint)
    return [name for name in known if (name in names if names else name in JOBS)]


def check_request(names: Sequence[str], request: Mapping[str, object], called: Mapping[str, str] | None = None) -> None:
    """Check that each key of a request is understood by one of these jobs. ``called`` has the names of keys for
    messages."""
    meant = check_names(names)
    for part, value in request.items():
        takers = [name for name, wanted in _WANTED.items() if part in wanted]
        if value is not None and not {*meant} & {*takers}:
            raise Invalid(
                f"{(called or {}).get(part, part)} means nothing to {', '.join(meant)}",
                remedy=f"leave it out, or name a job that takes it: {', '.join(takers)}"
                if takers
                else "leave it out: no job takes it",
            )


async def _rounds(env: Env, job: Job, request: Document) -> list[Ran]:
    ended: list[Ran] = []
    if not request and not await job.is_due():
        return ended
    await env.engine.cores()  # what cannot start is no failure of a run
    for part in await job.split(request):
        ended += await _until_done(env, job, part)
        if ended[-1].status != "success":
            break
    return ended


async def _until_done(env: Env, job: Job, request: Document) -> list[Ran]:
    ended: list[Ran] = []
    for _ in range(MOST_ROUNDS):
        ended.append(await jobs.begin(env, job, request))
        summary = ended[-1].summary
        if ended[-1].status != "success" or not (summary.get("more") or summary.get("superseded")):
            break
    return ended


async def _own(env: Env, name: str, request: Mapping[str, object]) -> Document:
    """The keys of a request that this job understands. A full scan is dated now, by the store's clock."""
    own = _meant(name, request)
    return {**own, "began_ns": await Checkpoints(env.store, env.ambient).store_now()} if own.get("full") else own


def _meant(name: str, request: Mapping[str, object]) -> Document:
    return {key: value for key, value in request.items() if key in _WANTED[name] and value is not None}
