"""Sessions: one object per worker that says it is alive. For people and statistics; no claim depends on it.

A heartbeat is an if-match write over the session's own last one; a session that finds its object gone registers again.
A worker that ends removes its object; one that died is shown as dead, then pruned, by the store's own clock.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from holdfast.base import codec
from holdfast.base.clock import iso, parse_iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.base.record import Record, Timestamp
from holdfast.bus import layout
from holdfast.objects.store import CREATE, IfMatch, Object, Store, Version, Written

PRUNED_AFTER = 10
"""Time-outs after which a dead session's object is removed."""


@dataclass(frozen=True)
class SessionInfo(Record):
    WHAT = "a session"

    session_id: str
    namespace: str
    started_at: str
    last_heartbeat: Timestamp
    metadata: Annotated[dict[str, Any], BeforeValidator(lambda value: value or {})] = field(default_factory=dict)
    is_dead: Annotated[bool, Field(exclude=True)] = False

    @property
    def handlers(self) -> list[str]:
        """The handlers of this worker, as it has registered them."""
        listed = self.metadata.get("handlers")
        return [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []


class Session:
    """This worker's session. ``beat`` every so often."""

    def __init__(
        self, store: Store, namespace: str, session_id: str, ambient: Ambient, metadata: dict[str, Any] | None = None
    ) -> None:
        self._store = store
        self._ambient = ambient
        self.session_id = session_id
        self.namespace = namespace
        self._key = layout.session_key(namespace, session_id)
        self.metadata = dict(metadata or {})
        self._started_at = ""
        self._version: Version | None = None

    async def register(self) -> None:
        self._started_at = iso(self._ambient.clock.wall_ns())
        self._version = None
        await self.beat()

    async def beat(self) -> None:
        """One PUT; a second one if the object was removed."""
        for _ in range(3):
            mode = CREATE if self._version is None else IfMatch(self._version)
            match await self._store.put(self._key, codec.encode(self._document()), mode):
                case Written(version):
                    self._version = version
                    return
                case lost:
                    self._version = None if lost.current is None else lost.current.version

    async def end(self) -> None:
        await self._store.delete(self._key)
        self._version = None

    def _document(self) -> Document:
        now = iso(self._ambient.clock.wall_ns())
        info = SessionInfo(self.session_id, self.namespace, self._started_at, now, self.metadata)
        return info.document(write_id=self._ambient.ids.write_id())


async def list_sessions(store: Store, namespace: str, ambient: Ambient, *, session_ttl_ms: int) -> list[SessionInfo]:
    now_ns = ambient.clock.wall_ns()
    sessions: list[SessionInfo] = []
    async for key in store.keys(layout.session_folder(namespace)):
        found = await store.find(key)
        if found is None:
            continue
        try:
            sessions.append(_info(found, now_ns, session_ttl_ms))
        except Corrupt as error:  # one unreadable session hides no other
            metadata = {"unreadable": str(error)}
            sessions.append(SessionInfo(layout.name_of(key), namespace, "", "", metadata, is_dead=True))
    return sessions


async def prune(store: Store, namespace: str, ambient: Ambient, *, session_ttl_ms: int) -> list[str]:
    """Remove the sessions without a heartbeat for ten time-outs; the ids of those that are alive. One LIST.

    Times are the store's: a session is alive if its heartbeat is at most one time-out older than the latest heartbeat
    of any session.
    """
    written: dict[str, int] = {}
    async for page in store.list(layout.session_folder(namespace)):
        written |= {entry.key: entry.modified_ns for entry in page.entries}
    ttl_ns = session_ttl_ms * 1_000_000
    limit_ns = ambient.clock.wall_ns() - PRUNED_AFTER * ttl_ns
    gone = [key for key, modified_ns in written.items() if modified_ns < limit_ns]
    if gone:
        await store.delete_many(gone)
    newest_ns = max(written.values(), default=0)
    alive = [key for key, modified_ns in written.items() if modified_ns >= newest_ns - ttl_ns and key not in gone]
    return [layout.name_of(key) for key in alive]


def _info(found: Object, now_ns: int, ttl_ms: int) -> SessionInfo:
    info = SessionInfo.parse(codec.decode(found.body, key=found.key), key=found.key)
    return replace(info, is_dead=now_ns - parse_iso(info.last_heartbeat) > ttl_ms * 1_000_000)
