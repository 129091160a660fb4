"""Threads of a loop, and how a call gets to one and its answer back. ``aio`` is the door; this is what is behind it.

To hand each call to the loop's executor, and each answer back, costs more than most calls: see ``Crew``.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from holdfast.base.errors import Invalid

R = TypeVar("R")

MOST_THREADS = 32
"""Of one loop at a time; its executor may have fewer."""
LINGER_SECONDS = 0.002
"""How long a thread without work stays for the next call, before it goes back to the executor."""
TURN_CALLS = 64
"""How many calls a thread takes before others that want the executor's threads have a chance."""


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


class Call(Generic[R]):
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

    def run(self, hand_back: "Callable[[Call[Any]], None]") -> None:
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

    def _hand_later(self, later: Later[R], hand_back: "Callable[[Call[Any]], None]") -> None:
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
        self._call: Call[Any] | None = None
        self._ready = threading.Lock()
        self._ready.acquire()

    def put(self, call: Call[Any]) -> None:
        self._call = call
        self._ready.release()

    def get(self, timeout: float = -1) -> Call[Any] | None:
        """None if nothing came in time."""
        if not self._ready.acquire(timeout=timeout):
            return None
        call, self._call = self._call, None
        return call


class Crew:
    """Threads of one loop's executor, which take calls one after the other.

    To hand each call to the executor, and each answer back, costs more than most calls. So a thread stays a moment for
    the next call, the last to come is the first to be handed one, and answers that are ready go back together. The
    executor is not ours: after ``TURN_CALLS`` a thread goes back to it, and comes again when it is its turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Call[Any]] = deque()
        """There is a thread on its way for each of them, up to ``MOST_THREADS``."""
        self._idle: list[_Desk] = []
        """Where threads without work are handed a call."""
        self._turns = 0
        """Threads that were asked for and have not left."""
        self._left = 0
        """Those among them that left although calls may be waiting."""
        self._done: deque[Call[Any]] = deque()
        self._told = False
        """The loop is about to look at what is done."""

    def take(self, call: Call[Any]) -> None:
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

    def _next(self, mine: "_Desk") -> Call[Any] | None:
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

    def _hand_back(self, loop: asyncio.AbstractEventLoop, call: Call[Any]) -> None:
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


_crews: "WeakKeyDictionary[asyncio.AbstractEventLoop, Crew]" = WeakKeyDictionary()


def crew_of(loop: asyncio.AbstractEventLoop) -> Crew:
    crew = _crews.get(loop)
    if crew is None:
        crew = _crews[loop] = Crew()
    return crew
