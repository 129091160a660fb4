"""How the pipeline is shown: a line that lives while jobs work, and tables of runs, plans and problems."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.base.clock import iso
from holdfast.cli.output import Output
from holdfast.cli.progress import live, status_line

if TYPE_CHECKING:
    from holdfast.objects.client import Client
    from holdfast.pipeline import Ran
    from holdfast.pipeline.drive import Preview


class Watch:
    """Which step a job is at. On a terminal it is drawn; elsewhere ``opening`` is printed, that Spark starts, and for
    whom a job waits.
    """

    def __init__(self, out: Output, opening: str | None = None) -> None:
        self._out = out
        self._opening = opening
        self._line = "looking for what is due"
        self._drawn = False

    def say(self, step: str, done: int, total: int) -> None:
        self._line = f"{step}  {done}/{total} tasks" if total else step
        if not total and not self._drawn:
            self._out.note(step)

    @asynccontextmanager
    async def shown(self) -> "AsyncIterator[Watch]":
        async with live(self._out, lambda: status_line(self._line)) as self._drawn:
            if self._opening is not None and not self._drawn:
                self._out.note(self._opening)
            yield self


RUN_COLUMNS = ("job", "run", "status", "hours", "batches", "records", "units", "rows", "read_bytes", "problems")


def run_rows(ended: "Sequence[Ran]") -> tuple[Sequence[str], list[Sequence[object]]]:
    return RUN_COLUMNS, [_row(each.job, each.run_id, each.status, each.summary) for each in ended]


def _row(job: str, run_id: str, status: str, summary: dict[str, Any]) -> Sequence[object]:
    return (
        job,
        run_id,
        status,
        len(summary.get("hours", ())),
        summary.get("batches", summary.get("inputs")),
        summary.get("records"),
        summary.get("units"),
        summary.get("rows"),
        summary.get("read_bytes"),
        summary.get("problems", summary.get("unreadable")),
    )


def plan_rows(found: "Sequence[Preview]") -> tuple[Sequence[str], list[Sequence[object]]]:
    columns = ("job", "hour", "generation", "units", "to_make", "inputs")
    return columns, [(each.job, each.hour, each.generation, each.units, each.to_make, each.inputs) for each in found]


async def show_status(out: Output, store: "Client") -> None:
    from holdfast.pipeline.status import listed_problems, status  # noqa: PLC0415  # loads Arrow, which takes a while

    found = await status(store, store.ambient)
    problems = await listed_problems(store)
    document = found.document()
    if out.as_json:
        out.document({**document, "listed_problems": [each.document() for each in problems]})
        return
    due = {kind: _hours(hours) for kind, hours in found.due.items()}
    out.record(
        {
            "reconciled through": document["through"],
            "lag": None if found.lag_s is None else f"{found.lag_s:,.0f} s",
            "last full scan": document["full_scan"],
            **{f"{kind} due": hours for kind, hours in due.items()},
            **{f"at work on {job}": owner for job, owner in found.drivers.items()},
            "problems": sum(found.problems.values()),
        }
    )
    if problems:
        rows = [(each.problem.finding, each.first_seen, each.problem.key, each.problem.message) for each in problems]
        out.table(("problem", "first_seen", "key", "message"), rows)


async def show_history(out: Output, store: "Client", job: str | None, limit: int) -> None:
    from holdfast.pipeline import history  # noqa: PLC0415  # loads Arrow, which takes a while

    found = await history(store, limit=limit, job=job)
    if out.as_json:
        out.document(
            [
                {
                    "job": summary.workflow.partition(".")[2],
                    "run_id": summary.run_id,
                    "status": summary.status,
                    "started_at": iso(summary.started_ms * 1_000_000),
                    "updated_at": iso(summary.updated_ms * 1_000_000),
                    "sessions": summary.session,
                    **result,
                }
                for summary, result in found
            ]
        )
        return
    rows = [
        (
            *_row(summary.workflow.partition(".")[2], summary.run_id, summary.status, result),
            iso(summary.updated_ms * 1_000_000),
        )
        for summary, result in found
    ]
    out.table((*RUN_COLUMNS, "ended"), rows)
    if not rows:
        out.note("no job has run here")


def _hours(hours: Sequence[str]) -> str:
    if not hours:
        return "nothing"
    return hours[0] if len(hours) == 1 else f"{len(hours)} hours, {hours[0]} to {hours[-1]}"
