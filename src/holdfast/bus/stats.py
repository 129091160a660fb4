"""What each handler of a namespace has done and has still to do, and retiring a handler that is gone.

A handler has a section in the digest from its worker's first poll on. A handler that was renamed or removed from the
program keeps its section, and cleanup keeps the events that this section does not count as settled. ``retire`` removes
the section. A worker that starts with the handler again begins a new one: it reads all events that are left, and its
claims say which of them it has handled.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from holdfast.base.clock import iso
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.sessions import list_sessions
from holdfast.bus.worker.digest import Digest, DigestShape, Section, is_settled
from holdfast.objects.register import UNCHANGED, Register, Unchanged
from holdfast.objects.store import Store


@dataclass(frozen=True)
class HandlerStats:
    handler_id: str
    types: tuple[str, ...]
    open: int
    due: int
    closed: int
    """Events that its workers have read and that are not open: handled, dead, or of types that it does not take."""
    by_type: dict[str, int] = field(default_factory=dict)
    workers: int = 0
    """Workers with this handler that are alive."""
    last_seen: str = ""
    """When a worker with this handler last wrote what it knows."""
    oldest: str | None = None
    """The time of the oldest event that the handler is not done with. Cleanup keeps this event and later ones."""

    @property
    def is_holding(self) -> bool:
        """Whether events wait for this handler and no worker has it: it was renamed, removed, or is not running."""
        return not self.workers and self.oldest is not None


def digest_register(store: Store, namespace: str, ambient: Ambient) -> Register[Digest]:
    return Register(store, layout.digest_key(namespace), DigestShape(), ambient)


async def handler_stats(store: Store, namespace: str, ambient: Ambient, *, session_ttl_ms: int) -> list[HandlerStats]:
    """Every handler that the digest knows. One GET, one LIST per handler, and the sessions."""
    found = await digest_register(store, namespace, ambient).read()
    if found is None:
        return []
    now_ns = ambient.clock.wall_ns()
    sessions = await list_sessions(store, namespace, ambient, session_ttl_ms=session_ttl_ms)
    workers = Counter(each for session in sessions if not session.is_dead for each in session.handlers)
    return [
        HandlerStats(
            handler,
            section.types,
            open=len(section.open),
            due=section.due(now_ns),
            closed=section.settled,
            by_type=dict(Counter(item.type for item in section.open.values())),
            workers=workers[handler],
            last_seen=iso(section.seen_ns),
            oldest=await _oldest(store, namespace, section),
        )
        for handler, section in sorted(found.value.sections.items())
    ]


async def _oldest(store: Store, namespace: str, section: Section) -> str | None:
    """The time of the first event that the section does not count as settled."""
    first = min(section.open, default=None)
    after = layout.event_key(namespace, section.cursor) if section.cursor else None
    async for key in store.keys(layout.event_folder(namespace), after=after):
        name = layout.name_of(key)
        if layout.is_name(name) and not is_settled(section, name):
            first = name if first is None else min(first, name)
            break
    return None if first is None else iso(layout.created_ns(first))


async def retire(store: Store, namespace: str, handler_id: str, ambient: Ambient, *, session_ttl_ms: int) -> None:
    """Remove a handler that no living worker has: what it has not done is not kept for it any more."""
    sessions = await list_sessions(store, namespace, ambient, session_ttl_ms=session_ttl_ms)
    busy = [each.session_id for each in sessions if not each.is_dead and handler_id in each.handlers]
    if busy:
        raise Invalid(
            f"handler {handler_id} of namespace {namespace} cannot be retired: worker {busy[0]} has it",
            remedy="stop the worker, or deploy it without the handler, and retire it then",
        )

    def without(digest: Digest | None) -> Digest | Unchanged:
        if digest is None or handler_id not in digest.sections:
            return UNCHANGED
        return replace(digest, sections={name: each for name, each in digest.sections.items() if name != handler_id})

    register = digest_register(store, namespace, ambient)
    known = await register.read()
    if known is None or handler_id not in known.value.sections:
        raise NotFound(
            f"namespace {namespace} has no handler {handler_id}", remedy="see holdfast events handlers for the names"
        )
    await register.edit(ambient.ids.unique(), without)
