"""``holdfast runs``: list runs, show their state and journals, and control them.

No command needs the code of a workflow. What only that code can do (clean up after ``cancel``, continue after
``resume``, ``retry`` and ``fork``) is requested here, and done by the next worker or call. ``list`` and ``stats`` read
only the index.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, get_args

import typer

from holdfast.base import aio
from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Conflict, Corrupt, HoldfastError, Invalid, NotFound, Refused
from holdfast.cli import options
from holdfast.cli.output import Columns, Output, clock_time, counted, json_text, span
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.client import Client
from holdfast.runs import layout
from holdfast.runs.admin import control
from holdfast.runs.admin.delete import Deleted, check_deletable
from holdfast.runs.admin.delete import delete as delete_run
from holdfast.runs.admin.describe import Description, as_document, describe, with_payload
from holdfast.runs.admin.describe import follow as follow_run
from holdfast.runs.admin.fork import fork as fork_run
from holdfast.runs.engine.workflow import post
from holdfast.runs.errors import RunFinished, explained, recorded_error
from holdfast.runs.journal.entry import Entry
from holdfast.runs.journal.history import generation as read_generation
from holdfast.runs.journal.state import FINISHED, Status
from holdfast.runs.journal.summary import RunSummary

app = noun_app()

STATUSES = tuple(status for status in get_args(Status) if status not in ("new", "deleted"))
"""The statuses of runs that are listed."""
ENDED = tuple(status for status in STATUSES if status in FINISHED)
CONTINUES = "the next worker or call continues it"
DELETED_AT_ONCE = 8

_MS = 1_000_000
_LONGEST_VALUE = 160
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run's id.")]


# --- list and show ---


@app.command("list")
async def list_runs(
    shell: Shell,
    status: Annotated[
        list[str] | None,
        options.choice("--status", STATUSES, "Only runs with this status; repeatable", metavar="STATUS"),
    ] = None,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this workflow.")] = None,
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="Only runs with this tag; env also finds env=prod.")
    ] = None,
    since: Annotated[
        int | None, options.moment("--since", "Only runs whose status changed since: 2h, 7d or ISO 8601.")
    ] = None,
    until: Annotated[int | None, options.moment("--until", "Only runs whose status changed before.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many to list at most, the newest first (default: all).")
    ] = None,
) -> None:
    """List runs, the latest change of status first.

    Reads only the index, no journals.
    """
    query: dict[str, Any] = {
        "status": status or None,
        "workflow": workflow,
        "tag": tag,
        "since": None if since is None else _datetime(since),
        "until": None if until is None else _datetime(until),
        "limit": limit,
    }
    async with shell.open() as hf:
        found = [summary async for summary in control.find(hf.store, **query)]
        such = "such " if any(value is not None for value in query.values()) else ""
        _show_summaries(shell.out, found, hf.ambient.clock.wall_ns(), f"no {such}runs in {hf.store.spec.uri}")


@app.command()
async def status(shell: Shell, run_id: RunId) -> None:
    """Show the state of a run.

    What it waits for, its steps, its last error, parent, children, the source of a fork.
    """
    async with shell.open() as hf:
        found = await describe(hf.store, run_id)
        shell.out.record(_description(found, hf.ambient.clock.wall_ns()), document=found)


@app.command()
async def dump(
    shell: Shell,
    run_id: RunId,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the entries before this one.")] = 0,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Show large values in place of the references to them.")
    ] = False,
    generation: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="An earlier history of a run that continued as new; the first is 0."),
    ] = None,
) -> None:
    """Print a run's journal, one JSON object per line."""
    async with shell.open() as hf:
        history = await control.existing(hf.store, run_id)
        if generation is not None:
            history = await read_generation(hf.store, history, generation)
        for entry in history.entries[offset:]:
            shell.out.document(await with_payload(hf.store, entry) if payloads else as_document(entry))


