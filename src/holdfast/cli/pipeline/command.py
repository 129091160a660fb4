"""``holdfast pipeline``: derive rollups and indexes from accepted batches, on Spark or in this process.

Jobs run in this order: reconcile, derive, feed. Each is a durable run: if its driver is killed, the next driver
continues it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.cli import options
from holdfast.cli.output import Columns
from holdfast.cli.pipeline.bulk import compact, load
from holdfast.cli.pipeline.driver import (
    LOCAL,
    Conf,
    Driver,
    Master,
    Takeover,
    check_master,
    driver,
    options_of,
)
from holdfast.cli.shell import Shell, noun_app, stop_on_signals
from holdfast.objects.client import Client

if TYPE_CHECKING:
    from holdfast.pipeline import Ran

app = noun_app()

AUDIT, GC = "audit", "gc"
SETTLING = {"derive", "feed"}
"""Jobs that wait with an hour until some time after its end."""
MOST_NAMED = 10
"""Files that an error names."""
SHORTEST_NS = 1_000_000_000
"""Between two rounds: each asks the store what is due."""
RUN_COLUMNS: dict[str, str | Callable[[Any], object]] = {
    "job": "job",
    "run": "run_id",
    "status": "status",
    "hours": lambda run: len(run.get("hours", ())),
    "batches": lambda run: run.get("batches", run.get("inputs")),
    "records": "records",
    "units": "units",
    "rows": "rows",
    "read_bytes": "read_bytes",
    "problems": lambda run: run.get("problems", run.get("unreadable")),
}

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="reconcile, derive, feed (default: these); audit; gc."),
]
Since = Annotated[
    int | None, options.moment("--since", "Only batches accepted, or samples, since then: 2h, 7d or a time.")
]
Until = Annotated[int | None, options.moment("--until", "Only up to then.")]
Settle = Annotated[int | None, options.span("--settle", "Derive an hour only this long after its end (default 0s).")]

app.command()(load)
app.command()(compact)


@app.command()
async def run(
    shell: Shell,
    jobs: Jobs = None,
    every: Annotated[
        int | None, options.span("--every", "Repeat at this interval, such as 60s, until a signal ends it.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    since: Since = None,
    until: Until = None,
    full: Annotated[bool, typer.Option("--full", help="Reconcile by listing every manifest.")] = False,
    agent: Annotated[list[str] | None, typer.Option(metavar="NAME", help="With --full: only these agents.")] = None,
    events: Annotated[
        list[str] | None,
        typer.Option(metavar="LOCATION", help="Reconcile the keys in files of S3 event notifications."),
    ] = None,
    inventory: Annotated[
        str | None,
        typer.Option(metavar="LOCATION", help="Reconcile the keys in an S3 Inventory report (its manifest.json)."),
    ] = None,
    settle: Settle = None,
    takeover: Takeover = False,
    metrics: options.MetricsAddress = None,
) -> None:
    """Run jobs until nothing is left to do, or at an interval."""
    from holdfast.pipeline.drive import check_names  # noqa: PLC0415  # loads Arrow, which takes a while

    names = check_names(jobs or [])
    if every is None and metrics is not None:
        raise Invalid("--metrics serves figures between rounds, and this is one round", remedy="give --every too")
    once = {"--since": since, "--until": until, "--full": full, "--events": events, "--inventory": inventory}
    _check_every(every, [name for name, value in {**once, "--takeover": takeover}.items() if value])
    if (agent and not full) or (full and (events or inventory)):
        raise Invalid("--agent narrows --full, and --full lists what --events and --inventory would name")
    if GC in names and len(names) > 1 and shell.settings.gc.access_key_id is not None:
        raise Invalid(
            "gc has credentials of its own (gc.access_key_id), and other jobs do not work with them",
            remedy="run it alone: holdfast pipeline run gc",
        )
    _check_options(names, settle, since_ns=since, until_ns=until, full=full or None, keys=events or inventory)
    wanted = check_master(shell, master)
    where = "in this process" if wanted == LOCAL else f"on Spark at {wanted}"
    async with driver(
        shell,
        wanted,
        conf,
        new=every is not None,  # a service may start before the first collector
        collects_garbage=names == [GC],
        settle_ns=settle,
        service=every is not None,
        opening=f"running {', '.join(names)} for {shell.settings.store.uri} {where}",
    ) as it:
        if every is not None:
            await _serve(shell, it, names, every / 1e9, metrics)
            return
        reports = Reports(shell, it.store, events or [], inventory)
        ended: list[Ran] = []
        async for keys in reports.keys():
            ended += await it.run(["reconcile"], {"keys": keys}, takeover=takeover)
        request = {**_range(since, until), "full": full or None, "agents": agent or None}
        ended += await it.run(names, request, takeover=takeover)
    _show_runs(shell, ended)
    for each in ended:
        if each.status != "success":
            raise HoldfastError(_failure(each))
        if each.summary.get("good") is False:
            audit_id = each.summary["audit_id"]
            message = f"audit {audit_id} found {each.summary['problems']} errors"
            raise HoldfastError(message, remedy=f"holdfast audit show {audit_id}")
    reports.check()


@app.command()
async def plan(
    shell: Shell,
    jobs: Jobs = None,
    since: Since = None,
    until: Until = None,
    settle: Settle = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Explain the steps of one job, as this engine would run them.")
    ] = None,
) -> None:
    """Show what a run would do now, by hour; for audit and gc, or with --master, the engine's plan. Writes nothing."""
    from holdfast.pipeline.drive import check_names, preview  # noqa: PLC0415  # loads Arrow, which takes a while

    names = check_names(jobs or [])
    _check_options(names, settle, since_ns=since, until_ns=until)
    if master is not None and len(jobs or []) != 1:
        raise Invalid("--master shows the plan of one job", remedy="holdfast pipeline plan JOB --master URL")
    if names in ([AUDIT], [GC]) or master is not None:
        async with driver(shell, master, settle_ns=settle) as it:
            await _explain(shell, it, names[0])
        return
    async with shell.open() as hf:
        found = await preview(hf.store, names, options=options_of(shell.settings, settle), request=_range(since, until))
    columns = ("job", "hour", "generation", "units", "to_make", "inputs")
    shell.out.table(found, columns, empty="nothing is due")


