"""The backend port of one simulated process: every verb is a request over the wire to the one true store.

The truth is a ``MemoryStore``, whose semantics the laws check. A process's port can be revoked, for a process that
crashed and for a world that has ended; its use then raises ``Crashed``, which no handler of ordinary errors catches.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import (
    OVERWRITE,
    Lost,
    Meta,
    Mode,
    NotModified,
    Object,
    Overwrite,
    Page,
    Part,
    Store,
    Version,
    Written,
)
from holdfast.sim.wire import Wire

T = TypeVar("T")

OnChange = Callable[[str, str, bytes | None, str | None], None]
"""Called for every change: the process, the key, the new bytes and their version, or None for a delete."""


class Crashed(BaseException):
    """The process that asks is dead. Raised only in tasks that are being discarded at the end of a world."""


class SimStore(Store):
    def __init__(self, process: str, truth: MemoryStore, wire: Wire, on_change: OnChange) -> None:
        self.revoked = False
        self._process = process
        self._truth = truth
        self._wire = wire
        self._on_change = on_change

    async def get(self, key: str) -> Object:
        return await self._ask("get", key, lambda: at_once(self._truth.get(key)))

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        return await self._ask("get", key, lambda: at_once(self._truth.get_unless(key, version)), version)

    async def head(self, key: str) -> Meta:
        return await self._ask("head", key, lambda: at_once(self._truth.head(key)))

    async def range(self, key: str, start: int, end: int) -> Part:
        return await self._ask("range", key, lambda: at_once(self._truth.range(key, start, end)), f"{start} to {end}")

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        def effect() -> Written | Lost:
            outcome = at_once(self._truth.put(key, body, mode))
            if isinstance(outcome, Written):
                self._on_change(self._process, key, body, outcome.version)
            return outcome

        return await self._ask("put", key, effect, mode, writes=True, conditional=not isinstance(mode, Overwrite))

    async def delete(self, key: str) -> None:
        await self._ask("delete", key, partial(self._remove, [key]), writes=True)

    async def delete_many(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        await self._ask("delete", f"{len(wanted)} keys", partial(self._remove, wanted), writes=True)

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        """Every page is a request of its own, so writes of others land between pages."""
        last, more = after, True
        while more:
            effect = partial(self._page, prefix, last, delimiter)
            page, more = await self._ask("list", prefix, effect, last)
            last = max((*(entry.key for entry in page.entries[-1:]), *page.folders[-1:], last or ""))
            yield page

    def _page(self, prefix: str, after: str | None, delimiter: bool) -> tuple[Page, bool]:
        """One page as of now, and whether there is more. A page may be short; it may even be empty before the end."""
        size = self._wire.page_size()
        if size == 0:
            return Page(()), True
        source = MemoryStore(self._truth.shelf, page_size=size)
        return at_once(_first_of(source.list(prefix, after=after, delimiter=delimiter)))

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            present = key in self._truth.shelf.objects
            at_once(self._truth.delete(key))
            if present:
                self._on_change(self._process, key, None, None)

    async def _ask(
        self,
        verb: str,
        key: str,
        effect: Callable[[], T],
        detail: object = None,
        *,
        writes: bool = False,
        conditional: bool = False,
    ) -> T:
        if self.revoked:
            raise Crashed
        answer: T = await self._wire.send(
            self._process, verb, key, effect, detail=detail, writes=writes, conditional=conditional
        )
        return answer


async def _first_of(pages: AsyncIterator[Page]) -> tuple[Page, bool]:
    first = await anext(pages)
    return first, [page async for page in pages] != []


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, such as every one of ``MemoryStore``."""
    try:
        call.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise RuntimeError("the true store must answer at once")
