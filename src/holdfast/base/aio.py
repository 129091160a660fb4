"""Concurrency helpers: bounded fan-out, and the only module of the library that starts or uses threads.

``blocking`` and ``finishing`` run a function in the loop's default executor, which bounds the number of threads and
ends with the loop; ``apart`` starts a thread of its own. A forked child runs a loop of its own with new threads. A loop
that sets ``runs_blocking_inline`` (the simulator's) makes the call in place, so that simulated runs stay deterministic.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar

from holdfast.base.errors import Invalid
from holdfast.base.telemetry import logger

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

PATIENCE_SECONDS = 10.0
"""How long a cancelled caller waits for a write that runs."""


async def blocking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread of the loop. Cancelling the caller does not stop a function that runs."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function(*args, **kwargs)
    return await loop.run_in_executor(None, _Call(partial(function, *args, **kwargs)).run)


async def apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Like ``blocking``, in a new daemon thread, for functions of users.

    One that hangs takes no thread of the executor and does not keep the process from ending.
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
        except BaseException as raised:  # noqa: BLE001  # the caller gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="holdfast-apart", daemon=True).start()
    return await ended


async def finishing(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Like ``blocking``, for writes: a cancelled caller waits until the function has ended, unless it never began.

    So nothing is still being written when the caller cleans up. The wait is bounded (``PATIENCE_SECONDS``, or a second
    cancellation), because the function may hang on a lock that a stopped process holds.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function(*args, **kwargs)
    call = _Call(partial(function, *args, **kwargs))
    work = loop.run_in_executor(None, call.run)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if call.claim():
            work.cancel()
        else:  # a thread runs it
            work.add_done_callback(_retrieve_exception)
            await asyncio.wait([work], timeout=PATIENCE_SECONDS)
        raise


class _Call(Generic[R]):
    """A function for a thread, unless its caller is cancelled before a thread begins it: the first claim decides."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._context = copy_context()
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        return self._claimed.acquire(blocking=False)

    def run(self) -> R:
        if not self.claim():
            raise CancelledError
        try:
            return self._context.run(self._function)
        except StopIteration as error:  # a future cannot hold it
            raise RuntimeError("a blocking function raised StopIteration") from error


def _retrieve_exception(work: "asyncio.Future[Any]") -> None:
    """asyncio logs exceptions that nothing retrieves, and the caller of this work was cancelled."""
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


async def lasting(what: str, run: Callable[[], Awaitable[None]], *, pause_s: float = 1.0) -> None:
    """Run until it returns by itself or is cancelled. After an unforeseen error, which is logged, it begins again:
    otherwise a task that failed would end without a message."""
    while True:
        try:
            return await run()
        except Exception as error:  # noqa: BLE001  # whatever it is, the work goes on
            logger("aio").error("%s failed, and begins again in %g s: %s", what, pause_s, error, exc_info=error)
        await asyncio.sleep(pause_s)
