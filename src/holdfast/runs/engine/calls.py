"""What a call of a run returns, retry policies, and running the function of a step. Knows nothing of journals.

While a step's function runs, ``current_key`` is its idempotency key: the same for every try, in every session. A sync
function runs in a thread; a time limit ends the wait for it, not the thread.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.base import aio, telemetry
from holdfast.base.codec import Document
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.runs.engine.outbox import OUTBOX, collect_events

Status = Literal["success", "suspended", "sleeping", "failed", "cancelled", "running"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state of a run after a call.

    ``suspended`` waits for ``event``; ``sleeping`` waits until ``wake_at_ns``; ``failed`` will be tried again at
    ``wake_at_ns`` if that is set, and is final otherwise; ``running`` is in the hands of another process.
    """

    run_id: str
    status: Status
    result: Any = None
    error: str | None = None
    event: str | None = None
    wake_at_ns: int | None = None
    session: int = 0

    @property
    def finished(self) -> bool:
        return self.status in ("success", "cancelled") or (self.status == "failed" and self.wake_at_ns is None)

    def unwrap(self) -> Any:
        """The result of a run that must have succeeded."""
        if self.status != "success":
            raise Invalid(
                f"run {self.run_id} has no result: it is {self.status}" + (f": {self.error}" if self.error else "")
            )
        return self.result


def check_number(name: str, value: object, *, least: float = 0, most: float = math.inf, whole: bool = False) -> None:
    """``Invalid`` unless the argument is a finite number from ``least`` to ``most``."""
    kinds = (int,) if whole else (int, float)
    if (
        not isinstance(value, kinds)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not least <= value <= most
    ):
        kind = "an integer" if whole else "a number"
        wanted = f"{kind} of at least {least:g}" if least > -math.inf else "a finite number"
        raise Invalid(f"{name}={value!r:.80} is not {wanted}" + (f" and at most {most:g}" if most < math.inf else ""))


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failing call is tried, and how long to wait between tries.

    Delays double from ``base_ms`` up to ``max_ms``, each shortened by up to ``jitter``. Errors not in ``on`` are final.
    """

    attempts: int = 3
    base_ms: int = 250
    max_ms: int = 30_000
    jitter: float = 0.5
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts, least=1, whole=True)
        check_number("base_ms", self.base_ms)
        check_number("max_ms", self.max_ms)
        check_number("jitter", self.jitter, most=1)
        on: object = self.on
        if not isinstance(on, tuple) or not all(isinstance(kind, type) for kind in on):
            raise Invalid(f"on={on!r} is not a tuple of exception classes", remedy="write on=(OSError,)")

    @staticmethod
    def check(retry: object) -> None:
        if not isinstance(retry, Retry):
            raise Invalid(f"retry={retry!r:.80} is not a Retry", remedy="write retry=runs.Retry(attempts=3)")

    def delay_ms(self, failures: int, ambient: Ambient) -> float:
        """How long to wait after the ``failures``-th failure."""
        full = min(float(self.max_ms), self.base_ms * 2.0 ** (failures - 1))
        return full * (1 - self.jitter * ambient.rng.random())

    def again(self, failures: int, error: BaseException) -> bool:
        return failures < self.attempts and isinstance(error, self.on)


ONCE = Retry(attempts=1)

log = telemetry.logger("runs")


def error_text(error: BaseException) -> str:
    """What an error says; a user's class may raise from ``__str__``."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # as above
        return type(error).__name__


_key: ContextVar[str | None] = ContextVar("holdfast_step_key", default=None)


def current_key() -> str | None:
    """The idempotency key of the step that is running here; None outside a step."""
    return _key.get()


@contextmanager
def outside_steps() -> Iterator[None]:
    """Clear the current step, for a workflow that is called from a step of another one."""
    token = _key.set(None)
    try:
        yield
    finally:
        _key.reset(token)


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function returns a coroutine. The code flag answers for nearly all functions, and is fast."""
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    return bool(flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(function)


class Call:
    """A function with its arguments, retry policy and time limit."""

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
                f"a {type(function).__name__} was given where a step's function is expected",
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

    @classmethod
    def of_group(cls, group: str, member: object, given: object, retry: Retry, timeout: float | None) -> "Call":
        if not isinstance(given, tuple | list) or not given or not callable(given[0]):
            raise Invalid(
                f"call {member!r} of group {group!r} is not a function with its arguments, but {given!r:.80}",
                remedy="write (function, argument, ...) for each",
            )
        return cls(given[0], tuple(given[1:]), {}, retry, timeout)

    async def attempt(self, key: str, ambient: Ambient) -> tuple[Any, Document]:
        """The result, and the entry's field with the emitted events, after at most ``retry.attempts`` tries; raises
        the last error.
        """
        token = _key.set(key)
        failures = 0
        try:
            while True:
                events = collect_events()
                try:
                    result = await (self._invoke() if self.timeout is None else self._in_time(self.timeout))
                    return result, {OUTBOX: list(events)} if events else {}
                except Exception as error:
                    failures += 1
                    tries = (failures, self.retry.attempts)
                    log.warning("step %s failed: %s (try %d of %d)", key, error_text(error), *tries, exc_info=True)
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
        except StopIteration as stop:  # a future cannot carry it: the caller would never be woken
            raise RuntimeError("the step's function raised StopIteration") from stop
