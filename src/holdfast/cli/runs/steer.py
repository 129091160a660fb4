"""The commands that change runs. None needs the code of a workflow: what does is asked for here, and done by the next
worker or call.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base import aio
from holdfast.base.clock import parse_span
from holdfast.base.errors import Conflict, Corrupt, HoldfastError, Invalid, NotFound, Refused
from holdfast.cli.output import Output
from holdfast.cli.progress import Checklist, Step, live
from holdfast.cli.runs.view import COLUMNS, ENDED, RunId, counted_runs, moment, open_runs, row, summary_document
from holdfast.cli.shell import Shell, check_choice
from holdfast.objects.client import Client
from holdfast.runs.admin import control
from holdfast.runs.admin.delete import Deleted
from holdfast.runs.admin.delete import delete as delete_run
from holdfast.runs.admin.fork import fork as fork_run
from holdfast.runs.engine.workflow import deliver
from holdfast.runs.errors import RunFinished
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.summary import RunSummary

NEXT = "the next worker or call goes on with it"


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
        str | None, typer.Option(metavar="STEP_ID", help="Keep the entries up to and with this step.")
    ] = None,
    new_run_id: Annotated[str | None, typer.Option(metavar="ID", help="The fork's id; default: a random one.")] = None,
    as_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The version of the workflow that will go on with it.")
    ] = None,
) -> None:
    """Make a new run from the beginning of another.

    The other one is not touched.
    """
    async with open_runs(shell) as store:
        made = await fork_run(
            store,
            run_id,
            new_run_id=new_run_id,
            from_offset=from_offset,
            from_step=from_step,
            after_step=after_step,
            version=as_version,
        )
    facts = {"run_id": made.run_id, "source": made.source, "from_offset": made.from_offset}
    shell.out.line(
        f"{made.run_id} is a fork of {made.source}, from offset {made.from_offset}; {NEXT}",
        document={**facts, "status": made.state.status, "session": made.state.session},
    )


async def cancel(
    shell: Shell,
    run_id: RunId,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept in the journal.")] = "cancelled",
    now: Annotated[
        bool, typer.Option("--now", help="End it in the same write: its clean-up steps will not run.")
    ] = False,
) -> None:
    """Cancel a run.

    Its current session is fenced; the next worker or call runs its clean-up.
    """
    async with open_runs(shell) as store:
        done = await control.request_cancel(store, run_id, reason=reason, now=now)
    if not done.written and done.status in ENDED - {"cancelled"}:
        raise RunFinished(f"run {run_id} is {done.status}: there is nothing to cancel")
    after = "its clean-up is up to the next worker or call" if done.status == "cancelling" else "no clean-up will run"
    _show_request(shell.out, done, after if done.written else "nothing was to be done")


async def retry(shell: Shell, run_id: RunId) -> None:
    """Open a failed run again.

    Recorded steps stay; the next worker or call tries the rest.
    """
    async with open_runs(shell) as store:
        found = await control.request_retry(store, run_id)
    _show_request(shell.out, found, NEXT)


def _show_request(out: Output, done: control.Requested, what_next: str) -> None:
    out.line(f"{done.run_id} is {done.status}, session {done.session}; {what_next}", document=done)


async def resume(
    shell: Shell,
    run_id: RunId,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The name of the event.")],
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help="The event's value, as JSON.")] = None,
    value_file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A file with the value as JSON; - is standard input.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Deliver once for this key, however often this is called.")
    ] = None,
    early: Annotated[bool, typer.Option("--early", help="Allow a run that does not exist yet.")] = False,
) -> None:
    """Deliver an event to a run.

    Also before the run waits for it: the event is kept until it is asked for.
    """
    given = _value(value, value_file)

    async with open_runs(shell) as store:
        state = await _state_for_mail(store, run_id, event, early=early)
        mail_id = await deliver(store, run_id, event, given, key=key)
    status, pending = state if state is not None else (None, None)
    waiting = status == "suspended" and pending == event
    if shell.out.as_json:
        facts = {"run_id": run_id, "event": event, "mail": mail_id, "status": status, "waiting": waiting}
        shell.out.document(facts)
    elif waiting:
        shell.out.line(f"delivered {event} to {run_id}, which waits for it; {NEXT}")
    elif status is None:
        shell.out.line(f"delivered {event} to {run_id}, which does not exist yet; it is kept until it is asked for")
    else:
        waits = f"waits for {pending}" if pending is not None else f"is {status}"
        shell.out.line(f"delivered {event} to {run_id}, which {waits} now; it is kept until it is asked for")


async def _state_for_mail(store: Client, run_id: str, event: str, *, early: bool) -> tuple[str, str | None] | None:
    """The run's status and what it waits for; None for a run that does not exist, where that is allowed."""
    if early and await read_history(store, run_id) is None:
        return None
    try:
        state = (await control.existing(store, run_id)).state
    except NotFound as error:
        if early:
            raise
        raise NotFound(str(error), remedy="check the id and the store; --early delivers before a run exists") from error
    if state.finished:
        raise RunFinished(f"run {run_id} is {state.status}: it takes no event {event!r}")
    return state.status, state.pending.event if state.pending is not None else None


def _value(text: str | None, path: Path | None) -> Any:
    if text is not None and path is not None:
        raise Invalid("a value was given twice", remedy="give VALUE or --value-file")
    where = "VALUE"
    if path is not None:
        where = f"--value-file {path}"
        try:
            text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{path} cannot be read: {error}") from error
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise Invalid(
            f"{where} is not JSON: {error}", remedy="""quote it for the shell: '{"approved": true}', '"text"', 42"""
        ) from error