@app.command()
async def status(shell: Shell) -> None:
    """Show through which moment the pipeline has derived, what is due, and problems that an operator should look at."""
    from holdfast.pipeline import problems  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline.status import status as pipeline_status  # noqa: PLC0415  # as above

    async with shell.open() as hf:
        found = await pipeline_status(hf.store, hf.ambient)
        listed = await problems.every(hf.store)
    document = found.document()
    if shell.out.as_json:
        shell.out.document({**document, "listed_problems": [each.document() for each in listed]})
        return
    shell.out.record(
        {
            "reconciled through": document["through"],
            "lag": None if found.lag_s is None else f"{found.lag_s:,.0f} s",
            "last full scan": document["full_scan"],
            **{f"{kind} due": _hours(hours) for kind, hours in found.due.items()},
            **{f"at work on {job}": owner for job, owner in found.drivers.items()},
            "problems": sum(found.problems.values()),
        }
    )
    if listed:
        columns: Columns = {
            "problem": lambda each: each.problem.finding,
            "first_seen": "first_seen",
            "key": lambda each: each.problem.key,
            "message": lambda each: each.problem.message,
        }
        shell.out.table(listed, columns)


@app.command()
async def history(
    shell: Shell,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Only this job's.")] = None,
    limit: options.Limit = 20,
) -> None:
    """List past runs with what they read and wrote, the latest first."""
    from holdfast.pipeline import history as past  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline.drive import check_names  # noqa: PLC0415  # as above

    check_names([] if job is None else [job])
    async with shell.open() as hf:
        found = await past(hf.store, limit=limit, job=job)
    results = (
        {
            "job": run.workflow.partition(".")[2],
            "run_id": run.run_id,
            "status": run.status,
            "started_at": iso(run.started_ms * 1_000_000),
            "updated_at": iso(run.updated_ms * 1_000_000),
            "sessions": run.session,
            **result,
        }
        for run, result in found
    )
    shell.out.table(results, {**RUN_COLUMNS, "ended": "updated_at"}, empty="no job has run here")


def _check_options(names: Sequence[str], settle_ns: int | None, **given: object) -> None:
    """Every option that is given has a meaning for at least one of the jobs."""
    from holdfast.pipeline.drive import check_request  # noqa: PLC0415  # as above

    if settle_ns is not None and not SETTLING & set(names):
        message = f"--settle means nothing to {', '.join(names)}"
        raise Invalid(message, remedy=f"leave it out, or name a job that takes it: {', '.join(sorted(SETTLING))}")
    called = {"since_ns": "--since", "until_ns": "--until", "full": "--full", "keys": "--events or --inventory"}
    check_request(names, given, called)


