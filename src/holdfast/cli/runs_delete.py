"""``holdfast runs delete``: runs by their ids, or all that ended long ago.

A run that may not be deleted does not keep the others from it: every one has its line, and where runs were named the
first such reason decides the exit code.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.base import aio
from holdfast.base.errors import Conflict, Corrupt, HoldfastError, Invalid, NotFound, Refused
from holdfast.cli.output import Output
from holdfast.cli.progress import Checklist, Step, live
from holdfast.cli.runs_shared import ENDED, check_choice, moment, open_runs
from holdfast.cli.runs_view import COLUMNS, counted_runs, row, summary_document
from holdfast.cli.shell import Shell
from holdfast.cli.times import parse_span
from holdfast.objects.client import Client
from holdfast.runs.admin import control
from holdfast.runs.admin.delete import Deleted
from holdfast.runs.admin.delete import delete as delete_run
from holdfast.runs.journal.summary import RunSummary

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
        raise Refused(f"{counted_runs(len(found))} would be deleted, and nobody can be asked", remedy="say --yes")
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
