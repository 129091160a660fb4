"""``holdfast runs``: what runs there are, where each stands, and what its journal says.

Nothing here needs the code of a workflow. Listing and counting read the index alone. The commands that change something
are in ``steer``.
"""

from typing import Annotated, Any

import typer

from holdfast.base.clock import parse_moment
from holdfast.cli.output import Output, span
from holdfast.cli.runs import steer
from holdfast.cli.runs.view import (
    COLUMNS,
    STATUSES,
    RunId,
    Stats,
    counted_runs,
    description_document,
    description_record,
    entry_line,
    moment,
    open_runs,
    row,
    summary_document,
    waits_for,
)
from holdfast.cli.shell import Shell, check_choice, noun_app
from holdfast.objects.client import Client
from holdfast.runs.admin.control import existing, find
from holdfast.runs.admin.describe import as_document, describe, follow, with_payload
from holdfast.runs.journal.entry import TYPES
from holdfast.runs.journal.history import generation as read_generation

app = noun_app()


@app.callback()
def runs() -> None:
    """See and steer durable runs."""


@app.command("list")
async def list_runs(
    shell: Shell,
    status: Annotated[
        list[str] | None, typer.Option(metavar="STATUS", help=f"Only these; repeatable. One of {', '.join(STATUSES)}.")
    ] = None,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this workflow.")] = None,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Only with this tag; env also finds env=prod.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only those whose status changed since: 2h, 7d or ISO 8601.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only those whose status changed before.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many, newest first.")] = None,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One JSON object per run and line, as they are found.")
    ] = False,
) -> None:
    """List runs, the latest change of status first.

    Reads the index alone, no journals.
    """
    statuses = check_choice("status", status or [], STATUSES)

    async with open_runs(shell) as store:
        now_ns = store.ambient.clock.wall_ns()
        query = {
            "status": statuses,
            "workflow": workflow,
            "tag": tag,
            "since": moment(parse_moment(since, now_ns) if since is not None else None),
            "until": moment(parse_moment(until, now_ns) if until is not None else None),
            "limit": limit,
        }
        await show_list(shell.out, store, query, jsonl=jsonl)


async def show_list(out: Output, store: Client, query: dict[str, Any], *, jsonl: bool) -> None:
    found = find(store, **query)
    if jsonl:
        async for summary in found:
            out.document(summary_document(summary))
        return
    summaries = [summary async for summary in found]
    if out.as_json:
        out.document([summary_document(summary) for summary in summaries])
    elif summaries:
        now_ns = store.ambient.clock.wall_ns()
        out.table(COLUMNS, [row(summary, now_ns) for summary in summaries])
    else:
        filtered = any(value is not None for value in query.values())
        out.note(f"no such runs in {store.spec.uri}" if filtered else f"no runs in {store.spec.uri}")


@app.command()
async def status(shell: Shell, run_id: RunId) -> None:
    """Show where a run stands.

    What it waits for, its steps, its last error, parent, children, the source of a fork.
    """
    async with open_runs(shell) as store:
        found = await describe(store, run_id)
        shell.out.record(description_record(found, store.ambient.clock.wall_ns()), document=description_document(found))


@app.command()
async def dump(
    shell: Shell,
    run_id: RunId,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the entries before this one.")] = 0,
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help=f"Only these; repeatable. One of {', '.join(sorted(TYPES))}."),
    ] = None,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Put large values in place of the references to them.")
    ] = False,
    generation: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="A history from before the run continued as new; the first is 0."),
    ] = None,
) -> None:
    """Print a run's journal, one JSON object per line."""
    kinds = check_choice("type of entry", kind or [], TYPES)

    async with open_runs(shell) as store:
        history = await existing(store, run_id)
        if generation is not None:
            history = await read_generation(store, history, generation)
        for entry in history.entries[offset:]:
            if kinds is None or entry.type in kinds:
                shell.out.document(await with_payload(store, entry) if payloads else as_document(entry))


@app.command()
async def tail(
    shell: Shell,
    run_id: RunId,
    interval: Annotated[float, typer.Option(min=0.01, metavar="SECONDS", help="Time between two looks.")] = 1.0,
    lines: Annotated[int, typer.Option(min=0, metavar="N", help="Begin with the last so many entries.")] = 10,
) -> None:
    """Follow a run until it ends.

    Prints its entries as they are recorded. One GET per look.
    """
    async with open_runs(shell) as store:
        async for entry in follow(store, run_id, last=lines, poll_ms=int(interval * 1000)):
            shell.out.line(entry_line(entry), document=as_document(entry))
    shell.out.note(f"run {run_id} is over")


@app.command()
async def stats(shell: Shell) -> None:
    """Count runs by status and workflow.

    Also finds the one that has waited longest, and says what looking cost. Reads the index alone.
    """
    async with open_runs(shell) as store:
        found = Stats()
        async for summary in find(store):
            found.add(summary)
        show_stats(shell.out, store, found)


def show_stats(out: Output, store: Client, found: Stats) -> None:
    usage = store.usage
    if out.as_json:
        cost = {"requests": usage.by_verb, "dollars": round(usage.dollars, 9)}
        out.document({"store": store.spec.uri, **found.document(), **cost})
        return
    out.line(f"{counted_runs(found.runs)} in {store.spec.uri}")
    if found.runs:
        out.line("")
        out.table(("status", "runs"), found.by_status.most_common())
        out.line("")
        names = [name for name, _ in found.by_status.most_common()]
        rows = [
            (workflow or None, counts.total(), *(counts[name] or None for name in names))
            for workflow, counts in sorted(found.by_workflow.items())
        ]
        out.table(("workflow", "runs", *names), rows)
    oldest = found.oldest_waiting
    if oldest is not None:
        now_ns = store.ambient.clock.wall_ns()
        waited = span(now_ns - oldest.updated_ms * 1_000_000)
        out.line("")
        out.line(f"oldest waiting: {oldest.run_id} for {waited}: {waits_for(oldest, now_ns)}")
    out.line("")
    verbs = ", ".join(f"{count:,} {verb}" for verb, count in sorted(usage.by_verb.items()))
    priced = "about" if store.spec.scheme == "s3" else "on S3 about"
    out.line(f"spent: {usage.requests():,} requests ({verbs}), {priced} ${usage.dollars:.6f}")


app.command()(steer.fork)
app.command()(steer.cancel)
app.command()(steer.retry)
app.command()(steer.resume)
app.command()(steer.delete)
app.command()(steer.reindex)
