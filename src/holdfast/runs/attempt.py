"""Running the function of a step: a try, its time limit, and more tries. Knows nothing of journals.

While a step's function runs, ``current_key`` is its idempotency key: the same for every try, in every session. A sync
function runs in a thread; a time limit ends the wait for it, not the thread.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from holdfast.base import aio
from holdfast.base.ids import Ambient
from holdfast.runs.outcome import Retry

ONCE = Retry(attempts=1)

_key: ContextVar[str | None] = ContextVar("holdfast_step_key", default=None)


def current_key() -> str | None:
    """The idempotency key of the step that is running here; None outside a step."""
    return _key.get()


@dataclass(frozen=True, slots=True)
class Call:
    """What to run for a step, and how."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    retry: Retry
    timeout: float | None

    async def attempt(self, key: str, ambient: Ambient) -> Any:
        """The function's result, after as many tries as the policy allows; else its last error."""
        token = _key.set(key)
        failures = 0
        try:
            while True:
                try:
                    async with asyncio.timeout(self.timeout):
                        return await self._invoke()
                except Exception as error:
                    failures += 1
                    if not self.retry.again(failures, error):
                        raise
                await asyncio.sleep(self.retry.delay_ms(failures, ambient) / 1000)
        finally:
            _key.reset(token)

    async def _invoke(self) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(*self.args, **self.kwargs)
        result = await aio.blocking(self.function, *self.args, **self.kwargs)
        return await result if isinstance(result, Awaitable) else result
