"""Concurrency helpers: bounded fan-out and the one door to threads.

Only here does library code reach a thread: ``blocking`` and ``finishing`` by those of the loop, ``apart`` by one of
its own. A loop that sets ``runs_blocking_inline`` (the simulator's) gets the call made in place, so that simulated runs
stay deterministic.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from holdfast.base.errors import Invalid

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

PATIENCE_SECONDS = 10.0
"""How long a cancelled caller waits for a write that has begun."""

MOST_THREADS = 32
"""Of one loop at a time; its executor may have fewer."""
LINGER_SECONDS = 0.002
"""How long a thread without work stays for the next call, before it goes back to the executor."""
TURN_CALLS = 64
"""How many calls a thread takes before others that want the executor's threads have a chance."""


async def blocking(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking function off the loop. Cancelling the caller does not stop the function once it has begun."""
    loop = asyncio.get_running_loop()
    if getattr(loop, "runs_blocking_inline", False):
        return function(*args, **kwargs)
    call: _Call[R] = _Call(loop, partial(function, *args, **kwargs))
    _crew(loop).take(call)
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
    call: _Call[R] = _Call(loop, partial(function, *args, **kwargs))
    _crew(loop).take(call)
    try:
        return await call.answer
    except asyncio.CancelledError:
        if not call.begin() and not call.delivered:
            call.answer = loop.create_future()  # the first one was cancelled with the caller
            call.answer.add_done_callback(_look_at)
            await asyncio.wait([call.answer], timeout=PATIENCE_SECONDS)
        raise


class Later(Generic[R]):
    """What a function for ``finishing`` returns whose answer another thread will have: its own is free meanwhile.

    Or whose answer is there, and need not wait for what its thread has to do ``afterwards``.
    """

    __slots__ = ("_afterwards", "_hand_back", "_lock", "_settled", "error", "result")

    def __init__(self, afterwards: Callable[[], None] | None = None) -> None:
        self._afterwards = afterwards
        self._lock = threading.Lock()
        self._settled = False
        self._hand_back: Callable[[], None] | None = None
        self.result: R
        self.error: BaseException | None = None

    def settle(self, result: R, error: BaseException | None = None) -> None:
        """The answer; from any thread, once. If there is an error, it is raised in place of the result."""
        self.result, self.error = result, error
        with self._lock:
            self._settled = True
            hand_back = self._hand_back
        if hand_back is not None:
            hand_back()

    def bind(self, hand_back: Callable[[], None]) -> None:
        """Have this called when the answer is there, and do what there is to do afterwards."""
        with self._lock:
            self._hand_back = hand_back
            settled = self._settled
        if settled:
            hand_back()
        if self._afterwards is not None:
            self._afterwards()

    def now(self) -> R:
        """The answer, where no other thread can have it."""
        self.bind(lambda: None)
        if not self._settled:
            raise Invalid("a call was left to another thread in a place that has none")
        if self.error is not None:
            raise self.error
        return self.result


class _Call(Generic[R]):
    """One function on its way through a thread."""

    __slots__ = ("_context", "_error", "_function", "_result", "_ticket", "answer", "delivered")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: "Callable[[], R | Later[R]]") -> None:
        self._function = function
        self._context = copy_context()
        self._ticket = [True]  # for the thread that begins, or for the caller that gives up before; taking it is atomic
        self._result: R
        self._error: BaseException | None = None
        self.answer: asyncio.Future[R] = loop.create_future()
        self.delivered = False

    def begin(self) -> bool:
        """True for the first who asks."""
        try:
            return self._ticket.pop()
        except IndexError:
            return False

    def run(self, hand_back: "Callable[[_Call[Any]], None]") -> None:
        """In a thread: have the answer handed back, now or later."""
        try:
            result = self._context.run(self._function)
        except BaseException as error:  # noqa: BLE001  # the caller's to handle
            self._error = error
        else:
            if isinstance(result, Later):
                result.bind(partial(self._hand_later, result, hand_back))
                return
            self._result = result
        hand_back(self)

    def _hand_later(self, later: Later[R], hand_back: "Callable[[_Call[Any]], None]") -> None:
        self._result, self._error = later.result, later.error
        hand_back(self)

    def deliver(self) -> None:
        """On the loop."""
        self.delivered = True
        error, self._error = self._error, None  # whose traceback leads back here
        if self.answer.done():
            return  # its caller was cancelled
        if error is None:
            self.answer.set_result(self._result)
        elif isinstance(error, StopIteration):  # a future cannot hold it
            self.answer.set_exception(RuntimeError("a blocking function raised StopIteration"))
        else:
            self.answer.set_exception(error)


class _Desk:
    """Where one thread is handed one call at a time.

    Not a ``SimpleQueue``: in CPython 3.11 its ``get`` with a timeout waits for ever if a signal reaches the thread at
    the end of the time. A lock does not.
    """

    __slots__ = ("_call", "_ready")

    def __init__(self) -> None:
        self._call: _Call[Any] | None = None
        self._ready = threading.Lock()
        self._ready.acquire()

    def put(self, call: _Call[Any]) -> None:
        self._call = call
        self._ready.release()

    def get(self, timeout: float = -1) -> _Call[Any] | None:
        """None if nothing came in time."""
        if not self._ready.acquire(timeout=timeout):
            return None
        call, self._call = self._call, None
        return call


class _Crew:
    """Threads of one loop's executor, which take calls one after the other.

    To hand each call to the executor, and each answer back, costs more than most calls. So a thread stays a moment for
    the next call, the last to come is the first to be handed one, and answers that are ready go back together. The
    executor is not ours: after ``TURN_CALLS`` a thread goes back to it, and comes again when it is its turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Call[Any]] = deque()
        """There is a thread on its way for each of them, up to ``MOST_THREADS``."""
        self._idle: list[_Desk] = []
        """Where threads without work are handed a call."""
        self._turns = 0
        """Threads that were asked for and have not left."""
        self._left = 0
        """Those among them that left although calls may be waiting."""
        self._done: deque[_Call[Any]] = deque()
        self._told = False
        """The loop is about to look at what is done."""

    def take(self, call: _Call[Any]) -> None:
        """On the loop: have a call made."""
        with self._lock:
            if self._idle:
                self._idle.pop().put(call)
                return
            self._waiting.append(call)
        try:
            self._ask_for_thread()
        except RuntimeError:  # the executor has been shut down, and the caller is told so
            call.begin()
            raise

    def _ask_for_thread(self) -> None:
        if self._turns < MOST_THREADS:
            asyncio.get_running_loop().run_in_executor(None, self._take_turn, asyncio.get_running_loop())
            with self._lock:
                self._turns += 1

    def _take_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: make calls until there are none, or others should have the thread."""
        mine = _Desk()
        hand_back = partial(self._hand_back, loop)
        for _ in range(TURN_CALLS):
            call = self._next(mine)
            if call is None:
                return
            if call.begin():
                call.run(hand_back)
        with self._lock:
            self._turns -= 1
            self._left += 1
        self._tell(loop)

    def _next(self, mine: "_Desk") -> _Call[Any] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(mine)
        call = mine.get(LINGER_SECONDS)
        if call is not None:
            return call
        with self._lock:
            if mine in self._idle:
                self._idle.remove(mine)
                self._turns -= 1
                return None
        return mine.get()  # it was handed over at the last moment

    def _hand_back(self, loop: asyncio.AbstractEventLoop, call: _Call[Any]) -> None:
        self._done.append(call)
        self._tell(loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._told:
            self._told = True
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _deliver(self) -> None:
        """On the loop."""
        self._told = False
        while self._done:
            self._done.popleft().deliver()
        if self._left:
            with self._lock:
                left, self._left = self._left, 0
            for _ in range(min(left, len(self._waiting))):
                self._ask_for_thread()


_crews: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Crew]" = WeakKeyDictionary()


def _crew(loop: asyncio.AbstractEventLoop) -> _Crew:
    crew = _crews.get(loop)
    if crew is None:
        crew = _crews[loop] = _Crew()
    return crew


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
