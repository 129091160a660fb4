"""Deleting runs, and tidying up after those that are over.

**A name is never forgotten.** The journal is replaced by a tombstone (a ``start`` and a ``cancel`` that says
``deleted``), under the next session number, in one conditional PUT; then everything else is removed. The tombstone
stays: a session that still works on the run is fenced, the id is never used again, and no DELETE races with a journal.

**Forks.** A deleter writes the tombstone, **then** looks for registrations; a fork registers, **then** looks at its
source. A registered fork keeps the payloads. A registration whose fork does not exist is decided, not guessed: the
deleter creates a tombstone under the fork's own name, and either that wins or the fork does.

**Tidying.** Segments that have been merged into larger ones are garbage once no journal can refer to them any more:
list first, then read the journal; if it is finished, what was listed and is not referred to never will be, because a
session that appends to a finished run must first be opened, and opening does not seal.
"""

from collections.abc import AsyncIterator, Collection, Container
from dataclasses import dataclass

from holdfast.base.errors import Conflict, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.runs import layout
from holdfast.runs.admin.control import end_children
from holdfast.runs.admin.fork import payload_owners
from holdfast.runs.errors import no_run
from holdfast.runs.journal.entry import CANCEL, Draft
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import TAKEOVER, Journal

_TOMBSTONE = (Draft(CANCEL, {"deleted": True}),)
_READS = 16


@dataclass(frozen=True, slots=True)
class Deleted:
    run_id: str
    removed: int = 0
    """Objects."""
    kept_for: tuple[str, ...] = ()
    """Forks that still need the run's payloads. Delete again when they are gone."""


async def delete(store: Store, run_id: str, *, force: bool = False) -> Deleted:
    """Delete a run for good; its id is never used again. ``Refused`` if it has not ended or forks need its payloads.

    ``force`` deletes it nevertheless: its children that have not ended are ended first, a session that works on it is
    fenced, and payloads stay for as long as forks need them. Deleting a deleted run removes what was left of it.
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
            await _check_deletable(store, history)
        elif not state.finished and await end_children(store, run_id, "deleted", f"its parent {run_id} was deleted"):
            continue
        try:
            state = (await Journal.supersede(store, ambient, history, {"deleting": True}, _TOMBSTONE)).state
            break
        except Conflict:
            if not await budget.another():
                raise
    await RunIndex(store, ambient).note(run_id, state, before=history.state)
    return await sweep(store, ambient, run_id)


async def sweep(store: Store, ambient: Ambient, run_id: str) -> Deleted:
    """Remove what a deleted run has left behind, except the tombstone and what forks need."""
    needed_by = await _forks_in_need(store, ambient, run_id)
    stays = spared(run_id, needed_by)
    removed = 0
    async for page in store.list(layout.run_folder(run_id)):
        keys = [entry.key for entry in page.entries if not entry.key.startswith(stays)]
        if keys:
            await store.delete_many(keys)
            removed += len(keys)
    return Deleted(run_id, removed, tuple(needed_by))


def spared(run_id: str, needed_by: Collection[str]) -> tuple[str, ...]:
    """What of a deleted run stays: its tombstone, and its payloads while forks need them. Beginnings of keys."""
    journal = (layout.journal_key(run_id),)
    return (*journal, layout.payload_folder(run_id), layout.fork_folder(run_id)) if needed_by else journal


async def remains(store: Store, ambient: Ambient, run_id: str, *, decide: bool) -> tuple[str, ...] | None:
    """What stays of a deleted run, as ``spared`` says; None if the run is not deleted.

    With ``decide``, forks that were announced and do not exist are kept from ever existing, as a deletion does.
    """
    history = await read_history(store, run_id)
    if history is None or history.state.status != "deleted":
        return None
    if decide:
        return spared(run_id, await _forks_in_need(store, ambient, run_id))
    return spared(run_id, [fork async for fork, needs in _forks(store, run_id) if needs])


async def check_deletable(store: Store, run_id: str) -> None:
    """``Refused`` if a deletion without force would be."""
    history = await read_history(store, run_id)
    if history is None:
        raise no_run(run_id)
    if history.state.status != "deleted":
        await _check_deletable(store, history)


async def _check_deletable(store: Store, history: History) -> None:
    run_id, state = history.run_id, history.state
    if not state.finished:
        raise Refused(f"run {run_id} is {state.status}", remedy="cancel it first, or force the deletion")
    forks = [fork async for fork, needs in _forks(store, run_id) if needs]
    if forks:
        raise Refused(
            f"run {run_id} has payloads that {len(forks)} of its forks need: {', '.join(sorted(forks)[:3])}",
            remedy="delete the forks first, or force the deletion, which keeps these payloads",
        )


async def _forks_in_need(store: Store, ambient: Ambient, run_id: str) -> list[str]:
    """Forks that need the payloads of a deleted run. A fork that registered while we looked is looked at too."""
    checked: dict[str, bool] = {}
    while True:
        fresh = {fork: needs async for fork, needs in _forks(store, run_id, skip=checked)}
        if not fresh:
            return sorted(fork for fork, needs in checked.items() if needs)
        for fork, needs in fresh.items():
            checked[fork] = needs if needs is not None else not await _forestall(store, ambient, fork)


async def _forks(store: Store, run_id: str, *, skip: Container[str] = ()) -> AsyncIterator[tuple[str, bool | None]]:
    """Every registered fork, and whether it needs this run's payloads; None if it does not exist."""
    async for key in store.keys(layout.fork_folder(run_id)):
        fork = layout.id_of(key)
        if fork not in skip:
            history = await read_history(store, fork)
            yield fork, None if history is None else _needs(history, run_id)


def _needs(history: History, run_id: str) -> bool:
    """A fork that has begun a new history since may still show its old one."""
    state = history.state
    if state.status == "deleted":
        return False
    return run_id in payload_owners(history.entries) or (state.source is not None and state.generation > 0)


async def _forestall(store: Store, ambient: Ambient, fork: str) -> bool:
    """Make sure that a fork which does not exist never will; False if it came into being instead."""
    try:
        await Journal.begin(store, ambient, fork, None, {"deleting": True}, _TOMBSTONE)
    except Conflict:
        return False
    return True
