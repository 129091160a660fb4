"""Publishing: one create of an event object; with a key, a dedupe object first.

The boundary is the time up to which cleanup may have deleted events. Create-if-absent forgets deleted names. So cleanup
advances the boundary before it deletes; a worker that creates a claim reads it before it hands the event out; and a
publisher gives no event a time below the boundary that it knows. Times of one publisher only grow, so its order is
kept.

Errors: ``Invalid`` for a payload, namespace or delay that makes no sense; the store's own. ``Ambiguous`` means that the
event may have been published: with a key the call can simply be made again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.base import codec, telemetry
from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Conflict
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.event import Emission, Envelope, check_text
from holdfast.objects.register import UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.store import CREATE, Lost, Store, Written

log = telemetry.logger("bus")

BOUNDARY_FORMAT = "holdfast.bus.boundary"
TRUST_NS = 60 * 1_000_000_000
"""How old a known boundary may be when an event is dated."""


@dataclass(frozen=True)
class Published:
    """``envelope`` is in the store. ``duplicate``: an earlier publish with the same key had put it there. ``differs``:
    that one has another type or payload, so what was asked for now is not published."""

    envelope: Envelope
    duplicate: bool = False
    differs: bool = False

    @property
    def id(self) -> str:
        return self.envelope.id


class Boundary:
    """Up to when cleanup may have deleted; it never moves back."""

    def __init__(self, store: Store, namespace: str, ambient: Ambient) -> None:
        self._register: Register[Any] = Register(store, layout.boundary_key(namespace), Plain(BOUNDARY_FORMAT), ambient)
        self._ambient = ambient
        self.known_ns = 0
        self._read_ns: int | None = None

    async def read(self) -> int:
        """The boundary now."""
        found = await self._register.read()
        self.known_ns = 0 if found is None or found.value is None else parse_iso(found.value)
        self._read_ns = self._ambient.clock.monotonic_ns()
        return self.known_ns

    async def recent(self) -> int:
        """The boundary as of a minute ago at most."""
        if self._read_ns is None or self._ambient.clock.monotonic_ns() - self._read_ns > TRUST_NS:
            return await self.read()
        return self.known_ns

    async def advance(self, to_ns: int) -> int:
        def later(value: Any) -> Any | Unchanged:
            return UNCHANGED if value is not None and parse_iso(value) >= to_ns else iso(to_ns)

        await self._register.edit(self._ambient.ids.unique(), later)
        return await self.read()


_LISTENERS: WeakKeyDictionary[Store, dict[str, set[Callable[[], None]]]] = WeakKeyDictionary()


@contextmanager
def listening(store: Store, namespace: str, wake: Callable[[], None]) -> Iterator[None]:
    """Call ``wake`` whenever this process publishes into the namespace through this store."""
    listeners = _LISTENERS.setdefault(store, {}).setdefault(namespace, set())
    listeners.add(wake)
    try:
        yield
    finally:
        listeners.discard(wake)


async def put_event(store: Store, envelope: Envelope) -> bool:
    """Write the event, if it is not there; whether this call did."""
    written = isinstance(await store.put(envelope.key, envelope.body(), CREATE), Written)
    for wake in tuple(_LISTENERS.get(store, {}).get(envelope.namespace, ())):
        wake()
    return written


class Publisher:
    """Publishes into one namespace. Keep it: it remembers the boundary and its own last time."""

    def __init__(
        self, store: Store, namespace: str, ambient: Ambient, *, boundary: Boundary, max_chain_depth: int = 20
    ) -> None:
        self._store = store
        self.namespace = layout.check_part("namespace", namespace)
        self._ambient = ambient
        self._boundary = boundary
        self._max_chain_depth = max_chain_depth
        self._last_ns = 0

    async def publish(self, emission: Emission, *, key: str | None = None, parent: Envelope | None = None) -> Published:
        if key is not None:
            check_text("the key of an event", key)
        await self._boundary.recent()
        envelope = self.compose(emission, parent)
        if key is not None:
            return await self._publish_once(envelope, key)
        await self.put(envelope)
        return Published(envelope)

    def compose(self, emission: Emission, parent: Envelope | None = None) -> Envelope:
        """The event with an id and the time of now, not published."""
        event_id = layout.spelled_id(self._ambient.ids.unique())
        return emission.envelope(
            self.namespace, event_id, self._date(), parent=parent, max_chain_depth=self._max_chain_depth
        )

    async def put(self, envelope: Envelope) -> bool:
        """Write the event, if it is not there; whether this call did."""
        return await put_event(self._store, envelope)

    def _date(self) -> int:
        """Now in microseconds; later than the event before and than what cleanup may have deleted."""
        floor_ns = max(self._last_ns, self._boundary.known_ns)
        self._last_ns = max(self._ambient.clock.wall_ns() // 1000 * 1000, floor_ns + 1000)
        return self._last_ns

    async def _publish_once(self, envelope: Envelope, key: str) -> Published:
        place = layout.dedupe_key(self.namespace, key)
        document = {"key": key, "event": envelope.document(), "write_id": self._ambient.ids.write_id()}
        outcome = await self._store.put(place, codec.encode(document), CREATE)
        if not isinstance(outcome, Lost):
            await self.put(envelope)
            return Published(envelope)
        if outcome.current is None:  # cleaned up between our write and the look at it
            raise Conflict(f"{place}: vanished while key {key!r} was published", remedy="publish it again")
        earlier = codec.decode(outcome.current.body, key=place)
        first = Envelope.parse(earlier.get("event") or {}, key=place)
        if first.created_ns > await self._boundary.read():
            await self.put(first)  # the first publisher may have crashed before it wrote the event
        differs = _content(first) != _content(envelope)
        if differs:
            log.warning("key %r: taken by event %s, which has other content; nothing was published", key, first.id)
        return Published(first, duplicate=True, differs=differs)


def _content(envelope: Envelope) -> bytes:
    return codec.encode({"type": envelope.type, "payload": envelope.payload})
