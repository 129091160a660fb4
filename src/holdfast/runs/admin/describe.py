"""A run described for people and programs, from one read of its journal.

Also an entry as a plain document, with its large values in place of the references to them where that is asked for.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.client import ambient_of
from holdfast.objects.store import NotModified, Object, Store
from holdfast.runs import layout
from holdfast.runs.admin.control import existing
from holdfast.runs.errors import no_run, recorded_error
from holdfast.runs.journal.entry import CANCEL, COMPLETE, ERROR, RESUME, START, STEP, SUSPEND, Entry
from holdfast.runs.journal.history import History, earlier, parse_journal, read_history
from holdfast.runs.journal.index import Blocked, find_mark
from holdfast.runs.journal.payload import get_payload
from holdfast.runs.journal.state import RunState
from holdfast.runs.layout import CHILD_EVENT
from holdfast.runs.values import TAG

_VALUE_FIELDS = {START: "input", STEP: "result", RESUME: "value", COMPLETE: "result", CANCEL: "result"}


@dataclass(frozen=True, slots=True)
class Failure:
    """An ``error`` entry: why a pass over the workflow failed."""

    type: str
    message: str
    offset: int
    at: str


@dataclass(frozen=True, slots=True)
class Description:
    """Everything about a run but its entries. Times are as in the journal."""

    run_id: str
    status: str
    workflow: str
    version: str | None
    session: int
    generation: int
    entries: int
    steps: int
    """Recorded, in this generation."""
    last_step: str | None
    started_at: str
    updated_at: str
    event: str | None = None
    """What it waits for."""
    event_data: Mapping[str, Any] | None = None
    waiting_since: str | None = None
    wake_at: str | None = None
    """When it wants to be called again: a timer, or a retry."""
    failures: int = 0
    last_error: Failure | None = None
    cancel_reason: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    parent: Mapping[str, Any] | None = None
    children: tuple[str, ...] = ()
    source: Mapping[str, Any] | None = None
    """Of a fork: ``runId`` and ``fromOffset``."""
    detached: bool = False
    """No process works on it: a worker or the next call continues it."""
    result: Any = None
    """Of a run that succeeded, in its JSON form; a large one is the reference to its payload."""
    blocked: Blocked | None = None
    """Why the latest call could not continue, if nothing has happened since and the same call would end so again."""


async def describe(store: Store, run_id: str) -> Description:
    """The state of a run, and how it got there. ``NotFound`` if there is no such run."""
    history = await existing(store, run_id)
    return replace(description(history), blocked=await find_mark(store, run_id, history.state))


def description(history: History) -> Description:
    state, entries = history.state, history.entries
    steps = [entry for entry in entries if entry.type == STEP]
    parent = state.start.get("parent")
    pending = state.pending
    data = pending.entry.fields.get("data") if pending is not None else None
    return Description(
        run_id=history.run_id,
        status=state.status,
        workflow=state.workflow,
        version=state.version,
        session=state.session,
        generation=state.generation,
        entries=len(entries),
        steps=len(steps),
        last_step=str(steps[-1].fields.get("stepId")) if steps else None,
        started_at=state.started_at,
        updated_at=state.updated_at,
        event=pending.event if pending is not None else None,
        event_data=data if isinstance(data, dict) else None,
        waiting_since=pending.entry.timestamp if pending is not None else None,
        wake_at=iso(state.wake_at_ns) if state.wake_at_ns is not None else None,
        failures=state.failures,
        last_error=_last_error(entries),
        cancel_reason=state.cancel_reason,
        metadata=dict(state.metadata),
        tags=tuple(state.tags),
        parent=parent if isinstance(parent, dict) else None,
        children=_children(entries),
        source=state.source,
        detached=state.detached and not state.finished,
        result=_result(state),
    )


def as_document(entry: Entry) -> dict[str, Any]:
    """The entry as it is stored, with what every entry has in front."""
    return {
        "offset": entry.offset,
        "type": entry.type,
        "session": entry.session,
        "timestamp": entry.timestamp,
        **entry.fields,
    }


async def with_payload(store: Store, entry: Entry) -> dict[str, Any]:
    """The entry with its large value in place, in the form that a small one has."""
    document = as_document(entry)
    reference = entry.fields.get("payload")
    name = _VALUE_FIELDS.get(entry.type)
    if not isinstance(reference, dict) or name is None:
        return document
    body = await get_payload(store, reference)
    if reference.get("encoding") == "bytes":
        value: Any = {TAG: "bytes", "value": base64.b64encode(body).decode()}
    else:
        value = codec.decode(body, key=str(reference.get("key"))).get("value")
    del document["payload"]
    return {**document, name: value}


def _last_error(entries: Iterable[Entry]) -> Failure | None:
    last = None
    for entry in entries:
        if entry.type == ERROR:
            last = entry
    if last is None:
        return None
    return Failure(*recorded_error(last.fields.get("error")), last.offset, last.timestamp)


def _children(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Child runs in the order of their first entries in the journal."""
    found: dict[str, None] = {}
    for entry in entries:
        event = entry.fields.get("event")
        if entry.type == STEP and "child" in entry.fields:
            found[str(entry.fields["child"])] = None
        elif entry.type == SUSPEND and isinstance(event, str) and event.startswith(CHILD_EVENT):
            found[event.removeprefix(CHILD_EVENT)] = None
    return tuple(found)


def _result(state: RunState) -> Any:
    if state.status != "success" or state.outcome is None:
        return None
    fields = state.outcome.fields
    return fields["payload"] if "payload" in fields else fields.get("result")


async def follow(store: Store, run_id: str, *, last: int | None = None, poll_ms: int = 1_000) -> AsyncIterator[Entry]:
    """The entries of a run: those recorded so far (only the ``last`` so many, if that is given), then new ones."""
    ambient_of(store)
    history = await read_history(store, run_id)
    if history is None:
        raise no_run(run_id)
    skipped = 0 if last is None else max(0, len(history.entries) - last)
    for entry in history.entries[skipped:]:
        yield entry
    while not history.state.finished:
        await asyncio.sleep(poll_ms / 1000)
        if history.version is None:
            raise Invalid(f"run {run_id} was not read from the store")
        found = await store.get_unless(layout.journal_key(run_id), history.version)
        if isinstance(found, NotModified):
            continue
        now = await _read_again(store, history, found)
        for entry in await _between(store, history, now):
            yield entry
        history = now


async def _read_again(store: Store, before: History, found: Object) -> History:
    """The history in ``found``; segments of lines that ``before`` has are not read."""
    parsed = parse_journal(found)
    same = parsed.generation == before.state.generation
    known = {ref: before.lines[ref.first : ref.end] for ref in parsed.refs if same and ref.end <= len(before.lines)}
    history = await read_history(store, before.run_id, found=found, known=known)
    if history is None:
        raise NotFound(f"run {before.run_id} is gone")
    return history


async def _between(store: Store, before: History, now: History) -> list[Entry]:
    """What was recorded after ``before`` and up to ``now``, generations in between included."""
    if now.state.generation == before.state.generation:
        return now.entries[len(before.entries) :]
    parts = [now.entries]
    async for retired in earlier(store, now):
        if retired.state.generation <= before.state.generation:
            parts.append(retired.entries[len(before.entries) :])
            break
        parts.append(retired.entries)
    return [entry for part in reversed(parts) for entry in part]
