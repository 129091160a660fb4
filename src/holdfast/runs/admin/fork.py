"""Fork: a new run that begins with the lines of another, up to a point. The source is not touched.

Lines and large values are copied, so a fork needs nothing of its source, which may be deleted. The fork's ``start``
names the source, carries the next session number, and is ``detached``: no process works on it, so a worker, or a call,
takes it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.base import aio
from holdfast.base.errors import Conflict, Corrupt, Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.admin.control import existing
from holdfast.runs.journal.entry import STEP, Entry, format_line
from holdfast.runs.journal.history import History
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.payload import get_payload, put_payload
from holdfast.runs.journal.state import RunState, fold

_PARALLEL = 8


@dataclass(frozen=True, slots=True)
class Forked:
    run_id: str
    source: str
    from_offset: int
    state: RunState


async def fork(
    store: Store,
    source: str,
    *,
    new_run_id: str | None = None,
    from_offset: int | None = None,
    from_step: str | None = None,
    after_step: str | None = None,
    version: str | None = None,
) -> Forked:
    """A new run with the source's entries before ``from_offset``, before ``from_step`` (which runs again), or up to and
    including ``after_step``. The source does not change. A worker or a call continues the fork.

    ``version`` is the version of the workflow that will continue it, if it is not the source's.
    """
    ambient = ambient_of(store)
    index = RunIndex(store, ambient)
    history = await existing(store, source)
    cut = cut_at(history.entries, from_offset=from_offset, from_step=from_step, after_step=after_step)
    fork_id = layout.check_run_id(new_run_id) if new_run_id is not None else ambient.ids.unique()
    try:
        base = await _copy(store, ambient, history, cut, fork_id)
    except Corrupt:
        await existing(store, source)  # if it was deleted meanwhile, that is why a payload is missing
        raise
    start: dict[str, Any] = {"source": {"runId": source, "fromOffset": cut}, "detached": True}
    if base.state.finished:
        start["reopen"] = True
    if version is not None:
        start["version"] = version
    try:
        journal = await Journal.begin(store, ambient, fork_id, base, start, announce=index.note)
    except Conflict as error:
        raise Refused(f"run {fork_id} exists already", remedy="choose another id for the fork") from error
    await index.try_note(fork_id, journal.state)
    return Forked(fork_id, source, cut, journal.state)


def cut_at(
    entries: Sequence[Entry],
    *,
    from_offset: int | None = None,
    from_step: str | None = None,
    after_step: str | None = None,
) -> int:
    """How many lines the fork keeps."""
    if sum(choice is not None for choice in (from_offset, from_step, after_step)) != 1:
        raise Invalid(
            "a fork needs one point to begin at",
            remedy="give one of from_step, after_step and from_offset (--from-step, --after-step, --from-offset)",
        )
    if from_offset is not None:
        if not 1 <= from_offset <= len(entries):
            raise Invalid(
                f"a fork cannot begin at offset {from_offset}",
                remedy=f"give 1 (all but the first start runs again) to {len(entries)} (everything is kept)",
            )
        return from_offset
    wanted = from_step if from_step is not None else after_step
    for entry in entries:
        if entry.type == STEP and entry.fields.get("stepId") == wanted:
            return entry.offset + (after_step is not None)
    raise NotFound(f"no step {wanted!r} is recorded", remedy="look at the journal for the ids of its steps")


async def _copy(store: Store, ambient: Ambient, history: History, cut: int, fork_id: str) -> History:
    """The first lines as a history of the fork's own, with large values in payloads of its own. The lines are in its
    journal object until its first append seals them.
    """
    entries, lines = history.entries[:cut], history.lines[:cut]

    async def copy_payload(entry: Entry) -> Entry:
        reference = entry.fields["payload"]
        copied = await put_payload(store, ambient, fork_id, await get_payload(store, reference))
        return replace(entry, fields={**entry.fields, "payload": {**reference, **copied}})

    large = [entry for entry in entries if isinstance(entry.fields.get("payload"), dict)]
    for entry in await aio.map_bounded(large, copy_payload, limit=_PARALLEL):
        entries[entry.offset], lines[entry.offset] = entry, format_line(entry)
    return History(fork_id, entries, lines, state=fold(entries, key=layout.journal_key(fork_id)))