def _check_every(every_ns: int | None, once: list[str]) -> None:
    if every_ns is None:
        return
    if every_ns < SHORTEST_NS:
        raise Invalid(f"--every leaves a pause of {every_ns / 1e9:g} s", remedy="give a second or more, such as 60s")
    if once:
        raise Invalid(f"--every takes whatever is due, and {once[0]} is for one run", remedy="give one of them")


def _range(since_ns: int | None, until_ns: int | None) -> Document:
    if since_ns is not None and until_ns is not None and until_ns <= since_ns:
        raise Invalid("the range ends before it begins", remedy="give a time for --until that is after --since")
    given = {"since_ns": since_ns, "until_ns": until_ns}
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Reports:
    """Files of S3 that name keys to reconcile: event notifications and an inventory."""

    shell: Shell
    store: Client
    events: Sequence[str]
    inventory: str | None
    refused: list[HoldfastError] = field(default_factory=list)
    """Files of notifications that were skipped."""

    async def keys(self) -> AsyncIterator[list[str]]:
        """Groups of keys, each for one run."""
        from holdfast.pipeline import reports  # noqa: PLC0415  # as above

        prefix, settings = self.store.spec.prefix, self.shell.settings
        groups = [reports.event_keys(each, prefix, settings, self.refused.append) for each in self.events]
        if self.inventory is not None:
            bucket = reports.bucket_of(self.store.spec)
            groups.append(reports.inventory_keys(self.inventory, prefix, settings, bucket))
        for group in groups:
            async for keys in group:
                yield keys

    def check(self) -> None:
        """Report the files that were skipped, when the rest is done."""
        if self.refused:
            message = "; ".join(str(each) for each in self.refused[:MOST_NAMED])
            more = f"; and {len(self.refused) - MOST_NAMED} more" if len(self.refused) > MOST_NAMED else ""
            raise Invalid(
                f"some files of --events were skipped, the others were reconciled: {message}{more}",
                remedy="mend these files, and give them again",
            )


async def _explain(shell: Shell, it: Driver, job: str) -> None:
    from holdfast.pipeline.drive import explain  # noqa: PLC0415  # as above

    steps = await explain(it.store, job, engine=it.engine, options=it.options, request={})
    if shell.out.as_json:
        shell.out.document([asdict(each) for each in steps])
        return
    for each in steps:
        shell.out.line(f"-- {each.step}: {each.does}")
        for text in filter(None, (each.sql, each.plan)):
            for line in text.splitlines():
                shell.out.line(line)
            shell.out.line("")


async def _serve(shell: Shell, it: Driver, jobs: Sequence[str], every_s: float, metrics: str | None) -> None:
    from holdfast.cli.pipeline.metrics import Figures  # noqa: PLC0415  # as above
    from holdfast.pipeline import serve  # noqa: PLC0415  # as above

    figures = Figures(it.store, every_s)
    stop = asyncio.Event()
    stop_on_signals(stop)

    async def after(ended: "list[Ran]") -> None:
        await figures.ended(ended)
        if ended:
            _show_runs(shell, ended)
        for each in ended:
            if each.status != "success":
                shell.out.note(f"{_failure(each)}; trying again in {every_s:g} s")

    async def failed(error: HoldfastError) -> None:
        await figures.failed(error)
        shell.out.note(f"{error}; trying again in {every_s:g} s")

    async with AsyncExitStack() as stack:
        if metrics is not None:
            address = await stack.enter_async_context(figures.serving(metrics))
            shell.out.note(f"metrics at http://{address}/metrics")
        await stack.enter_async_context(it.watch.shown())
        await serve(
            it.store,
            jobs,
            every_s=every_s,
            stop=stop,
            engine=it.engine,
            options=it.options,
            on_round=after,
            on_error=failed,
            say=it.watch.say,
        )


def _failure(ran: "Ran") -> str:
    return f"job {ran.job}, run {ran.run_id}: {ran.status}: {ran.error}"


def _show_runs(shell: Shell, ended: "list[Ran]") -> None:
    shell.out.table([each.document() for each in ended], RUN_COLUMNS, empty="nothing was due")


def _hours(hours: Sequence[str]) -> str:
    if not hours:
        return "nothing"
    return hours[0] if len(hours) == 1 else f"{len(hours)} hours, {hours[0]} to {hours[-1]}"