@app.command()
async def tail(
    shell: Shell,
    run_id: RunId,
    interval: options.Interval = 1.0,
    lines: Annotated[int, typer.Option(min=0, metavar="N", help="Begin with the latest N entries.")] = 10,
) -> None:
    """Follow a run until it ends.

    Prints its entries as they are recorded. Each poll is one GET.
    """
    async with shell.open() as hf:
        async for entry in follow_run(hf.store, run_id, last=lines, poll_ms=int(interval * 1000)):
            shell.out.line(_entry_line(entry), document=as_document(entry))
    shell.out.note(f"run {run_id} has ended")


@app.command()
async def stats(shell: Shell) -> None:
    """Count runs by workflow and status.

    Reads only the index.
    """
    counts: dict[str, Counter[str]] = {}
    async with shell.open() as hf:
        async for summary in control.find(hf.store):
            counts.setdefault(summary.workflow, Counter())[summary.status] += 1
    workflows = sorted(counts.items())
    if shell.out.as_json:
        shell.out.document({name: dict(sorted(each.items())) for name, each in workflows})
        return
    statuses = [name for name in STATUSES if any(each[name] for each in counts.values())]
    rows = [
        {"workflow": workflow or None, "runs": each.total(), **{name: each[name] or None for name in statuses}}
        for workflow, each in workflows
    ]
    shell.out.table(rows, empty=f"no runs in {hf.store.spec.uri}")


# --- control ---


@app.command()
async def fork(
    shell: Shell,
    run_id: RunId,
    from_offset: Annotated[
        int | None, typer.Option(metavar="N", help="Keep the entries before this offset; the rest runs again.")
    ] = None,
    from_step: Annotated[
        str | None, typer.Option(metavar="STEP_ID", help="Keep the entries before this step, which runs again.")
    ] = None,
    after_step: Annotated[
        str | None, typer.Option(metavar="STEP_ID", help="Keep the entries up to and including this step.")
    ] = None,
    new_run_id: Annotated[str | None, typer.Option(metavar="ID", help="The fork's id (default: a random one).")] = None,
    as_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The version of the workflow that will continue it.")
    ] = None,
) -> None:
    """Make a new run from the beginning of another.

    The other one is not changed.
    """
    async with shell.open() as hf:
        made = await fork_run(
            hf.store,
            run_id,
            new_run_id=new_run_id,
            from_offset=from_offset,
            from_step=from_step,
            after_step=after_step,
            version=as_version,
        )
    facts = {"run_id": made.run_id, "source": made.source, "from_offset": made.from_offset}
    shell.out.line(
        f"{made.run_id} is a fork of {made.source}, from offset {made.from_offset}; {CONTINUES}",
        document={**facts, "status": made.state.status, "session": made.state.session},
    )


@app.command()
async def cancel(
    shell: Shell,
    run_id: RunId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason; it is kept in the journal.")] = "cancelled",
    now: Annotated[bool, typer.Option("--now", help="End it at once: its clean-up steps will not run.")] = False,
) -> None:
    """Cancel a run.

    Its current session is fenced; the next worker or call runs its clean-up.
    """
    async with shell.open() as hf:
        done = await control.request_cancel(hf.store, run_id, reason=reason, now=now)
    if not done.written and done.status in ENDED and done.status != "cancelled":
        raise RunFinished(f"run {run_id} is {done.status}: there is nothing to cancel")
    after = "the next worker or call runs its clean-up" if done.status == "cancelling" else "no clean-up will run"
    _show_request(shell.out, done, after if done.written else "nothing was changed")


@app.command()
async def retry(shell: Shell, run_id: RunId) -> None:
    """Open a failed run again.

    Recorded steps stay; the next worker or call tries the rest.
    """
    async with shell.open() as hf:
        _show_request(shell.out, await control.request_retry(hf.store, run_id), CONTINUES)


