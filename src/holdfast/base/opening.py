"""What ``holdfast.open`` returns: it can be entered with ``async with``, or awaited and closed later.

async with holdfast.open(uri) as hf: ...

hf = await holdfast.open(uri)
...
await hf.close()
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from holdfast.base.errors import Invalid


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Opening(AbstractAsyncContextManager[T], Awaitable[T]):
    """``opened`` opens the object; if it fails, it leaves nothing open."""

    def __init__(self, opened: Callable[[], Awaitable[T]]) -> None:
        self._open = opened
        self._thing: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        if self._thing is not None:
            raise Invalid("it is open already", remedy="open it once for each async with block")
        self._thing = await self._open()
        return self._thing

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thing, self._thing = self._thing, None
        if thing is not None:
            await thing.close()

    if not TYPE_CHECKING:  # type checkers report these mistakes themselves, unless they see these methods

        def __enter__(self) -> NoReturn:
            raise TypeError("this is opened by 'async with' or 'await'; for blocking code there is holdfast.connect")

        def __exit__(self, *_: object) -> None:
            """Never called: ``__enter__`` raises."""

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"no {name!r} before it is open: use 'async with' or 'await', or holdfast.connect")
