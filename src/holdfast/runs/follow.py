"""Following a run: its entries, as they are recorded, from outside.

A look at a run that has not changed is one conditional GET. Entries come in order and once: lines that were sealed
between two looks are read from their segments, and what was recorded before the run continued as new from the journal
that it retired. The end of the run is the end of the entries.
"""

import asyncio
from collections.abc import AsyncIterator

from holdfast.base.errors import NotFound
from holdfast.objects.store import NotModified, Object, Store, Version
from holdfast.runs import layout
from holdfast.runs.entry import Entry
from holdfast.runs.generations import earlier
from holdfast.runs.history import History, parse_face, read_history
from holdfast.runs.run import advance
from holdfast.runs.workflow import ambient_of


async def follow(store: Store, run_id: str, *, last: int | None = None, poll_ms: int = 1_000) -> AsyncIterator[Entry]:
    """The entries of a run: those recorded so far (only the ``last`` so many, if that is given), then new ones."""
    ambient_of(store)
    history = await read_history(store, run_id)
    if history is None:
        raise NotFound(f"run {run_id} does not exist", remedy="check the id and the store")
    skipped = 0 if last is None else max(0, len(history.entries) - last)
    for entry in history.entries[skipped:]:
        yield entry
    while not history.state.finished:
        await asyncio.sleep(poll_ms / 1000)
        found = await _changed(store, run_id, history.version)
        if found is None:
            continue
        now = await _extended(store, history, found)
        for entry in await _between(store, history, now):
            yield entry
        history = now


async def _changed(store: Store, run_id: str, version: Version | None) -> Object | None:
    key = layout.journal_key(run_id)
    found = await store.get(key) if version is None else await store.get_unless(key, version)
    return None if isinstance(found, NotModified) else found


async def _extended(store: Store, before: History, found: Object) -> History:
    """The history in ``found``, with as little reading as what we know of it allows."""
    face = parse_face(found)
    known = len(before.lines)
    same = face.generation == before.state.generation
    first = face.refs[-1].end if face.refs else 0
    if not same or first > known:
        lines = {ref: before.lines[ref.first : ref.end] for ref in face.refs if same and ref.end <= known}
        history = await read_history(store, before.run_id, found=found, known=lines)
        if history is None:
            raise NotFound(f"run {before.run_id} is gone")
        return history
    fresh = face.entries[known - first :]
    state = before.state
    for entry in fresh:
        state = advance(state, entry, key=found.key)
    return History(
        before.run_id,
        before.entries + fresh,
        before.lines + face.lines[known - first :],
        face.refs,
        state,
        found.version,
    )


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
