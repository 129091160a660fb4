"""Whether a workflow's code may still call its context, and which error it gets if it may not.

A call that failed otherwise than by its step (the journal was not written, code and journal disagree, the session was
fenced) ends the session: even if the code catches the error, every later call raises it again. Otherwise the journal
could record a path that a replay does not take. The same holds after a wait that ends the session, and after the
cancellation of the session itself: clean-up in ``finally`` is for a cancelled run, not for a process that stops. A task
that was cancelled inside a call and continues may not call the context again, because a replay would not be cancelled.

``StepFailed`` is a result, and not one of these errors.
"""

import asyncio
from types import TracebackType
from typing import Any

from holdfast.base.errors import Ambiguous, HoldfastError, Invalid
from holdfast.runs.errors import StepFailed


class Suspended(BaseException):  # control flow: the session ends, the run does not
    """Raised in the workflow's code to end the session: the run waits for an event or a time."""

    def __init__(self, event: str, wake_at_ns: int | None) -> None:
        super().__init__(event)
        self.event = event
        self.wake_at_ns = wake_at_ns


class Continued(BaseException):  # control flow: the run continues with a fresh history
    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__("continue as new")
        self.args_again = args
        self.kwargs_again = kwargs


class SessionGate:
    def __init__(self) -> None:
        self.broken: Exception | None = None
        """The error for which this session must end without recording anything more."""
        self.left: BaseException | None = None
        """The exception that ended the workflow's code: it waits, or continues as new."""
        self._over = False
        self._caller = _this_task()
        self._cancelled_before = self._caller.cancelling()
        self.asking: dict[asyncio.Task[Any], int] = {}
        """Tasks that are inside a call of the context, with the number of such calls."""
        self._interrupted: dict[asyncio.Task[Any], HoldfastError] = {}
        self._quiet: asyncio.Future[None] | None = None

    def not_answered(self, task: "asyncio.Task[Any]", error: BaseException, what: str, *, main: bool) -> None:
        """A call of the context raised ``error``."""
        if isinstance(error, StepFailed):
            return
        if isinstance(error, HoldfastError):
            self.broken = self.broken or error
        elif isinstance(error, asyncio.CancelledError) and main:
            self._interrupted[task] = Invalid(
                f"{what} was cancelled, and the workflow went on: a replay could not",
                remedy="give the step a timeout= and catch StepFailed, instead of a timeout around it",
            )

    def settle_down(self) -> None:
        """No task is inside a call of the context any more."""
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def check(self, task: "asyncio.Task[Any] | None" = None) -> None:
        """Raise if the context may not be called any more."""
        if self.broken is not None:
            raise self.broken
        if self.left is not None:
            raise self.left
        if self._over:
            raise Invalid(
                "the context was used after its session had ended",
                remedy="await all tasks before the workflow waits or returns",
            )
        if self._caller.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError
        if self._interrupted and task in self._interrupted:
            self.broken = self._interrupted[task]
            raise self.broken

    def not_recorded(self, error: BaseException) -> None:
        """A write to the journal failed or was cancelled."""
        if isinstance(error, asyncio.CancelledError):
            self._interrupted[_this_task()] = Ambiguous(
                "a task was cancelled while its step was being recorded, and went on",
                remedy="call the run again: the next session reads what was recorded",
            )
        elif isinstance(error, Exception):
            self.broken = self.broken or error

    def leave(self, how: BaseException) -> BaseException:
        self.left = how
        return how

    async def close(self) -> None:
        """The session has ended: cancel tasks inside a call of the context, and wait until they have left it."""
        self._over = True
        if self.asking:
            self._quiet = asyncio.get_running_loop().create_future()
            for task in self.asking:
                task.cancel()
            await self._quiet


class Question:
    """Context manager around every call of the context. ``main`` is the workflow's own task; the value is whether the
    call comes from that task. A class, because a generator would cost more and every step passes here.
    """

    __slots__ = ("_main", "_standing", "_task", "_what")

    def __init__(self, gate: SessionGate, what: str, main: "asyncio.Task[Any] | None") -> None:
        self._standing = gate
        self._what = what
        self._task = _this_task()
        self._main = self._task is main

    def __enter__(self) -> bool:
        gate, task = self._standing, self._task
        gate.check(task)
        gate.asking[task] = gate.asking.get(task, 0) + 1
        return self._main

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._standing.not_answered(self._task, error, self._what, main=self._main)
        asking = self._standing.asking
        asking[self._task] -= 1
        if not asking[self._task]:
            del asking[self._task]
            if not asking:
                self._standing.settle_down()


def _this_task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    if task is None:
        raise Invalid("a context was used outside a task")
    return task
