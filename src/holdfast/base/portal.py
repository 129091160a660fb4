"""Async objects for blocking code: scripts and notebooks call them through an event loop in a background thread.

    with Portal() as portal:
        store = portal.enter(objects.open("memory:"))   # a blocking view of an async object
        store.put("k", b"v")

A view forwards attributes to the async object: coroutine methods block until they are done, async iterators become
iterators, async context managers become context managers. Loop and thread are those of anyio's blocking portal, which
is usable only in the process that started it: a forked child gets ``Invalid``. A call that takes longer than its
timeout, or is interrupted by Ctrl-C, is cancelled.
"""

import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.base.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

T = TypeVar("T")

_PLAIN = (str, bytes, int, float, list, tuple, dict, type(None))


class Portal:
    """One event loop in one daemon thread, for as long as the ``with`` block lasts."""

    def __init__(self, *, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._pid = os.getpid()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self._run, name="holdfast-portal", daemon=True)
        self._started: Future[BlockingPortal] = Future()
        self._portal: BlockingPortal | None = None
        # Held while a call is submitted, and while the portal is marked as closed: a call that is submitted to a loop
        # that has stopped would never return.
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if self._thread.ident is not None:
            raise Invalid("this portal was opened already", remedy="make one Portal for each with block")
        self._thread.start()
        self._portal = self._started.result()
        return self

    def _run(self) -> None:
        """In the thread. ``anyio.from_thread.start_blocking_portal`` is not used, because its generator waits for the
        thread when it is garbage collected, also in a forked child, which has no such thread.
        """
        from anyio import run  # noqa: PLC0415  # 30 ms that async code need not spend
        from anyio.from_thread import BlockingPortal  # noqa: PLC0415  # as above

        async def serve() -> None:
            async with BlockingPortal() as portal:
                self._started.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            run(serve)
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal is None or os.getpid() != self._pid:
            return
        try:
            self.wait(self._stack.__aexit__(kind, error, trace))
        finally:
            with self._lock:
                portal, self._portal = self._portal, None
            if portal is not None:
                portal.call(portal.stop, True)  # cancels what still runs, such as calls of other threads
                self._thread.join()

    def wait(self, awaitable: Awaitable[T], *, timeout: float | None = None) -> T:
        """Run ``awaitable`` on the portal's loop and return its result. It is cancelled at the timeout."""
        future = self._submit(awaitable)
        limit = timeout if timeout is not None else self._timeout
        try:
            return _result(future, limit)
        except KeyboardInterrupt:
            future.cancel()
            raise
        except CancelledError as error:
            raise Unavailable("the call was cancelled", maybe_applied=True) from error

    def enter(self, manager: AbstractAsyncContextManager[T]) -> Any:
        """Enter an async context manager until the portal closes, and return a blocking view of what it yields."""
        entered = self.wait(self._stack.enter_async_context(manager))
        return entered if isinstance(entered, _PLAIN) else View(self, entered)

    def view(self, thing: Any) -> Any:
        """A blocking view of an async object. Plain values are returned unchanged."""
        return View(self, thing) if _has_async_surface(thing) else thing

    def _submit(self, awaitable: Awaitable[T]) -> "Future[T]":
        try:
            if os.getpid() != self._pid:
                raise Invalid("this connection was opened before a fork", remedy="connect again in the child process")
            if self._portal is not None and threading.current_thread() is self._thread:
                raise Invalid("a blocking call was made on the portal's own loop", remedy="await it instead")
            with self._lock:
                if self._portal is None:
                    raise Invalid("this connection is closed", remedy="connect again, or close it later")
                return self._portal.start_task_soon(lambda: awaitable)
        except Invalid:
            if inspect.iscoroutine(awaitable):
                awaitable.close()  # it never runs: without this, Python warns that it was never awaited
            raise


def _result(future: "Future[T]", limit: float | None) -> T:
    try:
        return future.result(limit)
    except TimeoutError:
        if future.cancel():
            raise Unavailable(f"no answer within {limit} s; the call was cancelled", maybe_applied=True) from None
    return future.result()  # it ended just now, or the call itself raised TimeoutError


class View:
    """A blocking view of one async object: its calls run on the portal's loop."""

    def __init__(self, portal: Portal, thing: Any) -> None:
        self._portal = portal
        self._thing = thing

    def __dir__(self) -> list[str]:
        """For completion in notebooks."""
        return dir(self._thing)

    def __reduce__(self) -> Any:
        raise Invalid(
            "a connection cannot be copied or sent to another process",
            remedy="send the URI or a StoreSpec, and connect there",
        )

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not callable(found) or inspect.isclass(found):
            return self._portal.view(found)
        return self._blocking(found)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._thing.__aiter__())

    def __enter__(self) -> Any:
        return self._portal.view(self._portal.wait(self._thing.__aenter__()))

    def __exit__(self, *details: Any) -> Any:
        return self._portal.wait(self._thing.__aexit__(*details))

    def __repr__(self) -> str:
        return f"<blocking view of {self._thing!r}>"

    def _blocking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*(_unwrap(arg) for arg in args), **{k: _unwrap(v) for k, v in kwargs.items()})
            if inspect.isawaitable(result):
                result = self._portal.wait(result)
            if hasattr(result, "__anext__"):
                return self._iterate(result)
            return self._portal.view(result)

        call.__name__ = getattr(function, "__name__", "call")
        call.__doc__ = function.__doc__
        return call

    def _iterate(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        while (item := self._portal.wait(_next(source))) is not _END:
            yield self._portal.view(item)


class Connection(View):
    """A view with a portal of its own: closing it closes both."""

    @classmethod
    def open(cls, manager: AbstractAsyncContextManager[Any], *, timeout: float | None = None) -> "Connection":
        portal = Portal(timeout=timeout)
        with ExitStack() as undo:
            undo.enter_context(portal)
            connection = cls(portal, _unwrap(portal.enter(manager)))
            undo.pop_all()
            return connection

    def close(self) -> None:
        """Idempotent."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *details: Any) -> None:
        self._portal.__exit__(*details)


_END = object()


async def _next(source: AsyncIterator[Any]) -> Any:
    """On the loop, because an async generator belongs to the loop of its first step."""
    return await anext(source, _END)


def _unwrap(value: Any) -> Any:
    return value._thing if isinstance(value, View) else value


def _has_async_surface(thing: Any) -> bool:
    """Whether its class has a coroutine method, or is an async iterator or an async context manager."""
    if isinstance(thing, (*_PLAIN, Coroutine)):
        return False
    kind = type(thing)
    if hasattr(kind, "__aenter__") or hasattr(kind, "__aiter__"):
        return True
    names = (name for name in dir(kind) if not name.startswith("__"))
    return any(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in names)
