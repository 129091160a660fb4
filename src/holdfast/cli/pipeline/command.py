"""``holdfast pipeline``: derive rollups and indexes from what was accepted, on Spark or in this process.

Jobs run in their order: reconcile, derive, feed. Each run is a durable run: a driver that is killed
leaves it to the next one, which goes on where it stood.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.clock import parse_moment, parse_span
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.cli.pipeline import bulk as pipeline_bulk
from holdfast.cli.pipeline.engines import (
    LOCAL,
    Conf,
    Latest,
    Master,
    Takeover,
    check_master,
    engine_for,
    open_as_collector_of_garbage,
    open_pipeline,
    options_of,
)
from holdfast.cli.pipeline.view import Watch, plan_rows, run_rows, show_history, show_status
from holdfast.cli.shell import Shell, noun_app, stop_on_signals

if TYPE_CHECKING:
    from holdfast.base.config import Settings
    from holdfast.objects.client import Client
    from holdfast.objects.uri import StoreSpec
    from holdfast.pipeline import Engine, Options, Ran
    from holdfast.pipeline.drive import Preview

app = noun_app()

AUDIT, GC = "audit", "gc"
SETTLING = {"derive", "feed"}
"""Jobs that leave an hour alone until some time after its end."""
MOST_NAMED = 10
"""Files that an error names."""
SHORTEST_S = 1.0
"""Between two rounds: each asks the store what is due."""

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="reconcile, derive, feed (default: these); audit; gc."),
]
Since = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only batches accepted, or samples, since then: 2h, 7d or a time.")
]
Until = Annotated[str | None, typer.Option(metavar="WHEN", help="Only up to then.")]
Settle = Annotated[
    str | None, typer.Option(metavar="SPAN", help="Derive an hour only this long after its end (default 0s).")
]


@app.callback()
def pipeline() -> None:
    """Derive rollups and indexes from accepted telemetry."""


@app.command()
async def run(
    shell: Shell,
    jobs: Jobs = None,
    every: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Repeat at this interval, such as 60s, until a signal ends it.")
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
    deep: Annotated[
        bool, typer.Option("--deep", help="With audit: read all bytes, and derive every unit again.")
    ] = False,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With audit: only this scope; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done.")] = False,
    takeover: Takeover = False,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="With --every: serve /metrics and /health there.")
    ] = None,
) -> None:
    """Run jobs until nothing is left to do, or at an interval."""
    every_s = None if every is None else parse_span(every) / 1e9
    once = {"--since": since, "--until": until, "--full": full, "--events": events, "--inventory": inventory}
    once |= {"--deep": deep, "--scope": scope}
    _check_every(every_s, [name for name, value in {**once, "--takeover": takeover}.items() if value], metrics)
    if (agent and not full) or (full and (events or inventory)):
        raise Invalid("--agent narrows --full, and --full lists what --events and --inventory would name")
    _check_jobs(shell, jobs or [], deep=deep, scopes=scope or [])
    _check_options(jobs or [], settle, since_ns=since, until_ns=until, full=full or None, keys=events or inventory)
    named = Named(events or [], inventory)
    wanted = check_master(shell, master)
    watch = Watch(shell.out, _opening(shell, jobs or [], wanted))

    service = every is not None  # which may start before the first collector
    opened = open_as_collector_of_garbage(shell) if jobs == [GC] else open_pipeline(shell, new=service)
    async with opened as store:
        options = options_of(shell, settle, service=service)
        request = {**_range(store, since, until), "full": full or None, "agents": agent or None}
        request |= {"deep": deep or None, "scopes": scope}
        if dry_run and not _explained(jobs):
            await _show_plan(shell, store, jobs or [], options, request, named)
            named.check()
            return
        async with engine_for(shell, store, wanted, conf or [], watch) as engine:
            if dry_run:
                await _show_steps(shell, store, engine, options, jobs or [], {"scopes": scope})
                return
            if every_s is not None:
                await _serve(shell, store, jobs or [], engine, options, every_s, metrics, watch)
                return
            async with watch.shown():
                ended = await _once(shell, store, jobs or [], engine, options, request, watch, takeover, named)
        _report(shell, ended)
        named.check()


app.command("load")(pipeline_bulk.load)
app.command("compact")(pipeline_bulk.compact)


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
    _check_options(jobs or [], settle, since_ns=since, until_ns=until)
    if master is not None and len(jobs or []) != 1:
        raise Invalid("--master shows the plan of one job", remedy="holdfast pipeline plan JOB --master URL")

    async with open_pipeline(shell) as store:
        options = options_of(shell, settle, service=False)
        if _explained(jobs) or master is not None:
            async with engine_for(shell, store, master, []) as engine:
                await _show_steps(shell, store, engine, options, jobs or [], {})
            return
        await _show_plan(shell, store, jobs or [], options, _range(store, since, until), Named())


@app.command()
async def status(shell: Shell) -> None:
    """Show how far the pipeline is, what is due, and what an operator should look at."""
    async with open_pipeline(shell) as store:
        await show_status(shell.out, store)


@app.command()
async def history(
    shell: Shell,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Only this job's.")] = None,
    limit: Latest = 20,
) -> None:
    """List past runs with what they read and wrote, the latest first."""

    from holdfast.pipeline.drive import check_names  # noqa: PLC0415  # loads Arrow, which takes a while

    check_names([] if job is None else [job])
    async with open_pipeline(shell) as store:
        await show_history(shell.out, store, job, limit)


def _opening(shell: Shell, jobs: list[str], master: str) -> str:
    from holdfast.pipeline.drive import check_names  # noqa: PLC0415  # as above

    where = "in this process" if master == LOCAL else f"on Spark at {master}"
    return f"running {', '.join(check_names(jobs))} for {shell.settings.store.uri} {where}"


def _explained(jobs: list[str] | None) -> bool:
    """Whether the plan of these is not by hours, but by steps alone."""
    return jobs in ([AUDIT], [GC])


def _check_jobs(shell: Shell, jobs: list[str], *, deep: bool, scopes: list[str]) -> None:
    from holdfast.pipeline.drive import check_names  # noqa: PLC0415  # as above
    from holdfast.pipeline.jobs.audit import check_scopes  # noqa: PLC0415  # loads Arrow, which takes a while

    check_names(jobs)
    check_scopes(scopes)
    if (deep or scopes) and AUDIT not in jobs:
        raise Invalid("--deep and --scope are about an audit", remedy="name the job: holdfast pipeline run audit")
    if GC in jobs and len(jobs) > 1 and shell.settings.gc.access_key_id is not None:
        raise Invalid(
            "gc has credentials of its own (gc.access_key_id), and other jobs do not work with them",
            remedy="run it alone: holdfast pipeline run gc",
        )


def _check_options(jobs: list[str], settle: str | None, **given: object) -> None:
    """Nothing that is asked for is passed over by every job."""
    from holdfast.pipeline.drive import check_names, check_request  # noqa: PLC0415  # as above

    if settle is not None and not SETTLING & set(check_names(jobs)):
        message = f"--settle means nothing to {', '.join(jobs)}"
        raise Invalid(message, remedy=f"leave it out, or name a job that takes it: {', '.join(sorted(SETTLING))}")
    called = {"since_ns": "--since", "until_ns": "--until", "full": "--full", "keys": "--events or --inventory"}
    check_request(jobs, given, called)


def _check_every(every_s: float | None, once: list[str], metrics: str | None) -> None:
    """Nothing that is asked for is passed over in silence."""
    if every_s is None:
        if metrics is not None:
            raise Invalid("--metrics is there between rounds, and this is one alone", remedy="give --every too")
        return
    if every_s < SHORTEST_S:
        raise Invalid(f"--every leaves a pause of {every_s:g} s", remedy="give a second or more, such as 60s")
    if once:
        raise Invalid(f"--every takes whatever is due, and {once[0]} is for one run", remedy="give one of them")


def _range(store: "Client", since: str | None, until: str | None) -> dict[str, Any]:
    now_ns = store.ambient.clock.wall_ns()
    given = {"since_ns": since, "until_ns": until}
    found = {name: parse_moment(text, now_ns) for name, text in given.items() if text is not None}
    if len(found) == len(given) and found["until_ns"] <= found["since_ns"]:
        raise Invalid("the range ends before it begins", remedy="give a time for --until that is after --since")
    return found


@dataclass(frozen=True, slots=True)
class Named:
    """Where S3 names keys to reconcile."""

    events: Sequence[str] = ()
    inventory: str | None = None
    refused: list[HoldfastError] = field(default_factory=list)
    """Files of notifications that were passed over."""

    def check(self) -> None:
        """Report the files that were passed over, when the rest is done."""
        if self.refused:
            message = "; ".join(str(each) for each in self.refused[:MOST_NAMED])
            more = f"; and {len(self.refused) - MOST_NAMED} more" if len(self.refused) > MOST_NAMED else ""
            raise Invalid(
                f"passed over among --events, the others were taken: {message}{more}",
                remedy="mend what is named, and give it again",
            )

    async def keys(self, spec: "StoreSpec", settings: "Settings") -> AsyncIterator[list[str]]:
        """In groups, of which each is a run."""
        from holdfast.pipeline import reports as sources  # noqa: PLC0415  # as above

        prefix = spec.prefix
        groups = [sources.event_keys(each, prefix, settings, self.refused.append) for each in self.events]
        if self.inventory is not None:
            groups.append(sources.inventory_keys(self.inventory, prefix, settings, sources.bucket_of(spec)))
        for group in groups:
            async for keys in group:
                yield keys


async def _show_plan(
    shell: Shell, store: "Client", jobs: list[str], options: "Options", request: dict[str, Any], named: Named
) -> None:
    from holdfast.pipeline.drive import preview  # noqa: PLC0415  # as above

    found: list[Preview] = []
    async for keys in named.keys(store.spec, shell.settings):
        found += await preview(store, ["reconcile"], options=options, request={"keys": keys})
    found += await preview(store, jobs, options=options, request=request)
    columns, rows = plan_rows(found)
    shell.out.table(columns, rows)
    if not rows:
        shell.out.note("nothing is due")


async def _show_steps(
    shell: Shell, store: "Client", engine: "Engine", options: "Options", jobs: list[str], request: dict[str, Any]
) -> None:
    from holdfast.pipeline.drive import explain  # noqa: PLC0415  # as above

    (job,) = jobs
    steps = await explain(store, job, engine=engine, options=options, request=request if job == AUDIT else {})
    if shell.out.as_json:
        shell.out.document([asdict(each) for each in steps])
        return
    for each in steps:
        shell.out.line(f"-- {each.step}: {each.does}")
        for text in filter(None, (each.sql, each.plan)):
            for line in text.splitlines():
                shell.out.line(line)
            shell.out.line("")


async def _once(
    shell: Shell,
    store: "Client",
    jobs: list[str],
    engine: "Engine",
    options: "Options",
    request: dict[str, Any],
    watch: Watch,
    takeover: bool,
    named: Named,
) -> "list[Ran]":
    from holdfast import pipeline as rooms  # noqa: PLC0415  # as above

    ended: list[Ran] = []
    async for keys in named.keys(store.spec, shell.settings):
        ended += await rooms.run(
            store,
            ["reconcile"],
            engine=engine,
            options=options,
            request={"keys": keys},
            takeover=takeover,
            say=watch.say,
        )
    return ended + await rooms.run(
        store, jobs, engine=engine, options=options, request=request, takeover=takeover, say=watch.say
    )


async def _serve(
    shell: Shell,
    store: "Client",
    jobs: list[str],
    engine: "Engine",
    options: "Options",
    every_s: float,
    metrics: str | None,
    watch: Watch,
) -> None:
    from holdfast.cli.pipeline.metrics import Figures  # noqa: PLC0415  # as above
    from holdfast.pipeline import serve  # noqa: PLC0415  # as above

    figures = Figures(store, every_s)
    if metrics is not None:
        shell.out.note(f"metrics at http://{await figures.serve(metrics)}/metrics")
    stop = asyncio.Event()
    stop_on_signals(stop)

    async def after(ended: "list[Ran]") -> None:
        await figures.ended(ended)
        if ended:
            _table(shell, ended)
        for each in ended:
            if each.status != "success":
                shell.out.note(f"{_failure(each)}; trying again in {every_s:g} s")

    async def failed(error: HoldfastError) -> None:
        await figures.failed(error)
        shell.out.note(f"{error}; trying again in {every_s:g} s")

    async with watch.shown():
        await serve(
            store,
            jobs,
            every_s=every_s,
            stop=stop,
            engine=engine,
            options=options,
            on_round=after,
            on_error=failed,
            say=watch.say,
        )


def _report(shell: Shell, ended: "list[Ran]") -> None:
    _table(shell, ended)
    if not ended:
        shell.out.note("nothing was due")
    for each in ended:
        if each.status != "success":
            raise HoldfastError(_failure(each))
        if each.summary.get("good") is False:
            audit_id = each.summary["audit_id"]
            message = f"audit {audit_id} found {each.summary['problems']} errors"
            raise HoldfastError(message, remedy=f"holdfast audit show {audit_id}")


def _failure(ran: "Ran") -> str:
    return f"job {ran.job}, run {ran.run_id}: {ran.status}: {ran.error}"


def _table(shell: Shell, ended: "list[Ran]") -> None:
    if shell.out.as_json:
        shell.out.document([each.document() for each in ended])
        return
    columns, rows = run_rows(ended)
    shell.out.table(columns, rows)