async def reindex(shell: Shell) -> None:
    """Derive the index anew from the journals.

    Safe while runs are at work.
    """
    out = shell.out

    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done = count

    async with open_runs(shell) as store:
        checklist = Checklist([Step("reading journals")], lambda: f"{done:,} runs, {store.usage.requests():,} requests")
        async with live(out, checklist):
            checklist.begin(0)
            report = await control.reindex(store, progress)
    facts = {"runs": report.runs, "written": report.written, "removed": report.removed}
    if out.as_json:
        out.document({**facts, "unreadable": report.unreadable})
    else:
        out.line(f"{counted_runs(report.runs)}; {report.written:,} index keys written, {report.removed:,} removed")
        for run_id, reason in report.unreadable.items():
            out.line(f"{run_id} cannot be read: {reason}")
    if report.unreadable:
        raise Corrupt(f"{len(report.unreadable):,} journals cannot be read, the first: {next(iter(report.unreadable))}")


_AT_ONCE = 8


async def delete(
    shell: Shell,
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN_ID]...", help="The runs to delete.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also a run that is not over, or whose payloads forks need (those stay).")
    ] = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="SPAN", help="All runs that ended longer ago than this, such as 30d.")
    ] = None,
    status: Annotated[
        list[str] | None, typer.Option(metavar="STATUS", help="With --older-than: only these; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --older-than: show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --older-than: do not ask.")] = False,
) -> None:
    """Delete runs for good.

    The id of a deleted run is never used again.
    """
    if bool(run_ids) == (older_than is not None):
        raise Invalid("which runs?", remedy="give RUN_IDs, or --older-than SPAN")
    if run_ids:
        if status or dry_run or yes:
            raise Invalid("--status, --dry-run and --yes go with --older-than")
        await _delete_named(shell, run_ids, force=force)
        return
    if force:
        raise Invalid("--force does not go with --older-than", remedy="force the deletion of runs by their ids")
    statuses = check_choice("status of a run that is over", status or [], ENDED) or sorted(ENDED)
    await _delete_old(shell, parse_span(older_than or ""), statuses, dry_run=dry_run, yes=yes)


async def _delete_named(shell: Shell, run_ids: Sequence[str], *, force: bool) -> None:
    async with open_runs(shell) as store:
        outcomes = await _delete_all(shell.out, store, run_ids, force=force)
    _show_deleted(shell.out, outcomes)
    errors = [outcome for outcome in outcomes.values() if isinstance(outcome, HoldfastError)]
    if errors:
        raise errors[0]


async def _delete_old(shell: Shell, age_ns: int, statuses: list[str], *, dry_run: bool, yes: bool) -> None:
    async with open_runs(shell) as store:
        now_ns = store.ambient.clock.wall_ns()
        until = moment(now_ns - age_ns)
        found = [summary async for summary in control.find(store, status=statuses, until=until)]
        if dry_run:
            _show_candidates(shell.out, found, now_ns)
            return
        if found and not yes:
            _ask(shell.out, found)
        outcomes = await _delete_all(shell.out, store, [summary.run_id for summary in found], force=False)
    _show_deleted(shell.out, outcomes)


async def _delete_all(
    out: Output, store: Client, run_ids: Sequence[str], *, force: bool
) -> dict[str, Deleted | HoldfastError]:
    """One outcome per run, in the order of the runs."""

    async def one(run_id: str) -> Deleted | HoldfastError:
        try:
            return await delete_run(store, run_id, force=force)
        except (NotFound, Refused, Conflict, Corrupt, Invalid) as error:
            return error

    outcomes: dict[str, Deleted | HoldfastError] = {}
    checklist = Checklist([Step("deleting")], lambda: f"{len(outcomes):,} of {len(run_ids):,} runs")
    async with live(out, checklist):
        checklist.begin(0)
        wanted = list(dict.fromkeys(run_ids))
        results = aio.stream_bounded(wanted, one, limit=_AT_ONCE)
        async for outcome in results:
            outcomes[wanted[len(outcomes)]] = outcome
    return outcomes


def _show_candidates(out: Output, found: Sequence[RunSummary], now_ns: int) -> None:
    if out.as_json:
        out.document([summary_document(summary) for summary in found])
        return
    if found:
        out.table(COLUMNS, [row(summary, now_ns) for summary in found])
    out.note(f"{counted_runs(len(found))} would be deleted")


def _ask(out: Output, found: Sequence[RunSummary]) -> None:
    if not sys.stdin.isatty():
        raise Refused(
            f"{counted_runs(len(found))} would be deleted, and input is no terminal", remedy="confirm with --yes"
        )
    print(f"Delete {counted_runs(len(found))} for good? [y/N]: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        out.note("nothing was deleted")
        raise typer.Exit(1)


def _show_deleted(out: Output, outcomes: dict[str, Deleted | HoldfastError]) -> None:
    if out.as_json:
        out.document([_deleted_document(run_id, outcome) for run_id, outcome in outcomes.items()])
        return
    for run_id, outcome in outcomes.items():
        if isinstance(outcome, HoldfastError):
            out.line(f"{run_id} was left: {outcome}")
        elif outcome.kept_for:
            out.line(f"{run_id} was deleted, except for payloads that {', '.join(outcome.kept_for)} need")
        else:
            out.line(f"{run_id} was deleted")
    deleted = sum(isinstance(outcome, Deleted) for outcome in outcomes.values())
    out.note(f"{deleted:,} of {counted_runs(len(outcomes))} deleted")


def _deleted_document(run_id: str, outcome: Deleted | HoldfastError) -> dict[str, Any]:
    if isinstance(outcome, HoldfastError):
        return {"run_id": run_id, "deleted": False, "reason": str(outcome)}
    return {"run_id": run_id, "deleted": True, "objects": outcome.removed, "kept_for": list(outcome.kept_for)}
