"""Concurrency helpers: bounded fan-out, and the only module of the library that starts or uses threads.

``blocking``, ``finishing`` and ``interruptible`` run a function in the loop's default executor, which bounds the number
of threads and ends with the loop; ``in_own_thread`` starts a new thread. A loop that sets ``runs_blocking_inline`` (the
simulator's) calls the function directly, so that simulated runs stay deterministic.
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
INTERRUPT_EVERY_SECONDS = 0.05
"""An interrupt that arrives before the function has reached its work may have no effect, so it is repeated."""


async def blocking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function in a thread. Cancelling the caller does not stop a function that has begun."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function(*args, **kwargs)
    return await loop.run_in_executor(None, _Call(partial(function, *args, **kwargs)).run)


async def in_own_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Like ``blocking``, in a new daemon thread, for functions of users.

    A function that hangs takes no thread of the executor, and the process can end.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function(*args, **kwargs)
    call = _Call(partial(function, *args, **kwargs))
    result: asyncio.Future[R] = loop.create_future()

    def set_result(value: R | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)  # type: ignore[arg-type]  # what the function returned
        else:
            result.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = call.run()
        except BaseException as raised:  # noqa: BLE001  # the caller gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
            loop.call_soon_threadsafe(set_result, value, error)

    threading.Thread(target=work, name="holdfast-own-thread", daemon=True).start()
    return await result


async def finishing(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Like ``blocking``, for writes: a cancelled caller waits until the function has ended, unless it has not begun.

    So nothing is being written when the caller cleans up. The wait is bounded (``PATIENCE_SECONDS``, or a second
    cancellation), because the function may hang on a lock that a stopped process holds.
    """

    async def wait(work: "asyncio.Future[R]") -> None:
        await asyncio.wait([work], timeout=PATIENCE_SECONDS)

    return await _shielded(partial(function, *args, **kwargs), wait)


async def interruptible(
    interrupt: Callable[[], object], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Like ``finishing``, but a cancelled caller calls ``interrupt`` until the function has ended, however long."""

    async def wait(work: "asyncio.Future[R]") -> None:
        while not work.done():
            interrupt()
            await asyncio.wait([work], timeout=INTERRUPT_EVERY_SECONDS)

    return await _shielded(partial(function, *args, **kwargs), wait)


async def _shielded(function: Callable[[], R], wait: Callable[["asyncio.Future[R]"], Awaitable[None]]) -> R:
    """Run a function in a thread. If the caller is cancelled, it never begins, or ``wait`` waits for its end."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function()
    call = _Call(function)
    work = loop.run_in_executor(None, call.run)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if call.claim():
            work.cancel()
        else:  # a thread runs it
            work.add_done_callback(_retrieve_exception)
            await wait(work)
        raise


class _Call(Generic[R]):
    """A function for a thread. Either the thread claims it before it begins, or its cancelled caller does."""

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
    """The caller was cancelled, and asyncio would log the exception as never retrieved."""
    if not work.cancelled():
        work.exception()


async def map_bounded(items: Iterable[T], function: Callable[[T], Awaitable[R]], *, limit: int) -> list[R]:
    """Apply ``function`` to every item, at most ``limit`` at a time; results are in the order of the items.

    The first failure cancels the rest and is raised unchanged, not in a group.
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
        await _cancel(workers)
    return [results[number] for number in range(len(results))]


async def stream_bounded(
    items: Iterable[T], function: Callable[[T], Awaitable[R]], *, limit: int
) -> AsyncGenerator[R, None]:
    """Like ``map_bounded``, but yields or raises each result as soon as it and all before it are done."""
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
        await _cancel(window)


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise Invalid(f"a limit of {limit} at a time is less than 1")


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    remaining = list(tasks)
    for task in remaining:
        task.cancel()
    await asyncio.gather(*remaining, return_exceptions=True)


class _End:
    pass


_END = _End()


async def restarting(name: str, run: Callable[[], Awaitable[None]], *, pause_s: float = 1.0) -> None:
    """Call ``run`` until it returns or is cancelled. An unexpected error is logged, and ``run`` is called again."""
    while True:
        try:
            return await run()
        except Exception as error:  # noqa: BLE001  # a background task must not end silently
            logger("aio").error("%s failed, and is restarted in %g s: %s", name, pause_s, error, exc_info=error)
        await asyncio.sleep(pause_s)
