"""Histories that a run has left behind by continuing as new, found from the one that it has now.

Each generation's first ``start`` refers to the journal that it replaced. Losing attempts leave archives too; only what
the chain refers to is history.
"""

from collections.abc import AsyncIterator

from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.runs.history import History, read_previous


async def earlier(store: Store, history: History) -> AsyncIterator[History]:
    """The generations before ``history``, the latest first; up to the first one that is no longer kept."""
    retired = await read_previous(store, history)
    while retired is not None:
        yield retired
        retired = await read_previous(store, retired)


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
