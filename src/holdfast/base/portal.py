"""The portal: async objects for blocking code, through one background loop.

    with Portal() as portal:
        store = portal.enter(objects.open("memory:"))   # a blocking view of an async object
        store.put("k", b"v")

A blocking view is made on the fly, not mirrored by hand: coroutine methods block until they are done, async iterators
become iterators, async context managers become context managers. The portal belongs to the process that made it; in a
forked child it refuses to work, because its thread did not come along. A call that times out is cancelled.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.base.errors import Invalid, Unavailable

T = TypeVar("T")

_PLAIN = (str, bytes, int, float, list, tuple, dict, type(None))


class Portal:
    """One loop in one daemon thread, for as long as the ``with`` block lasts."""

    def __init__(self, *, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stack = AsyncExitStack()
        self._waiting: dict[Future[Any], Coroutine[Any, Any, Any]] = {}

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise Invalid("this portal is open already", remedy="make one Portal for each with block")
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._main, args=(started,), name="holdfast-portal", daemon=True)
        self._thread.start()
        self._loop = started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is None or self._thread is None or os.getpid() != self._pid:
            return
        try:
            self.wait(self._stack.__aexit__(kind, error, trace))
        finally:
            loop, self._loop = self._loop, None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._dismiss()

    def wait(self, awaitable: Awaitable[T], *, timeout: float | None = None) -> T:
        """Run ``awaitable`` on the portal's loop and return its result; on a time-out it is cancelled."""
        loop = self._usable_loop(awaitable)
        limit = timeout if timeout is not None else self._timeout
        future = self._submit(awaitable, loop)
        try:
            return _result(future, limit)
        except KeyboardInterrupt:
            future.cancel()
            raise
        except CancelledError as error:
            raise Unavailable("the call was cancelled", maybe_applied=True) from error
        finally:
            self._waiting.pop(future, None)

    def enter(self, manager: AbstractAsyncContextManager[T]) -> Any:
        """Enter an async context manager for the portal's life; a blocking view of what it gives.

        The view is made even of an object without async methods: what hangs below it may have some.
        """
        entered = self.wait(self._stack.enter_async_context(manager))
        return entered if isinstance(entered, _PLAIN) else View(self, entered)

    def view(self, thing: Any) -> Any:
        """A blocking view of an async object; plain values pass through unchanged."""
        return View(self, thing) if _has_async_surface(thing) else thing

    def _usable_loop(self, awaitable: Awaitable[Any]) -> asyncio.AbstractEventLoop:
        reason = None
        if os.getpid() != self._pid:
            reason = Invalid("this connection was opened before a fork", remedy="connect again in the child process")
        elif self._loop is None:
            reason = Invalid("this connection is closed", remedy="connect again, or close it later")
        elif threading.current_thread() is self._thread:
            reason = Invalid("a blocking call was made on the portal's own loop", remedy="await it instead")
        if reason is not None:
            _close_unstarted(awaitable)
            raise reason
        if self._loop is None:
            raise Invalid("this connection is closed")
        return self._loop

    def _submit(self, awaitable: Awaitable[T], loop: asyncio.AbstractEventLoop) -> Future[T]:
        call = awaitable if inspect.iscoroutine(awaitable) else _as_coroutine(awaitable)
        try:
            future = asyncio.run_coroutine_threadsafe(call, loop)
        except RuntimeError as error:  # the loop was closed since we looked
            _close_unstarted(call)
            raise Invalid("this connection is closed", remedy="connect again, or close it later") from error
        self._waiting[future] = call
        if self._loop is None and self._thread is not None:  # closed since we looked: it may not have seen this call
            self._thread.join()
            self._dismiss()
        return future

    def _dismiss(self) -> None:
        """End the calls of other threads that came when the loop was stopping: nobody else would ever answer them."""
        for future, call in self._waiting.copy().items():
            with suppress(InvalidStateError):  # answered after all
                future.set_exception(Unavailable("the connection was closed during the call", maybe_applied=True))
            _close_unstarted(call)

    def _main(self, started: "Future[asyncio.AbstractEventLoop]") -> None:
        try:
            runner = asyncio.Runner()
            loop = runner.get_loop()
        except BaseException as error:  # noqa: BLE001  # whoever waits for the start must hear of it
            started.set_exception(error)
            return
        with runner:
            loop.call_soon(started.set_result, loop)
            loop.run_forever()


def _result(future: "Future[T]", limit: float | None) -> T:
    try:
        return future.result(limit)
    except FutureTimeout:
        if future.cancel():
            raise Unavailable(f"no answer within {limit} s; the call was cancelled", maybe_applied=True) from None
    return future.result()  # it ended at the last moment; or it was the call itself that raised TimeoutError


class View:
    """Blocking face of one async object. Attributes are looked up on the object; calls go through the portal."""

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
        return self._walk(self._thing.__aiter__())

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
                return self._walk(result)
            return self._portal.view(result)

        call.__name__ = getattr(function, "__name__", "call")
        call.__doc__ = function.__doc__
        return call

    def _walk(self, source: AsyncIterator[Any]) -> Iterator[Any]:
        while True:
            try:
                item = self._portal.wait(_next(source))
            except _Exhausted:
                return
            yield self._portal.view(item)


class Connection(View):
    """The view of something that a portal of its own was opened for: closing it ends both."""

    @classmethod
    def open(cls, manager: AbstractAsyncContextManager[Any], *, timeout: float | None = None) -> "Connection":
        portal = Portal(timeout=timeout)
        with ExitStack() as undo:
            undo.enter_context(portal)
            connection = cls(portal, _unwrap(portal.enter(manager)))
            undo.pop_all()
            return connection

    def close(self) -> None:
        """End it. Closing it again does nothing."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *details: Any) -> None:
        self._portal.__exit__(*details)


class _Exhausted(Exception):  # not an error: the end of an iterator
    """StopAsyncIteration cannot travel through a future."""


async def _next(source: AsyncIterator[T]) -> T:
    try:
        return await anext(source)
    except StopAsyncIteration:
        raise _Exhausted from None


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


def _close_unstarted(call: Awaitable[Any]) -> None:
    if inspect.iscoroutine(call) and inspect.getcoroutinestate(call) == inspect.CORO_CREATED:
        call.close()


def _unwrap(value: Any) -> Any:
    return value._thing if isinstance(value, View) else value


def _has_async_surface(thing: Any) -> bool:
    """True for objects with a coroutine method, an async iterator or an async context manager of their own."""
    if isinstance(thing, (*_PLAIN, Coroutine)):
        return False
    kind = type(thing)
    if hasattr(kind, "__aenter__") or hasattr(kind, "__aiter__"):
        return True
    names = (name for name in dir(kind) if not name.startswith("__"))
    return any(inspect.iscoroutinefunction(getattr(kind, name, None)) for name in names)
