"""Concurrency helpers: bounded fan-out and the one door to threads.

``blocking`` is the only place where library code reaches a thread. A loop that sets ``runs_blocking_inline`` (the
simulator's) gets the call made in place, so that simulated runs stay deterministic.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import ParamSpec, TypeVar

from holdfast.base.errors import Invalid

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


async def blocking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function off the loop. Cancelling the caller does not stop the function once it has begun."""
    if getattr(asyncio.get_running_loop(), "runs_blocking_inline", False):
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def map_bounded(items: Iterable[T], function: Callable[[T], Awaitable[R]], *, limit: int) -> list[R]:
    """Apply ``function`` to every item, at most ``limit`` at a time; results in the order of the items.

    The first failure cancels the rest and is raised as itself, not as a group.
    """
    return [result async for result in stream_bounded(items, function, limit=limit)]


async def stream_bounded(items: Iterable[T], function: Callable[[T], Awaitable[R]], *, limit: int) -> AsyncIterator[R]:
    """Like ``map_bounded``, but yields each result as soon as it and all before it are done."""
    if limit < 1:
        raise Invalid(f"a limit of {limit} at a time would never begin")
    source = iter(items)
    window: list[asyncio.Future[R]] = []
    try:
        while True:
            while len(window) < limit and (item := next(source, _END)) is not _END:
                window.append(asyncio.ensure_future(function(item)))  # type: ignore[arg-type]  # not _END here
            if not window:
                return
            yield await window[0]
            window.pop(0)
    finally:
        for task in window:
            task.cancel()
        await asyncio.gather(*window, return_exceptions=True)


class _End:
    pass


_END = _End()
