"""Deleting runs.

A name is never forgotten. The journal is replaced by a tombstone (a ``start`` and a ``cancel`` that says ``deleted``),
under the next session number, in one conditional PUT; then everything else is removed. The tombstone stays: a session
that still works on the run is fenced, the id is never used again, and no DELETE races with a journal.
"""

from dataclasses import dataclass

from holdfast.base.errors import Conflict, Refused
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.admin.control import end_children
from holdfast.runs.errors import no_run
from holdfast.runs.journal.entry import CANCEL, Draft
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import TAKEOVER, Journal
from holdfast.runs.journal.leftovers import leftovers

_TOMBSTONE = (Draft(CANCEL, {"deleted": True}),)


@dataclass(frozen=True, slots=True)
class Deleted:
    run_id: str
    removed: int = 0
    """Objects."""


async def delete(store: Store, run_id: str, *, force: bool = False) -> Deleted:
    """Delete a run for good; its id is never used again. ``Refused`` if it has not ended.

    ``force`` deletes it nevertheless: its children that have not ended are ended first, and a session that works on it
    is fenced. Deleting a deleted run removes what was left of it.
    """
    ambient = ambient_of(store)
    budget = TAKEOVER.start(ambient)
    while True:
        history = await read_history(store, run_id)
        if history is None:
            raise no_run(run_id)
        state = history.state
        if state.status == "deleted":
            break
        if not force:
            _check_over(history)
        elif not state.finished and await end_children(store, run_id, "deleted", f"its parent {run_id} was deleted"):
            continue
        try:
            state = (await Journal.supersede(store, ambient, history, {"deleting": True}, _TOMBSTONE)).state
            break
        except Conflict:
            if not await budget.another():
                raise
    await RunIndex(store, ambient).note(run_id, state, before=history.state)
    garbage = leftovers(run_id, [key async for key in store.keys(layout.run_folder(run_id))])
    await store.delete_many(garbage)
    return Deleted(run_id, len(garbage))


async def check_deletable(store: Store, run_id: str) -> None:
    """``Refused`` if a deletion without force would be."""
    history = await read_history(store, run_id)
    if history is None:
        raise no_run(run_id)
    if history.state.status != "deleted":
        _check_over(history)


def _check_over(history: History) -> None:
    if not history.state.finished:
        raise Refused(
            f"run {history.run_id} is {history.state.status}", remedy="cancel it first, or force the deletion"
        )