@app.command()
async def resume(
    shell: Shell,
    run_id: RunId,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The name of the event.")],
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="The event's value, as JSON.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Deliver once for this key, however often this is called.")
    ] = None,
) -> None:
    """Deliver an event to a run.

    Also before the run waits for it: the event is kept until the run asks for it.
    """
    given = _parse_value(value)
    async with shell.open() as hf:
        state = (await control.existing(hf.store, run_id)).state
        posted = await post(hf.store, run_id, event, given, key=key)
    pending = state.pending.event if state.pending is not None else None
    waiting = state.status == "suspended" and pending == event
    if posted.again:
        text = f"{event} was already delivered to {run_id}; nothing was changed"
    elif waiting:
        text = f"delivered {event} to {run_id}, which waits for it; {CONTINUES}"
    else:
        now = f"waits for {pending}" if pending is not None else f"is {state.status}"
        text = f"delivered {event} to {run_id}, which {now}; the event is kept until the run asks for it"
    facts = {"run_id": run_id, "event": event, "mail": posted.id, "status": state.status, "waiting": waiting}
    shell.out.line(text, document={**facts, "again": posted.again})


@app.command()
async def delete(
    shell: Shell,
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="RUN_ID", help="The runs to delete.")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also delete a run that is not over."),
    ] = False,
    older_than: Annotated[
        int | None, options.span("--older-than", "Delete all runs that ended longer ago than this, such as 30d.")
    ] = None,
    status: Annotated[
        list[str] | None,
        options.choice(
            "--status", ENDED, "With --older-than: only runs with this status; repeatable", metavar="STATUS"
        ),
    ] = None,
    dry_run: options.DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --older-than: do not ask.")] = False,
) -> None:
    """Delete runs for good.

    The id of a deleted run is never used again. --older-than includes the runs of pipeline jobs.
    """
    if bool(run_ids) == (older_than is not None):
        both = (
            "RUN_IDs and --older-than exclude each other" if run_ids else "neither RUN_IDs nor --older-than was given"
        )
        raise Invalid(f"delete which runs? {both}", remedy="give RUN_IDs, or --older-than SPAN")
    if run_ids and (status or yes):
        raise Invalid("--status and --yes go with --older-than")
    if older_than is not None and force:
        raise Invalid("--force does not go with --older-than", remedy="force the deletion of runs by their ids")
    async with shell.open() as hf:
        if older_than is not None:
            now_ns = hf.ambient.clock.wall_ns()
            until = _datetime(now_ns - older_than)
            found = [each async for each in control.find(hf.store, status=status or ENDED, until=until)]
            if dry_run:
                _show_summaries(shell.out, found, now_ns, None)
                shell.out.note(f"{counted(len(found), 'run')} would be deleted")
                return
            if found and not yes:
                shell.confirm(f"Delete {counted(len(found), 'run')} for good?", "--yes")
            run_ids = [summary.run_id for summary in found]
        outcomes = await _delete_all(hf.store, list(dict.fromkeys(run_ids or [])), force=force, dry_run=dry_run)
    _show_deleted(shell.out, outcomes, dry_run=dry_run)
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, HoldfastError)]
    if errors and older_than is None:
        raise errors[0]


@app.command()
async def reindex(shell: Shell) -> None:
    """Derive the index again from the journals.

    Safe while runs are active.
    """
    async with shell.open() as hf:
        report = await control.reindex(hf.store)
    written, removed = counted(report.written, "index key"), f"{report.removed:,}"
    text = f"{counted(report.runs, 'run')}; {written} written, {removed} removed"
    shell.out.line(text, document=report)
    for run_id, reason in report.unreadable.items():
        shell.out.line(f"{run_id} cannot be read: {reason}")
    if report.unreadable:
        count = counted(len(report.unreadable), "journal")
        raise Corrupt(f"{count} cannot be read, the first: {next(iter(report.unreadable))}")


def _show_request(out: Output, done: control.Requested, what_next: str) -> None:
    out.line(f"{done.run_id} is {done.status}, session {done.session}; {what_next}", document=done)


