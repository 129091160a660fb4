"""How runs look: rows and lines for people, documents for programs. Pure."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, get_args

import typer

from holdfast.base.clock import iso, parse_iso
from holdfast.cli.output import clock_time, json_text, span
from holdfast.cli.shell import Shell
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.runs import layout
from holdfast.runs.admin.describe import Description, error_text
from holdfast.runs.errors import explained
from holdfast.runs.journal.entry import Entry
from holdfast.runs.journal.state import FINISHED, Status
from holdfast.runs.journal.summary import RunSummary

COLUMNS = ("run", "status", "workflow", "waits for", "changed", "session", "tags")

_MS = 1_000_000
_CHILD = "child:"
_LONGEST_VALUE = 160
_WAITING = ("suspended", "sleeping", "retrying")


def counted_runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number:,} runs"


def row(summary: RunSummary, now_ns: int) -> tuple[object, ...]:
    tags = ", ".join(summary.tags) + (" ..." if summary.cut else "")
    return (
        summary.run_id,
        summary.status,
        summary.workflow or None,
        waits_for(summary, now_ns),
        f"{span(now_ns - summary.updated_ms * _MS)} ago",
        summary.session,
        tags or None,
    )


def waits_for(summary: RunSummary, now_ns: int) -> str | None:
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
    if summary.status != "suspended":
        return None
    return _event(summary.event)


def _event(event: str | None) -> str:
    if event is None:
        return "an event"
    return f"child run {event.removeprefix(_CHILD)}" if event.startswith(_CHILD) else f"event {event}"


def summary_document(summary: RunSummary) -> dict[str, Any]:
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


def description_document(found: Description) -> dict[str, Any]:
    return asdict(found)


def description_record(found: Description, now_ns: int) -> dict[str, object]:
    """The same for people: what there is to say, and nothing else."""
    started, changed = parse_iso(found.started_at), parse_iso(found.updated_at)
    version = f", version {found.version}" if found.version is not None else ""
    facts: dict[str, object] = {
        "run": found.run_id,
        "status": found.status + (", taken up by the next worker or call" if found.detached else ""),
        "workflow": (found.workflow or "?") + version,
        "waits for": _waits(found, now_ns),
        "session": found.session,
        "generation": found.generation or None,
        "steps": f"{found.steps} recorded, last {found.last_step}" if found.steps else "none recorded",
        "entries": found.entries,
        "started": f"{clock_time(started)} ({span(now_ns - started)} ago)",
        "changed": f"{clock_time(changed)} ({span(now_ns - changed)} ago)",
        "result": shortened(found.result) if found.status == "success" else None,
        "last error": _error(found),
        "blocked": _blocked(found, now_ns),
        "to do": found.blocked.remedy if found.blocked is not None else None,
        "cancelled": found.cancel_reason,
        "metadata": shortened(found.metadata) if found.metadata else None,
        "tags": ", ".join(found.tags) or None,
        "parent": f"{found.parent.get('runId')}, step {found.parent.get('stepId')}" if found.parent else None,
        "children": ", ".join(found.children) or None,
        "fork of": f"{found.source.get('runId')}, offset {found.source.get('fromOffset')}" if found.source else None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _waits(found: Description, now_ns: int) -> str | None:
    if found.status in FINISHED:
        return None
    if found.wake_at is not None:
        wake_ns = parse_iso(found.wake_at)
        when = f"in {span(wake_ns - now_ns)}" if wake_ns > now_ns else "due"
        return f"{'retry' if found.status == 'retrying' else 'timer'} at {clock_time(wake_ns)} ({when})"
    if found.event is None:
        return None
    since = f", since {clock_time(parse_iso(found.waiting_since))}" if found.waiting_since else ""
    data = f" {shortened(found.event_data)}" if found.event_data else ""
    return _event(found.event) + data + since


def _error(found: Description) -> str | None:
    last = found.last_error
    if last is None:
        return None
    return f"{explained(last.type, last.message)} (offset {last.offset}, failures {found.failures})"


def _blocked(found: Description, now_ns: int) -> str | None:
    blocked = found.blocked
    if blocked is None:
        return None
    when = f" ({span(now_ns - parse_iso(blocked.at))} ago)" if blocked.at else ""
    return f"the latest call ended in {explained(blocked.type, blocked.message)}{when}"


def entry_line(entry: Entry) -> str:
    """One entry on one line: where, when, what."""
    where = f"{entry.offset:>5}  {clock_time(entry.timestamp_ns)}  {entry.session:>3}"
    return f"{where}  {entry.type:<8}  {_detail(entry)}".rstrip()


def _detail(entry: Entry) -> str:
    fields = entry.fields
    match entry.type:
        case "start":
            marks = [mark for mark in ("cancelling", "reopen", "detached") if fields.get(mark)]
            return " ".join([str(fields.get("workflow") or ""), *marks]).strip()
        case "step" if "error" in fields:
            return f"{fields.get('stepId')} failed: {_error_text(fields['error'])}"
        case "step":
            return f"{fields.get('stepId')} = {_value(fields, 'result')}"
        case "suspend":
            until = f" until {fields['wakeAt']}" if fields.get("wakeAt") else ""
            return f"{fields.get('event')}{until}"
        case "resume":
            return f"{fields.get('event')} = {_value(fields, 'value')}"
        case "complete":
            return _value(fields, "result")
        case "error":
            again = f", again at {fields['retryAt']}" if fields.get("retryAt") else ""
            return f"{_error_text(fields.get('error'))}{again}"
    return "deleted" if fields.get("deleted") else str(fields.get("reason") or "")


def _value(fields: Mapping[str, Any], name: str) -> str:
    reference = fields.get("payload")
    if isinstance(reference, dict):
        return f"{reference.get('bytes'):,} bytes in {reference.get('key')}"
    return shortened(fields.get(name))


def _error_text(error: object) -> str:
    return explained(*error_text(error))


def shortened(value: object) -> str:
    text = json_text(value, default=str)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


class Stats:
    """Counts over the index."""

    def __init__(self) -> None:
        self.by_status: Counter[str] = Counter()
        self.by_workflow: dict[str, Counter[str]] = {}
        self.oldest_waiting: RunSummary | None = None

    def add(self, summary: RunSummary) -> None:
        self.by_status[summary.status] += 1
        self.by_workflow.setdefault(summary.workflow, Counter())[summary.status] += 1
        oldest = self.oldest_waiting
        if summary.status in _WAITING and (oldest is None or summary.updated_ms < oldest.updated_ms):
            self.oldest_waiting = summary

    @property
    def runs(self) -> int:
        return self.by_status.total()

    def document(self) -> dict[str, Any]:
        oldest = self.oldest_waiting
        return {
            "runs": self.runs,
            "by_status": dict(self.by_status.most_common()),
            "by_workflow": {name: dict(counts.most_common()) for name, counts in sorted(self.by_workflow.items())},
            "oldest_waiting": summary_document(oldest) if oldest is not None else None,
        }


STATUSES = tuple(status for status in get_args(Status) if status not in ("new", "deleted"))
"""What a run can be and still be found."""

ENDED: frozenset[str] = FINISHED - {"deleted"}

RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run's id.")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def open_runs(shell: Shell) -> AsyncIterator[Client]:
    """The store of ``--store``, with segments and payloads cached on disk where the settings ask for it."""
    settings = shell.settings
    async with open_store(shell.existing_store(), settings=settings, immutable=layout.immutable) as store:
        yield store


def moment(time_ns: int | None) -> datetime | None:
    return None if time_ns is None else _EPOCH + timedelta(microseconds=time_ns // 1000)
