"""Listing and steering runs without the workflow's code.

Listing, forking, deleting, and the two requests that need code to be carried out: to cancel a run and to try a failed
one again. A request is a ``detached`` session: it fences the process that works on the run and says that none does now,
so that a worker, or the next call, continues from there. The journal decides; the index is updated afterwards.

Errors: ``NotFound`` for a run that does not exist or was deleted; ``RunFinished`` and ``Refused`` where the run's state
does not allow it; ``Conflict`` if others kept writing to the run.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.base.clock import parse_iso
from holdfast.base.errors import Conflict, Invalid, NotFound, Refused
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.runs.engine import children
from holdfast.runs.errors import RunFinished, no_run
from holdfast.runs.journal.entry import CANCEL, Draft
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.index import Rebuilt, RunIndex
from holdfast.runs.journal.journal import TAKEOVER, Journal
from holdfast.runs.journal.state import RunState
from holdfast.runs.journal.summary import RunSummary


@dataclass(frozen=True, slots=True)
class Requested:
    """The state of a run after a request. ``written`` is False if there was nothing to change."""

    run_id: str
    status: str
    session: int
    written: bool


async def find(
    store: Store,
    *,
    status: str | Collection[str] | None = None,
    workflow: str | None = None,
    tag: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> AsyncIterator[RunSummary]:
    """Runs, the latest change of status first, from the index alone: no journal is read.

    ``since`` and ``until`` are about that change. ``tag`` finds ``env`` and ``env=production`` by ``env``. A journal is
    read only for a run whose key in the index had no room for what is asked.
    """
    index, since_ns, until_ns = RunIndex(store, ambient_of(store)), _ns(since), _ns(until)
    async for summary in index.list(
        status=status, workflow=workflow, tag=tag, since_ns=since_ns, until_ns=until_ns, limit=limit
    ):
        yield summary


async def reindex(store: Store) -> Rebuilt:
    """Derive the index from the journals. Safe beside running sessions."""
    return await RunIndex(store, ambient_of(store)).rebuild()


async def request_cancel(store: Store, run_id: str, *, reason: str = "cancelled", now: bool = False) -> Requested:
    """Ask for a run to be cancelled, without its code. A worker or the next call then lets it clean up, after the child
    that it may be waiting for.

    ``now`` ends it in the same write: it is cancelled, and no clean-up step will run. Its children are ended before it.
    """
    if now:
        await end_children(store, run_id, reason, children.reason_of(run_id))

    def plan(state: RunState) -> _Change | None:
        if state.finished or (state.cancelled_at is not None and not now):
            return None
        end = (Draft(CANCEL, {"reason": state.cancel_reason or reason}),) if now else ()
        return _Change({"cancelling": True, "reason": reason}, end)

    return await _change(store, run_id, plan)


async def end_children(store: Store, run_id: str, reason: str, child_reason: str) -> bool:
    """End the children of a run that have not ended; whether there were any. ``child_reason`` is recorded in them.

    First the run is asked to cancel, which fences the session that works on it, so that it cannot start another child.
    A crash in between leaves a run that is being cancelled.
    """
    history = await existing(store, run_id)
    if history.state.finished or await anext(children.live(store, run_id), None) is None:
        return False
    await request_cancel(store, run_id, reason=reason)
    async for child in children.live(store, run_id):
        await request_cancel(store, child, reason=child_reason, now=True)
    return True


async def request_retry(store: Store, run_id: str) -> Requested:
    """Open a failed run again, without its code: recorded steps stay, a worker or the next call tries the rest."""

    def plan(state: RunState) -> _Change | None:
        if state.status in ("success", "cancelled"):
            raise RunFinished(f"run {run_id} is {state.status}: there is nothing to try again")
        if state.status not in ("failed", "retrying"):
            raise Refused(f"run {run_id} is {state.status}, it has not failed", remedy="call it, or let a worker do so")
        return _Change({"reopen": True})

    return await _change(store, run_id, plan)


@dataclass(frozen=True, slots=True)
class _Change:
    start: dict[str, Any]
    then: Sequence[Draft] = ()


async def _change(store: Store, run_id: str, plan: Callable[[RunState], _Change | None]) -> Requested:
    """Read, decide, and write one detached session; again if the run changed meanwhile."""
    ambient = ambient_of(store)
    budget = TAKEOVER.start(ambient)
    while True:
        history = await existing(store, run_id)
        change = plan(history.state)
        if change is None:
            return Requested(run_id, history.state.status, history.state.session, written=False)
        try:
            journal = await Journal.begin(
                store, ambient, run_id, history, {**change.start, "detached": True}, change.then
            )
        except Conflict:
            if not await budget.another():
                raise
            continue
        await RunIndex(store, ambient).try_note(run_id, journal.state)
        return Requested(run_id, journal.state.status, journal.session, written=True)


async def existing(store: Store, run_id: str) -> History:
    """The history of a run that is there; ``NotFound`` also for one that was deleted."""
    ambient_of(store)
    history = await read_history(store, run_id)
    if history is None:
        raise no_run(run_id)
    if history.state.status == "deleted":
        raise NotFound(f"run {run_id} was deleted", remedy="its id is never used again")
    return history


def _ns(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise Invalid(f"the time {moment.isoformat()} needs a zone", remedy="use datetime(..., tzinfo=UTC)")
    return parse_iso(moment.isoformat())
