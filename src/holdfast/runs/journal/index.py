"""The index of runs: derived, one key per run, with what is worth knowing in the key itself.

Listing thousands of runs is a few LIST pages and nothing else. The first key of a run is written before its journal
(see ``Journal.begin``), later ones after a transition was recorded, never on the path of a step. The index decides
nothing: a key that is missing or out of date costs a look, and ``rebuild`` derives all of it from the journals, and the
nudges from the mail that runs wait for. Two keys for one run: the higher session and offset counts.

A nudge says that mail was delivered to a run. It is removed when the journal shows that the mail was consumed, or when
the run has ended; not when a worker has only read the run, because the mail may have come after that read.

A *blocked* mark says why the latest call of a run ended in an error that the same call would end in again (code and
journal disagree, another version, damage). Such a call adds nothing to the journal, so corrected code can continue.
The mark decides nothing: it is shown until the run's next entry, and the next change of the run's key removes it.

Cost: ``note`` is one PUT, and one DELETE of the key before; one LIST where this instance does not know the key before.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.base import aio, telemetry
from holdfast.base.clock import iso
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.base.record import ControlRecord
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.mailbox import taken
from holdfast.runs.journal.state import FINISHED, RunState
from holdfast.runs.journal.summary import (
    Block,
    Nudge,
    RunSummary,
    block_key,
    day_folder,
    day_of,
    day_of_end,
    done_folder,
    index_key,
    nudge_key,
    open_folder,
    read_key,
    summarise,
)
from holdfast.runs.layout import CHILD_EVENT

__all__ = ["Rebuilt", "RunIndex", "RunSummary"]

CREATION_MS = 3_600_000
"""How long a key in the index may wait for its run's journal before it is removed. Creating a run takes two requests; a
process that is stopped between them for longer leaves, if it is also killed after the second one, a run that no list
shows until it is called again or ``rebuild`` finds it."""

log = telemetry.logger("runs")

_MS = 1_000_000
_READS = 16


@dataclass(slots=True)
class Mark:
    """All keys of one run in the index, parsed."""

    summary: RunSummary | None = None
    """The one that counts."""
    nudges: list[Nudge] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    blocks: list[Block] = field(default_factory=list)

    def add(self, key: str, said: RunSummary | Nudge | Block) -> None:
        self.keys.append(key)
        if isinstance(said, Nudge):
            self.nudges.append(said)
        elif isinstance(said, Block):
            self.blocks.append(said)
        elif self.summary is None or said.rank > self.summary.rank:
            self.summary = said

    def seen(self) -> RunSummary | None:
        """The summary, with the sign that the latest call could not continue, if it was the latest."""
        summary = self.summary
        latest = max(self.blocks, key=lambda block: block.rank, default=None)
        if summary is None or summary.finished or latest is None or latest.rank < summary.rank:
            return summary
        return replace(summary, blocked=latest.error)


@dataclass(slots=True)
class Rebuilt:
    """What ``rebuild`` found and repaired."""

    runs: int = 0
    written: int = 0
    removed: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    """Runs whose journals are damaged, and how. Their keys are left as they are."""


class RunIndex:
    def __init__(self, store: Store, ambient: Ambient | None = None) -> None:
        self._store = store
        self._ambient = ambient if ambient is not None else Ambient.system()
        self._noted: dict[str, str] = {}
        """The key that this instance wrote last for a run."""
        self._handed_out: dict[str, tuple[int, int]] = {}
        """What ``due`` gave last time: what it would give again unchanged is looked at first."""

    async def note(self, run_id: str, state: RunState, *, before: RunState | None = None) -> None:
        """Record the state of a run, also before its journal is created. ``before`` is the state of a history
        that has been replaced, such as a deleted run's.
        """
        summary = summarise(run_id, state)
        key = index_key(summary)
        known = self._noted.get(run_id)
        if known == key:
            return
        stale: set[str] = set() if known is None else {known}
        alone = known is not None or state.session == 1
        if before is not None or state.asked or not alone:
            found = await self._mark(open_folder(run_id))
            if found.summary is not None and found.summary.rank > summary.rank:
                return  # a later state is in the index already
            stale |= {old for old in found.keys if _stale(old, summary, state.mails)}
        ends = [] if known is not None else [*state.reopened[-1:], *_end_of(before)]
        for day in sorted({day_of_end(end) for end in ends}):
            stale |= set((await self._mark(done_folder(day, run_id))).keys)
        await self._write(run_id, key, state, stale)

    async def try_note(self, run_id: str, state: RunState) -> None:
        """``note``, but a failure is logged: the journal is written, and ``rebuild`` repairs the index."""
        try:
            await self.note(run_id, state)
        except HoldfastError as error:
            log.warning("run %s: the index was not updated (%s); holdfast runs reindex repairs it", run_id, error)

    async def withdraw(self, run_id: str, state: RunState) -> None:
        """Remove the key of a run that another caller has created meanwhile; ``state`` is that of its run."""
        key = self._noted.pop(run_id, None)
        said = read_key(key) if key is not None else None
        if key is None or said is None or not isinstance(said[1], RunSummary):
            return
        if said[1].started_ms != summarise(run_id, state).started_ms:  # otherwise it may be the other caller's key
            await self._store.delete_many([key])

    async def nudge(self, run_id: str, mail_id: str, event: str | None = None) -> None:
        """Say that mail has been delivered, so that a run that waits for it becomes due. After the mail is there."""
        await self._store.put(nudge_key(layout.check_run_id(run_id), Nudge(mail_id, event)), b"")

    async def list(
        self,
        *,
        status: str | Collection[str] | None = None,
        workflow: str | None = None,
        tag: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[RunSummary]:
        """Runs, the latest change of status first, from the keys alone.

        A journal is read only where a workflow or tag is asked for and the key had no room for it.
        """
        statuses = {status} if isinstance(status, str) else set(status) if status is not None else None
        given = 0
        async for summary in self._newest_first(statuses, since_ns, until_ns):
            if limit is not None and given >= limit:
                return
            if statuses is not None and summary.status not in statuses:
                continue
            if not _within(summary.updated_ms, since_ns, until_ns):
                continue
            if not _matches(summary, workflow, tag) and not (
                summary.cut and _matches(await self._read(summary.run_id), workflow, tag)
            ):
                continue
            given += 1
            yield summary

    async def due(self, now_ns: int | None = None, *, stale_after_ms: int) -> AsyncIterator[RunSummary]:
        """Runs that want to be called now: timers and retries that have come, waits that have been answered, detached
        sessions, and runs whose journal has not changed for ``stale_after_ms``.
        """
        now_ms = (now_ns if now_ns is not None else self._ambient.clock.wall_ns()) // _MS
        marks = {run_id: mark async for run_id, mark in self._marks(layout.INDEX_OPEN) if mark.summary is not None}
        before, self._handed_out = self._handed_out, {}
        for run_id, mark in marks.items():
            summary = mark.summary
            if summary is not None and (summary.cut or before.get(run_id) == summary.rank):
                summary = await self._looked_at(run_id, mark)
            if summary is None or summary.finished:
                continue
            if _is_due(summary, mark.nudges, now_ms, marks) or await self._is_stale(summary, now_ms, stale_after_ms):
                self._handed_out[run_id] = summary.rank
                yield summary

    async def rebuild(self) -> Rebuilt:
        """Derive the index from the journals. Safe beside sessions."""
        report = Rebuilt()
        marks: dict[str, Mark] = {}
        for prefix in (layout.INDEX_OPEN, layout.INDEX_DONE):
            async for run_id, mark in self._marks(prefix):
                whole = marks.setdefault(run_id, Mark())
                whole.keys += mark.keys
                whole.nudges += mark.nudges
                whole.summary = mark.summary or whole.summary
        async for page in self._store.list(layout.ROOT, delimiter=True):
            run_ids = [layout.run_of_folder(folder) for folder in page.folders]
            async for run_id, found, nudges in aio.stream_bounded(run_ids, self._examine, limit=_READS):
                await self._mend(run_id, found, nudges, marks.pop(run_id, Mark()), report)
        now_ms = self._ambient.clock.wall_ns() // _MS
        for mark in marks.values():  # runs that do not exist, unless they are being created now
            if mark.summary is None or _was_given_up(mark.summary, now_ms):
                await self._remove(mark.keys, report)
        return report

    # --- writing ---

    async def _write(self, run_id: str, key: str, state: RunState, stale: set[str]) -> None:
        """The new key first: a run that is in the index twice does less harm than one that is missing."""
        if state.status != "deleted":
            await self._store.put(key, b"")
        if stale - {key}:
            await self._store.delete_many(sorted(stale - {key}))
        if state.finished:
            self._noted.pop(run_id, None)
        else:
            self._noted[run_id] = key

    async def _looked_at(self, run_id: str, mark: Mark) -> RunSummary | None:
        """The run as its journal has it; a key in the index that differs is replaced."""
        history = await read_history(self._store, run_id)
        if history is None:
            await self._forget(mark.summary, self._ambient.clock.wall_ns() // _MS)
            return None
        summary = summarise(run_id, history.state)
        stale = {key for key in mark.keys if _stale(key, summary, history.state.mails)}
        if stale or mark.summary is None or mark.summary.rank != summary.rank:
            await self._write(run_id, index_key(summary), history.state, stale)
        return summary

    async def _examine(self, run_id: str) -> tuple[str, History | Corrupt | None, Sequence[str]]:
        try:
            history = await read_history(self._store, run_id)
        except Corrupt as damage:
            return run_id, damage, ()
        return run_id, history, () if history is None else await self._unanswered(history)

    async def _unanswered(self, history: History) -> Sequence[str]:
        """The nudges that a run must have: a process may have died between delivering mail and writing the nudge."""
        pending = history.state.pending
        if history.state.status != "suspended" or pending is None or pending.event.startswith(CHILD_EVENT):
            return []
        consumed, run_id = taken(history), history.run_id
        mails = [layout.id_of(key) async for key in self._store.keys(layout.mail_folder(run_id, pending.event))]
        return [nudge_key(run_id, Nudge(mail, pending.event)) for mail in mails if mail not in consumed]

    async def _mend(
        self, run_id: str, found: History | Corrupt | None, nudges: Sequence[str], mark: Mark, report: Rebuilt
    ) -> None:
        if isinstance(found, Corrupt):
            report.unreadable[run_id] = str(found)
            return
        if found is None:  # mail may come before its run, so only the key of the run goes
            if mark.summary is not None and _was_given_up(mark.summary, self._ambient.clock.wall_ns() // _MS):
                await self._remove([index_key(mark.summary)], report)
            return
        report.runs += 1
        summary = summarise(run_id, found.state)
        key = index_key(summary)
        for wanted in (*([key] if found.state.status != "deleted" else []), *nudges):
            if wanted not in mark.keys:
                await self._store.put(wanted, b"")
                report.written += 1
        consumed = taken(found)
        await self._remove([old for old in mark.keys if old != key and _stale(old, summary, consumed)], report)

    async def _remove(self, keys: Sequence[str], report: Rebuilt) -> None:
        if keys:
            await self._store.delete_many(keys)
            report.removed += len(keys)

    # --- reading ---

    async def _newest_first(
        self, statuses: set[str] | None, since_ns: int | None, until_ns: int | None
    ) -> AsyncIterator[RunSummary]:
        """Every run once. With the newest first, the key of a run's end comes before the keys that it made stale."""
        live: dict[str, RunSummary] = {}
        if statuses is None or statuses - FINISHED:
            async for run_id, mark in self._marks(layout.INDEX_OPEN):
                if (seen := mark.seen()) is not None:
                    live[run_id] = seen
        waiting = sorted(live.values(), key=_newest)
        if statuses is None or statuses & FINISHED:
            for day in await self._days(since_ns, until_ns):
                ended = [mark.summary async for _, mark in self._marks(day_folder(day)) if mark.summary is not None]
                part = [summary for summary in waiting if day_of(summary.updated_ms) >= day]
                waiting = waiting[len(part) :]
                for summary in sorted([*ended, *part], key=_newest):
                    other = live.get(summary.run_id)
                    if summary.finished and (other is None or other.rank < summary.rank):
                        live.pop(summary.run_id, None)
                        yield summary
                    elif other is summary:
                        yield summary
        for summary in waiting:
            if summary.run_id in live:
                yield summary

    async def _days(self, since_ns: int | None, until_ns: int | None) -> Sequence[str]:
        """The days on which runs ended, the latest first."""
        first = day_of(since_ns // _MS) if since_ns is not None else ""
        last = day_of(until_ns // _MS) if until_ns is not None else "~"
        pages = [page async for page in self._store.list(layout.INDEX_DONE, delimiter=True)]
        days = [folder.removeprefix(layout.INDEX_DONE).rstrip("/") for page in pages for folder in page.folders]
        return sorted((day for day in days if first <= day <= last), reverse=True)

    async def _marks(self, prefix: str) -> AsyncIterator[tuple[str, Mark]]:
        """What the keys under ``prefix`` say, run by run."""
        current, mark = "", Mark()
        async for key in self._store.keys(prefix):
            said = read_key(key)
            if said is None:
                continue
            if said[0] != current:
                if mark.keys:
                    yield current, mark
                current, mark = said[0], Mark()
            mark.add(key, said[1])
        if mark.keys:
            yield current, mark

    async def _mark(self, folder: str) -> Mark:
        return await anext((mark async for _, mark in self._marks(folder)), Mark())

    async def _read(self, run_id: str) -> RunSummary | None:
        history = await read_history(self._store, run_id)
        return summarise(run_id, history.state) if history is not None else None

    async def _forget(self, summary: RunSummary | None, now_ms: int) -> None:
        """Remove the key of a run whose creation was given up: it has no journal."""
        if summary is not None and _was_given_up(summary, now_ms):
            await self._store.delete_many([index_key(summary)])

    async def _is_stale(self, summary: RunSummary, now_ms: int, stale_after_ms: int) -> bool:
        """Whether no process seems to work on the run. Steps are not in the index, so the journal's age decides."""
        before_ms = now_ms - stale_after_ms
        if summary.status not in ("open", "cancelling") or summary.updated_ms > before_ms:
            return False
        try:
            found = await self._store.head(layout.journal_key(summary.run_id))
        except NotFound:
            await self._forget(summary, now_ms)
            return False
        return found.modified_ns // _MS <= before_ms


def _was_given_up(summary: RunSummary, now_ms: int) -> bool:
    """Of a run without a journal: whether its creation must have ended, because it began long ago."""
    return summary.updated_ms < now_ms - CREATION_MS


def _is_due(summary: RunSummary, nudges: Iterable[Nudge], now_ms: int, live: Collection[str]) -> bool:
    if summary.detached or (summary.wake_ms is not None and summary.wake_ms <= now_ms):
        return True
    if summary.status != "suspended":
        return False
    if summary.event is not None and summary.event.startswith(CHILD_EVENT):
        return summary.event.removeprefix(CHILD_EVENT) not in live
    return any(nudge.event in (None, summary.event) for nudge in nudges)


def _stale(key: str, summary: RunSummary, consumed: Collection[str]) -> bool:
    """Whether ``summary`` makes this key of the same run superfluous."""
    said = read_key(key)
    if said is None:
        return True
    if isinstance(said[1], Nudge):
        return summary.finished or said[1].mail_id in consumed
    if isinstance(said[1], Block):
        return summary.finished or said[1].rank < summary.rank
    return said[1].rank < summary.rank or (said[1].rank == summary.rank and key != index_key(summary))


def _end_of(state: RunState | None) -> tuple[str, ...]:
    return (state.outcome.timestamp,) if state is not None and state.finished and state.outcome is not None else ()


def _within(time_ms: int, since_ns: int | None, until_ns: int | None) -> bool:
    time_ns = time_ms * _MS
    return (since_ns is None or time_ns >= since_ns) and (until_ns is None or time_ns <= until_ns)


def _matches(summary: RunSummary | None, workflow: str | None, tag: str | None) -> bool:
    if summary is None or (workflow is not None and summary.workflow != workflow):
        return False
    return tag is None or summary.has_tag(tag)


def _newest(summary: RunSummary) -> tuple[int, str]:
    return -summary.updated_ms, summary.run_id


BLOCKING = (Invalid, Incompatible, Corrupt)
"""Errors of a session for which the run is shown as blocked: the same call would end in them again."""


@dataclass(frozen=True)
class Blocked(ControlRecord):
    """Why the latest call could not continue, and what to do about it."""

    FORMAT = "holdfast.blocked"
    WHAT = "a mark of a blocked run"

    type: str
    message: str = ""
    remedy: str | None = None
    at: str = ""


async def leave_mark(store: Store, ambient: Ambient, run_id: str, state: RunState, error: HoldfastError) -> None:
    """One PUT. The same error again overwrites its own mark."""
    kind = type(error).__name__
    mark = Blocked(kind, str(error), error.remedy, iso(ambient.clock.wall_ns()))
    key = block_key(run_id, Block(state.session, state.next_offset, kind))
    await store.put(key, mark.encode(ambient.ids.write_id()))


async def find_mark(store: Store, run_id: str, state: RunState) -> Blocked | None:
    """The mark of the latest call, if nothing has happened since. One LIST, and one GET where there is one."""
    if state.finished:
        return None
    latest: tuple[Block, str] | None = None
    async for key in store.keys(open_folder(run_id)):
        said = read_key(key)
        if said is None or not isinstance(said[1], Block) or said[1].rank < (state.session, state.next_offset):
            continue
        if latest is None or said[1].rank >= latest[0].rank:
            latest = said[1], key
    if latest is None:
        return None
    try:
        return Blocked.decode((await store.get(latest[1])).body, key=latest[1])
    except NotFound:
        return None