def _parse_value(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise Invalid(
            f"VALUE is not JSON: {error}", remedy="""quote it for the shell: '{"approved": true}', '"text"', 42"""
        ) from error


async def _delete_all(
    store: Client, run_ids: Sequence[str], *, force: bool, dry_run: bool
) -> dict[str, Deleted | HoldfastError]:
    """One outcome per run, in the order of the runs; with ``dry_run`` what it would be, as far as refusals go."""

    async def one(run_id: str) -> Deleted | HoldfastError:
        try:
            if dry_run:
                await (control.existing(store, run_id) if force else check_deletable(store, run_id))
                return Deleted(run_id)
            return await delete_run(store, run_id, force=force)
        except (NotFound, Refused, Conflict, Corrupt, Invalid) as error:
            return error

    return dict(zip(run_ids, await aio.map_bounded(run_ids, one, limit=DELETED_AT_ONCE), strict=True))


def _show_deleted(out: Output, outcomes: dict[str, Deleted | HoldfastError], *, dry_run: bool) -> None:
    was, left = ("would be deleted", "would be left") if dry_run else ("was deleted", "was left")
    documents: list[dict[str, Any]] = []
    for run_id, outcome in outcomes.items():
        if isinstance(outcome, HoldfastError):
            documents.append({"run_id": run_id, "deleted": False, "reason": str(outcome)})
            out.line(f"{run_id} {left}: {outcome}")
            continue
        if dry_run:
            documents.append({"run_id": run_id, "deleted": False})
        else:
            documents.append({"run_id": run_id, "deleted": True, "objects": outcome.removed})
        out.line(f"{run_id} {was}")
    if out.as_json:
        out.document(documents)
    deleted = sum(isinstance(outcome, Deleted) for outcome in outcomes.values())
    out.note(f"{deleted:,} of {counted(len(outcomes), 'run')} {was.removeprefix('was ')}")


# --- runs and entries as text ---


def _show_summaries(out: Output, found: Sequence[RunSummary], now_ns: int, empty: str | None) -> None:
    columns: Columns = {
        "run": "run_id",
        "status": "status",
        "workflow": lambda each: each.workflow or None,
        "waits for": lambda each: _summary_waits(each, now_ns),
        "changed": lambda each: f"{span(now_ns - each.updated_ms * _MS)} ago",
        "session": "session",
        "tags": lambda each: (", ".join(each.tags) + (" ..." if each.cut else "")) or None,
    }
    if found or empty is not None or out.as_json:
        out.table(found, columns, document=_summary_document, empty=empty)


def _summary_document(summary: RunSummary) -> dict[str, Any]:
    return {
        "run_id": summary.run_id,
        "status": summary.status,
        "workflow": summary.workflow,
        "session": summary.session,
        "generation": summary.generation,
        "entries": summary.offset,
        "event": summary.event,
        "wake_at": iso(summary.wake_ms * _MS) if summary.wake_ms is not None else None,
        "started_at": iso(summary.started_ms * _MS),
        "changed_at": iso(summary.updated_ms * _MS),
        "tags": list(summary.tags),
        "detached": summary.detached,
        "blocked": summary.blocked,
        "cut": summary.cut,
    }


def _summary_waits(summary: RunSummary, now_ns: int) -> str | None:
    """What the run waits for; None if it has ended or a session works on it."""
    if summary.finished:
        return None
    if summary.blocked is not None:
        return f"an operator: {summary.blocked}"
    if summary.detached:
        return "a worker or a call"
    if summary.wake_ms is not None:
        left_ns = summary.wake_ms * _MS - now_ns
        what = "retry" if summary.status == "retrying" else "timer"
        return f"{what} in {span(left_ns)}" if left_ns > 0 else f"a worker or a call ({what} is due)"
    return _event(summary.event) if summary.status == "suspended" else None


def _event(event: str | None) -> str:
    if event is None:
        return "an event"
    child = event.removeprefix(layout.CHILD_EVENT)
    return f"event {event}" if child == event else f"child run {child}"


def _description(found: Description, now_ns: int) -> dict[str, object]:
    """A run for people; facts that it does not have are left out."""
    version = f", version {found.version}" if found.version is not None else ""
    last, blocked, parent, source = found.last_error, found.blocked, found.parent, found.source
    facts: dict[str, object] = {
        "run": found.run_id,
        "status": found.status + (", continued by the next worker or call" if found.detached else ""),
        "workflow": (found.workflow or "?") + version,
        "waits for": _description_waits(found, now_ns),
        "session": found.session,
        "generation": found.generation or None,
        "steps": f"{found.steps} recorded, last {found.last_step}" if found.steps else "none recorded",
        "entries": found.entries,
        "started": _with_age(found.started_at, now_ns),
        "changed": _with_age(found.updated_at, now_ns),
        "result": _shortened(found.result) if found.status == "success" else None,
        "last error": None
        if last is None
        else f"{explained(last.type, last.message)} (offset {last.offset}, failures {found.failures})",
        "blocked": None
        if blocked is None
        else f"the latest call ended in {explained(blocked.type, blocked.message)}"
        + (f" ({span(now_ns - parse_iso(blocked.at))} ago)" if blocked.at else ""),
        "to do": blocked.remedy if blocked is not None else None,
        "cancelled": found.cancel_reason,
        "metadata": _shortened(found.metadata) if found.metadata else None,
        "tags": ", ".join(found.tags) or None,
        "parent": f"{parent.get('runId')}, step {parent.get('stepId')}" if parent else None,
        "children": ", ".join(found.children) or None,
        "fork of": f"{source.get('runId')}, offset {source.get('fromOffset')}" if source else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _with_age(timestamp: str, now_ns: int) -> str:
    moment_ns = parse_iso(timestamp)
    return f"{clock_time(moment_ns)} ({span(now_ns - moment_ns)} ago)"


def _description_waits(found: Description, now_ns: int) -> str | None:
    if found.status in FINISHED:
        return None
    if found.wake_at is not None:
        wake_ns = parse_iso(found.wake_at)
        when = f"in {span(wake_ns - now_ns)}" if wake_ns > now_ns else "due"
        return f"{'retry' if found.status == 'retrying' else 'timer'} at {clock_time(wake_ns)} ({when})"
    if found.event is None:
        return None
    since = f", since {clock_time(parse_iso(found.waiting_since))}" if found.waiting_since else ""
    data = f" {_shortened(found.event_data)}" if found.event_data else ""
    return _event(found.event) + data + since


def _entry_line(entry: Entry) -> str:
    """One entry on one line: its offset, time and session, its type and its content."""
    where = f"{entry.offset:>5}  {clock_time(entry.timestamp_ns)}  {entry.session:>3}"
    return f"{where}  {entry.type:<8}  {_entry_content(entry)}".rstrip()


def _entry_content(entry: Entry) -> str:
    fields = entry.fields
    match entry.type:
        case "start":
            marks = [mark for mark in ("cancelling", "reopen", "detached") if fields.get(mark)]
            return " ".join([str(fields.get("workflow") or ""), *marks]).strip()
        case "step" if "error" in fields:
            return f"{fields.get('stepId')} failed: {explained(*recorded_error(fields['error']))}"
        case "step":
            return f"{fields.get('stepId')} = {_entry_value(fields, 'result')}"
        case "suspend":
            until = f" until {fields['wakeAt']}" if fields.get("wakeAt") else ""
            return f"{fields.get('event')}{until}"
        case "resume":
            return f"{fields.get('event')} = {_entry_value(fields, 'value')}"
        case "complete":
            return _entry_value(fields, "result")
        case "error":
            again = f", again at {fields['retryAt']}" if fields.get("retryAt") else ""
            return f"{explained(*recorded_error(fields.get('error')))}{again}"
    return "deleted" if fields.get("deleted") else str(fields.get("reason") or "")


def _entry_value(fields: Mapping[str, Any], name: str) -> str:
    reference = fields.get("payload")
    if isinstance(reference, dict):
        return f"{reference.get('bytes'):,} bytes in {reference.get('key')}"
    return _shortened(fields.get(name))


def _shortened(value: object) -> str:
    text = json_text(value, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _datetime(time_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_ns // 1000)
