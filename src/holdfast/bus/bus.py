"""The bus: publish, deliver and inspect the events of one namespace in a store."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from holdfast.base.codec import Document
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.bus import browse, layout, sessions, stats
from holdfast.bus.browse import Inspected, Listed, Namespace
from holdfast.bus.cleanup import Cleaned, Tell, cleanup
from holdfast.bus.errors import BadHandler
from holdfast.bus.event import DEFAULT_PRIORITY, Emission, Envelope, Event
from holdfast.bus.handler import Context, Handler
from holdfast.bus.publish import Boundary, Published, Publisher
from holdfast.bus.schedule import Schedule
from holdfast.bus.sessions import SessionInfo
from holdfast.bus.stats import HandlerStats
from holdfast.bus.worker.runner import Options, Runner, Worked
from holdfast.objects.store import Store

DAY_NS = 86_400 * 1_000_000_000
DEFAULT_NAMESPACE = "default"


class Bus:
    """One namespace. Keep it while you publish: it remembers what saves requests."""

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        namespace: str = DEFAULT_NAMESPACE,
        options: Options | None = None,
        mend: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """``mend`` publishes events of commits and runs whose writers crashed before they could."""
        self.store = store
        self.ambient = ambient
        self.namespace = layout.check_part("namespace", namespace)
        self.options = options if options is not None else Options()
        self._mend = mend
        self._publisher = Publisher(
            store,
            namespace,
            ambient,
            boundary=Boundary(store, namespace, ambient),
            max_chain_depth=self.options.max_chain_depth,
        )

    async def publish(
        self,
        event: Event,
        *,
        delay: float = 0.0,
        priority: int = DEFAULT_PRIORITY,
        key: str | None = None,
        order_key: str | None = None,
    ) -> Published:
        """Publish an event. With ``key``, once for this key, however often it is called within the retention.

        ``delay`` is in seconds. Higher ``priority`` is delivered first. Handlers that are ``ordered`` take events of
        one ``order_key`` one after the other.
        """
        emission = Emission.of(event, delay=delay, priority=priority, order_key=order_key)
        return await self._publisher.publish(emission, key=key)

    async def publish_raw(
        self,
        type_name: str,
        payload: Mapping[str, Any],
        *,
        key: str | None = None,
        parent: Envelope | None = None,
        **options: Any,
    ) -> Published:
        """As ``publish``, without the event's class."""
        emission = Emission(type_name, payload, **options)  # type: ignore[arg-type]  # copied where it is stored
        return await self._publisher.publish(emission, key=key, parent=parent)

    def runner(
        self,
        handlers: Iterable[Handler],
        *,
        schedules: Iterable[Schedule] = (),
        metadata: dict[str, Any] | None = None,
        context: Callable[[Context], Context] | None = None,
    ) -> Runner:
        given: object = handlers
        if isinstance(given, Handler):
            raise BadHandler(
                f"got the handler {given.id} where a list of handlers is expected", remedy="write [handler]"
            )
        return Runner(
            self.store,
            self.namespace,
            self.ambient,
            tuple(handlers),
            self.options,
            tuple(schedules),
            metadata or {},
            context if context is not None else _as_it_is,
            self._mend,
        )

    async def run(
        self,
        handlers: Iterable[Handler],
        *,
        schedules: Iterable[Schedule] = (),
        until_idle: bool = False,
        stop: asyncio.Event | None = None,
        grace_ms: int | None = None,
        metadata: dict[str, Any] | None = None,
        context: Callable[[Context], Context] | None = None,
    ) -> Worked:
        """Deliver events to handlers until stopped or cancelled; with ``until_idle``, until none is left to deliver.

        ``stop`` ends it gracefully: handlers may finish for ``grace_ms``, the rest is handed back. ``context`` makes
        of each context what handlers are given.
        """
        runner = self.runner(handlers, schedules=schedules, metadata=metadata, context=context)
        return await runner.run(until_idle=until_idle, stop=stop, grace_ms=grace_ms)

    async def events(
        self, *, limit: int | None = 100, status: str | None = None, type_name: str | None = None
    ) -> list[Listed]:
        return await browse.list_events(
            self.store, self.namespace, self.ambient, limit=limit, status=status, type_name=type_name
        )

    async def inspect(self, event_id: str) -> Inspected:
        return await browse.inspect(self.store, self.namespace, event_id, self.ambient)

    async def replay(self, event_id: str, *, key: str | None = None) -> Published:
        """Publish a copy with a new id and time: same type, payload and priority, a lineage of its own."""
        return await self._copy((await self.inspect(event_id)).envelope, key)

    async def _copy(self, found: Envelope, key: str | None) -> Published:
        browse.check_readable(found)
        emission = Emission(found.type, found.payload, priority=found.priority, order_key=found.order_key)
        return await self._publisher.publish(emission, key=key)

    async def replay_many(
        self, *, status: str | None = None, type_name: str | None = None, limit: int | None = None
    ) -> list[Published]:
        """Replay every event that the filter finds, oldest first."""
        chosen = await self.events(limit=limit, status=status, type_name=type_name)
        readable = [each.envelope for each in chosen if browse.is_readable(each.envelope)]
        return [await self._copy(envelope, None) for envelope in reversed(readable)]

    async def dead_letters(self, *, limit: int | None = 100) -> list[Document]:
        return await browse.dead_letters(self.store, self.namespace, limit=limit)

    async def replay_dead_letter(self, event_id: str, handler_id: str) -> Published:
        """Publish a copy of a dead event, once per dead letter, and drop the letter."""
        key = f"dead-letter\x00{event_id}\x00{handler_id}"
        place = layout.dead_letter_key(self.namespace, event_id, handler_id)
        try:
            published = await self.replay(event_id, key=key)
        except NotFound:  # the event was cleaned up; its letter has a copy
            letter = await browse.letter_of(self.store, place)
            published = await self._copy(letter, key)
        await self.store.delete(place)
        return published

    async def drop_dead_letter(self, event_id: str, handler_id: str) -> None:
        key = layout.dead_letter_key(self.namespace, event_id, handler_id)
        if await self.store.find(key) is None:
            raise NotFound(f"{key}: no such dead letter", remedy="see holdfast events dead-letters list")
        await self.store.delete(key)

    async def sessions(self) -> list[SessionInfo]:
        ttl_ms = self.options.session_ttl_ms
        return await sessions.list_sessions(self.store, self.namespace, self.ambient, session_ttl_ms=ttl_ms)

    async def namespaces(self) -> list[Namespace]:
        """All namespaces of the store."""
        return await browse.list_namespaces(self.store, self.ambient, session_ttl_ms=self.options.session_ttl_ms)

    async def stats(self) -> list[HandlerStats]:
        """What each handler has done, has still to do, and holds up."""
        ttl_ms = self.options.session_ttl_ms
        return await stats.handler_stats(self.store, self.namespace, self.ambient, session_ttl_ms=ttl_ms)

    async def retire(self, handler_id: str) -> None:
        """Remove a handler that was renamed or removed from the program, so that cleanup keeps no events for it."""
        ttl_ms = self.options.session_ttl_ms
        await stats.retire(self.store, self.namespace, handler_id, self.ambient, session_ttl_ms=ttl_ms)

    async def cleanup(
        self,
        *,
        before_ns: int | None = None,
        unsafe_unsettled: bool = False,
        dry_run: bool = False,
        tell: Tell | None = None,
    ) -> Cleaned:
        """Delete events that are older than the retention, or than ``before_ns``, and that no handler has still to do.

        ``unsafe_unsettled`` deletes the others too: those events are lost to their handlers. ``tell`` is called with
        all keys before they are deleted.
        """
        now_ns = self.ambient.clock.wall_ns()
        wanted_ns = before_ns if before_ns is not None else now_ns - int(self.options.retention_days * DAY_NS)
        if wanted_ns > now_ns:
            raise Invalid("cleanup cannot remove events of the future", remedy="give a time that has passed")
        if self._mend is not None:
            await self._mend()  # what is not published yet may be old, and must not fall below the boundary
        await sessions.prune(self.store, self.namespace, self.ambient, session_ttl_ms=self.options.session_ttl_ms)
        return await cleanup(
            self.store,
            self.namespace,
            self.ambient,
            wanted_ns,
            unsafe_unsettled=unsafe_unsettled,
            dry_run=dry_run,
            tell=tell,
        )


def _as_it_is(context: Context) -> Context:
    return context
