"""Running the function of a step: a try, its time limit, and more tries. Knows nothing of journals.

While a step's function runs, ``current_key`` is its idempotency key: the same for every try, in every session. A sync
function runs in a thread; a time limit ends the wait for it, not the thread.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.base import aio
from holdfast.base.codec import Document
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.runs.courier import OUTBOX, begin_letters
from holdfast.runs.outcome import Retry, check_number

ONCE = Retry(attempts=1)


def check_calls(group: str, calls: Iterable[tuple[object, object]]) -> None:
    """A mistake in one call of a group is told before any of them has run."""
    for member, call in calls:
        if not isinstance(call, tuple | list) or not call or not callable(call[0]):
            raise Invalid(
                f"call {member!r} of group {group!r} is not a function with its arguments, but {call!r:.80}",
                remedy="write (function, argument, ...) for each",
            )


_key: ContextVar[str | None] = ContextVar("holdfast_step_key", default=None)


def current_key() -> str | None:
    """The idempotency key of the step that is running here; None outside a step."""
    return _key.get()


@contextmanager
def outside_steps() -> Iterator[None]:
    """For a workflow that is called from a step of another one: its own steps are not inside that step."""
    token = _key.set(None)
    try:
        yield
    finally:
        _key.reset(token)


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine. Nearly every function, and every method, says so by its code."""
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return bool(flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(function)


class Call:
    """What to run for a step, and how."""

    __slots__ = ("args", "function", "kwargs", "retry", "timeout")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: Retry,
        timeout: float | None,
    ) -> None:
        if not callable(function):
            raise Invalid(
                f"a {type(function).__name__} was given where a step's function is wanted",
                remedy="give the function, then its arguments, and do not call it: step(name, function, argument)",
            )
        Retry.check(retry)
        if timeout is not None:
            check_number("timeout", timeout)
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.retry = retry
        self.timeout = timeout

    async def attempt(self, key: str, ambient: Ambient) -> tuple[Any, Document]:
        """The result, and the field of what was emitted, after as many tries as allowed; else the last error."""
        token = _key.set(key)
        failures = 0
        try:
            while True:
                letters = begin_letters()
                try:
                    result = await (self._invoke() if self.timeout is None else self._in_time(self.timeout))
                    return result, {OUTBOX: list(letters)} if letters else {}
                except Exception as error:
                    failures += 1
                    if not self.retry.again(failures, error):
                        raise
                await asyncio.sleep(self.retry.delay_ms(failures, ambient) / 1000)
        finally:
            _key.reset(token)

    async def _in_time(self, limit: float) -> Any:
        scope = asyncio.timeout(limit)
        try:
            async with scope:
                return await self._invoke()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise TimeoutError(f"no result within {limit:g} s, its time limit") from error

    async def _invoke(self) -> Any:
        try:
            if _is_async(self.function):
                return await self.function(*self.args, **self.kwargs)
            result = await aio.blocking(self._in_thread)
            return await result if isinstance(result, Awaitable) else result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("something that the step waited for was cancelled") from error

    def _in_thread(self) -> Any:
        try:
            return self.function(*self.args, **self.kwargs)
        except StopIteration as stop:  # a future cannot hold it: the caller would wait for ever
            raise RuntimeError("the step's function raised StopIteration") from stop
