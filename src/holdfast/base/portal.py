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
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractAsyncContextManager, AsyncExitStack
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

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="holdfast-portal", daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is None or self._thread is None or os.getpid() != self._pid:
            return
        try:
            self.wait(self._stack.__aexit__(kind, error, trace))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    def wait(self, awaitable: Awaitable[T], *, timeout: float | None = None) -> T:
        """Run ``awaitable`` on the portal's loop and return its result; on a time-out it is cancelled."""
        loop = self._usable_loop(awaitable)
        limit = timeout if timeout is not None else self._timeout
        future = asyncio.run_coroutine_threadsafe(_as_coroutine(awaitable), loop)
        try:
            return future.result(limit)
        except FutureTimeout:
            if future.done():  # the call itself raised TimeoutError
                raise
            future.cancel()
            raise Unavailable(f"no answer within {limit} s; the call was cancelled", maybe_applied=True) from None
        except KeyboardInterrupt:
            future.cancel()
            raise
        except CancelledError as error:
            raise Unavailable("the call was cancelled", maybe_applied=True) from error

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
            reason = Invalid("this connection is closed", remedy="use it inside its with block")
        elif threading.current_thread() is self._thread:
            reason = Invalid("a blocking call was made on the portal's own loop", remedy="await it instead")
        if reason is not None:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise reason
        if self._loop is None:
            raise Invalid("this connection is closed")
        return self._loop

    def _main(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(ready.set)
            self._loop.run_forever()


class View:
    """Blocking face of one async object. Attributes are looked up on the object; calls go through the portal."""

    def __init__(self, portal: Portal, thing: Any) -> None:
        self._portal = portal
        self._thing = thing

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


class _Exhausted(Exception):  # not an error: the end of an iterator
    """StopAsyncIteration cannot travel through a future."""


async def _next(source: AsyncIterator[T]) -> T:
    try:
        return await anext(source)
    except StopAsyncIteration:
        raise _Exhausted from None


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable


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
