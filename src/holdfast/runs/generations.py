"""Histories that a run has left behind by continuing as new, found from the one that it has now.

Each generation's first ``start`` refers to the journal that it replaced, by key, length and hash. Losing attempts leave
archives too; only what the chain refers to is history.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.runs.history import History, read_history
from holdfast.runs.segments import digest


async def earlier(store: Store, history: History) -> AsyncIterator[History]:
    """The generations before ``history``, the latest first; up to the first one that is no longer kept."""
    while True:
        previous = history.state.start.get("previous")
        if not isinstance(previous, dict):
            return
        retired = await _read(store, history.run_id, previous)
        if retired is None:
            return
        yield retired
        history = retired


async def _read(store: Store, run_id: str, previous: Mapping[str, Any]) -> History | None:
    key = str(previous.get("key"))
    found = await store.find(key)
    if found is None:
        return None
    if digest(found.body) != previous.get("sha256"):
        raise Corrupt(f"{key}: its {len(found.body)} bytes are not the journal that was retired")
    history = await read_history(store, run_id, found=found)
    # Its segments may have gone with a deleted run; what is then read is the journal of today.
    return history if history is not None and history.state.generation == previous.get("generation") else None


async def generation(store: Store, history: History, number: int) -> History:
    """The generation with this number; 0 is the first."""
    if number == history.state.generation:
        return history
    async for retired in earlier(store, history):
        if retired.state.generation == number:
            return retired
    raise NotFound(
        f"run {history.run_id} has no generation {number}",
        remedy=f"it is in generation {history.state.generation}; the first one is 0",
    )
