"""Child runs as their parent sees them: how they are called, and how they are stopped with it.

A parent waits for its children one at a time, and what it did before a child is recorded before the child begins. So
when a cancelled parent is run again, ``Cancelled`` is raised exactly where a live child could be: at the call for it.
There the child is cancelled and cleans up first, then the parent.

A session that was fenced by the cancellation may still be about to create the child. So a child that does not exist is
created, cancelled: either that wins, or the session does, and then there is a child to cancel. A crash in between costs
nothing: the parent is still being cancelled, and the next session comes to the same place.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import Conflict, Fenced
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.engine.calls import Outcome
from holdfast.runs.errors import RunFinished, VersionMismatch, WrongWorkflow
from holdfast.runs.journal.entry import CANCEL, Draft
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import TAKEOVER, Journal

if TYPE_CHECKING:
    from holdfast.runs.engine.workflow import Workflow


def child_id(parent: Mapping[str, str]) -> str:
    return f"{parent['runId']}.{parent['stepId']}"


async def call(
    child: "Workflow", store: Store, parent: Mapping[str, str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Outcome:
    """Start the child, or continue it. One that was deleted has failed."""
    ident = child_id(parent)
    try:
        return await child.start(store, *args, run_id=ident, parent=parent, **kwargs)
    except RunFinished as gone:
        return Outcome(ident, "failed", error=str(gone))


async def stop(child: "Workflow", store: Store, ambient: Ambient, parent: Mapping[str, str]) -> None:
    """Cancel the child and let it clean up, as far as it can at once; a worker continues with the rest.

    Afterwards it has ended or is being cancelled, whatever other sessions of the parent do.
    """
    ident, reason = child_id(parent), reason_of(parent["runId"])
    budget = TAKEOVER.start(ambient)
    while True:
        history = await read_history(store, ident)
        try:
            if history is None:
                first = {"workflow": child.name, "parent": dict(parent), "cancelling": True, "reason": reason}
                await _begin(store, ambient, ident, None, first, Draft(CANCEL, {"reason": reason}))
            elif is_live_child(history, parent["runId"]):
                await _cancel(child, store, ambient, history, reason)
        except Conflict:
            if not await budget.another():
                raise
        else:
            return


async def live(store: Store, run_id: str) -> AsyncIterator[str]:
    """The children of a run that are not over, from the names of all runs: one LIST, and one GET for each that fits."""
    beginning = layout.run_folder(run_id).removesuffix("/") + "."
    async for page in store.list(layout.ROOT, after=beginning, delimiter=True):
        for folder in page.folders:
            if not folder.startswith(beginning):
                return
            history = await read_history(store, layout.run_of_folder(folder))
            if history is not None and is_live_child(history, run_id):
                yield history.run_id


def is_live_child(history: History, run_id: str) -> bool:
    """By the recorded parent, not by the id, which may be that of an unrelated run."""
    parent = history.state.start.get("parent")
    ours = isinstance(parent, dict) and parent.get("runId") == run_id and history.state.source is None
    return ours and not history.state.finished


def reason_of(run_id: str) -> str:
    return f"its parent {run_id} was cancelled"


async def _cancel(child: "Workflow", store: Store, ambient: Ambient, history: History, reason: str) -> None:
    try:
        with suppress(Fenced):  # a newer session runs the child; its journal has the request to cancel
            await child.cancel(store, history.run_id, reason=reason)
    except (
        VersionMismatch,
        WrongWorkflow,
    ):  # this code cannot run its clean-up; a worker that has the child's code will
        if history.state.cancelled_at is None:
            start = {"cancelling": True, "reason": reason, "detached": True}
            await _begin(store, ambient, history.run_id, history, start)


async def _begin(
    store: Store, ambient: Ambient, run_id: str, history: History | None, start: Mapping[str, Any], *then: Draft
) -> None:
    index = RunIndex(store, ambient)
    journal = await Journal.begin(store, ambient, run_id, history, start, then, announce=index.note)
    await index.note(run_id, journal.state)
