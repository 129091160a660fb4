"""What can be done for an object that is about to be created, before it is asked for.

Its request is signed, once the loop has turned. If its name is that of its bytes, and nothing else is under way, the
request is begun at once: sent, but for the last byte of its body. The server reads it, looks who asks, and makes ready,
while here the bytes are still looked into; then the last byte is all that has to go. Without it nothing is created, as
the length and the signature say that it belongs to the body: who is not asked for closes the connection.

What many compete for is not begun. Some servers let nobody else write under a name while they read a body for it, and
whoever holds its last byte may be stopped. Of bytes that name themselves this holds up their own sender alone, for the
moment of looking.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType

from holdfast.base.clock import Clock
from holdfast.objects.cloud.http1 import Connection
from holdfast.objects.cloud.pool import Pool
from holdfast.objects.store import Addressed, Create

SIGNED_NS = 60 * 1_000_000_000
"""How long a signature is good for here; servers go by their own clocks, and take it for some minutes."""
MOST_OWED = 1_000
"""How many must be asked for, at most, before another request is begun."""


class Trust:
    """Whether requests may be begun: one that is not asked for then costs a connection, and its like will follow.

    Each that breaks its word doubles how many must keep theirs before another one is begun. So whoever spoils every
    second batch costs the others a connection in a thousand, and one mishap costs next to nothing.
    """

    def __init__(self) -> None:
        self._owed = 0
        self._penalty = 0

    def __bool__(self) -> bool:
        return not self._owed

    def kept(self) -> None:
        if self._owed:
            self._owed -= 1
        elif self._penalty:
            self._penalty -= 1

    def broken(self) -> None:
        self._penalty = self._owed = min(2 * self._penalty + 1, MOST_OWED)


class Ready:
    """Of one client."""

    def __init__(self, pool: Pool, sign: Callable[[str, bytes], bytes], clock: Clock) -> None:
        self.pool = pool
        self.sign = sign
        self.clock = clock
        self.trust = Trust()
        self.waiting: dict[str, Ahead] = {}
        """Those that nobody has taken, by path."""

    def ahead(self, path: str, body: bytes, mode: Create | Addressed) -> "Ahead":
        return Ahead(self, path, body, mode)

    def taken(self, path: str, body: bytes) -> Connection | bytes | None:
        """The connection on which it was begun, or else the head of its request, if that is ready."""
        found = self.waiting.get(path)
        if found is None or found.loop is not asyncio.get_running_loop():
            return None  # nothing of another loop may be touched from outside
        del self.waiting[path]
        return found.taken(body)


class Ahead:
    """While it is entered, an object is about to be created."""

    __slots__ = ("_body", "_connection", "_head", "_mode", "_path", "_ready", "_signed_ns", "_turn", "loop")

    def __init__(self, ready: Ready, path: str, body: bytes, mode: Create | Addressed) -> None:
        self.loop = asyncio.get_running_loop()
        self._ready = ready
        self._path = path
        self._body = body
        self._mode = mode
        self._head: bytes | None = None
        self._turn: asyncio.Handle | None = None
        self._connection: Connection | None = None

    def taken(self, body: bytes) -> Connection | bytes | None:
        self._cancel()
        if body != self._body:
            self._break()  # or it would be in the way of who asks
            return None
        if isinstance(self._mode, Addressed):  # of those that could be begun
            self._ready.trust.kept()
        begun, self._connection = self._connection, None
        head = self._head if self._is_fresh() else None
        if begun is None or (head is not None and begun.is_held()):
            return begun or head
        self._ready.pool.give_up(begun)
        return head

    def _is_fresh(self) -> bool:
        """By the clock that signatures go by, which may have been set meanwhile."""
        return self._head is not None and 0 <= self._ready.clock.wall_ns() - self._signed_ns <= SIGNED_NS

    def _make_ready(self) -> bytes:
        self._signed_ns = self._ready.clock.wall_ns()
        self._head = self._ready.sign(self._path, self._body)
        return self._head

    def _may_begin(self) -> bool:
        ready = self._ready
        return isinstance(self._mode, Addressed) and bool(self._body) and bool(ready.trust) and ready.pool.is_idle

    def _cancel(self) -> None:
        if self._turn is not None:
            self._turn.cancel()

    def _break(self) -> None:
        begun, self._connection = self._connection, None
        if begun is not None:
            self._ready.trust.broken()
            self._ready.pool.give_up(begun)

    def __enter__(self) -> None:
        if self._may_begin():
            self._connection = self._ready.pool.begin(self._make_ready(), self._body)
        else:
            self._turn = self.loop.call_soon(self._make_ready)
        other = self._ready.waiting.get(self._path)
        if other is None or other._connection is None:  # one that is begun must not be in the way of its own put
            self._ready.waiting[self._path] = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cancel()
        if self._ready.waiting.get(self._path) is self:
            self._ready.waiting.pop(self._path, None)  # unless a loop in another thread was quicker
        self._break()
