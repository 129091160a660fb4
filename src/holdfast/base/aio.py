"""Concurrency helpers: bounded fan-out and the one door to threads.

Only here, and in ``disk``, does library code reach a thread: ``blocking`` and ``finishing`` by those of the loop,
``apart`` by one of its own. A loop that sets ``runs_blocking_inline`` (the simulator's) gets the call made in place, so
that simulated runs stay deterministic.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from holdfast.base.crew import Call, Later, crew_of
from holdfast.base.errors import Invalid

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

PATIENCE_SECONDS = 10.0
"""How long a cancelled caller waits for a write that has begun."""


async def blocking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function off the loop. Cancelling the caller does not stop the function once it has begun."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function(*args, **kwargs)
    call: Call[R] = Call(loop, partial(function, *args, **kwargs))
    crew_of(loop).take(call)
    try:
        return await call.answer
    except asyncio.CancelledError:
        call.begin()  # so that nobody else does
        raise


async def apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Like ``blocking``, in a thread of its own, for functions of users, which may hang.

    One that hangs takes no thread from the store, and does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function(*args, **kwargs)
    ended: asyncio.Future[R] = loop.create_future()
    context = copy_context()

    def settle(result: R | None, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(result)  # type: ignore[arg-type]  # what the function returned
        elif isinstance(error, StopIteration):  # which no future can carry
            ended.set_exception(RuntimeError("the function raised StopIteration"))
        else:
            ended.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as raised:  # noqa: BLE001  # it goes to whoever waits
            error = raised
        with suppress(RuntimeError):  # the loop is gone, and so is who waited
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="holdfast-apart", daemon=True).start()
    return await ended


async def finishing(function: Callable[P, "R | Later[R]"], *args: P.args, **kwargs: P.kwargs) -> R:
    """Like ``blocking``, for writes: a caller that is cancelled goes on when the function has ended, or never begins.

    So nothing is still being written behind the back of whoever cleans up. It is given up after a while all the same
    (``PATIENCE_SECONDS``, or a second cancellation): it may hang on a lock whose holder was stopped. The function may
    return a ``Later``.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        result = function(*args, **kwargs)
        return result.now() if isinstance(result, Later) else result
    call: Call[R] = Call(loop, partial(function, *args, **kwargs))
    crew_of(loop).take(call)
    try:
        return await call.answer
    except asyncio.CancelledError:
        if not call.begin() and not call.delivered:
            call.answer = loop.create_future()  # the first one was cancelled with the caller
            call.answer.add_done_callback(_look_at)
            await asyncio.wait([call.answer], timeout=PATIENCE_SECONDS)
        raise


def aside(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Have a blocking function run off the loop. Nobody waits for it."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        function(*args, **kwargs)
        return
    call: Call[None] = Call(loop, partial(function, *args, **kwargs))
    crew_of(loop).take(call)


async def outlasting(work: Coroutine[Any, Any, R]) -> R:
    """Like ``finishing``, for a write of several steps: all of them are taken, although the caller was cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            task.add_done_callback(_look_at)
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        raise


def _look_at(work: "asyncio.Future[Any]") -> None:
    """Its error has nobody left to go to; asyncio complains of errors that nobody has looked at."""
    if not work.cancelled():
        work.exception()


async def map_bounded(items: Iterable[T], function: Callable[[T], Awaitable[R]], *, limit: int) -> list[R]:
    """Apply ``function`` to every item, at most ``limit`` at a time; results in the order of the items.

    The first failure cancels the rest and is raised as itself, not as a group.
    """
    _check_limit(limit)
    source = enumerate(items)
    results: dict[int, R] = {}

    async def work(number: int, item: T) -> None:
        results[number] = await function(item)
        for following, other in source:
            results[following] = await function(other)

    workers = [asyncio.ensure_future(work(*first)) for first in islice(source, limit)]
    try:
        await asyncio.gather(*workers)
    finally:
        await _end(workers)
    return [results[number] for number in range(len(results))]


async def stream_bounded(
    items: Iterable[T], function: Callable[[T], Awaitable[R]], *, limit: int
) -> AsyncGenerator[R, None]:
    """Like ``map_bounded``, but yields, or fails with, each result as soon as it and all before it are done."""
    _check_limit(limit)
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
        await _end(window)


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise Invalid(f"a limit of {limit} at a time would never begin")


async def _end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


class _End:
    pass


_END = _End()
