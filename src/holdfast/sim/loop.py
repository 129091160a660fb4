"""An event loop in virtual time: nothing waits, and the same program runs the same way every time.

Only public seams of asyncio are used. The selector is asked to wait when nothing is ready; it moves the clock instead.
So ``sleep``, ``timeout`` and ``TaskGroup`` work unmodified, and "wait for ever" means a deadlock, which is raised at
once.

A gate guards every step of the tasks of one simulated process. Closed, it keeps their steps, timers included:
the process is paused, or, if it is never opened again, dead. Nothing is cancelled, so no ``finally`` tidies up where
a real crash would not have let it.
"""

import asyncio
import math
import selectors
from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, NamedTuple

GATE: ContextVar["Gate | None"] = ContextVar("holdfast_sim_gate", default=None)
"""The gate of the process that is running now. Tasks and timers inherit it from the step that makes them."""


class Deadlock(Exception):
    """Every task waits, and nothing is scheduled that could wake one."""


class SimLoop(asyncio.SelectorEventLoop):
    runs_blocking_inline = True  # see holdfast.base.aio.blocking

    def __init__(self, *, when_idle: Callable[[], bool] | None = None) -> None:
        """``when_idle`` is asked before time moves; True means that it made something happen."""
        self._now = 0.0
        self._no_process = Context()
        super().__init__(_Waiting(self._wait))
        self._when_idle = when_idle

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]  # the published types tie callback and args
        gate = GATE.get() if context is None else context.get(GATE)
        if gate is None or not gate.closed:
            return super().call_soon(callback, *args, context=context)
        return gate.keep(callback, args, context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        gate = GATE.get() if context is None else context.get(GATE)
        if gate is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, gate.due, callback, args, context=context)

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Something that happens in the world and is no step of any process."""
        super().call_at(self._now + seconds, callback, *args, context=self._no_process)

    def _wait(self, timeout: float | None) -> None:
        if timeout == 0 or (self._when_idle is not None and self._when_idle()):
            return
        if timeout is None:
            raise Deadlock("every task waits, and nothing is scheduled that could wake one")
        # A hair more than asked: a timer is due only before now, and late in the day a nanosecond is less than a hair.
        self._now = math.nextafter(self._now + timeout, math.inf)


class _Step(NamedTuple):
    callback: Callable[..., object]
    args: tuple[Any, ...]
    context: Context | None
    handle: asyncio.Handle


class Gate:
    """Stands before the steps of one process. Opened again, it lets what it kept go, in order."""

    def __init__(self, loop: SimLoop) -> None:
        self.closed = False
        self._loop = loop
        self._kept: list[_Step] = []

    def keep(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._kept.append(_Step(callback, args, context, handle))
        return handle

    def due(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """A timer of the process has run out."""
        if self.closed:
            self.keep(callback, args, copy_context())
        else:
            callback(*args)

    def open(self) -> None:
        self.closed = False
        kept, self._kept = self._kept, []
        for step in kept:
            if not step.handle.cancelled():
                self._loop.call_soon(step.callback, *step.args, context=step.context)


class _Waiting(selectors.BaseSelector):
    """Watches nothing. The loop's own self-pipe is registered here and never read."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        self._wait = wait
        self._keys: dict[int, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._wait(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return self._keys[number]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys
