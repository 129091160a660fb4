"""Looking at a namespace: events with their status, one event with its claims, dead letters, namespaces, new events.

Nothing here needs the classes of events or handlers. An event's status is the first that any claim gives it of:
dead_lettered, acked, claimed; else it is pending. An object that cannot be read is shown as ``unreadable`` and hides no
other; objects whose names are not names of events are left out.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.claim import Claim, State
from holdfast.bus.event import Envelope
from holdfast.bus.sessions import list_sessions
from holdfast.objects.store import Object, Store

PRECEDENCE = (State.DEAD, State.ACKED, State.CLAIMED)
PENDING = "pending"
UNREADABLE = "unreadable"
STATUSES = (*(state.value for state in PRECEDENCE), PENDING, UNREADABLE)
READS_AT_ONCE = 16
TAIL_LAG_NS = 60 * 1_000_000_000


@dataclass(frozen=True)
class Listed:
    envelope: Envelope
    status: str


@dataclass(frozen=True)
class Inspected:
    envelope: Envelope
    status: str
    claims: list[Document]


@dataclass(frozen=True)
class Namespace:
    namespace: str
    events: int
    sessions: int
    dead_letters: int
    dead_sessions: int = 0


async def names(store: Store, namespace: str) -> list[str]:
    found = [layout.name_of(key) async for key in store.keys(layout.event_folder(namespace))]
    return [name for name in found if layout.is_name(name)]


async def list_events(
    store: Store,
    namespace: str,
    ambient: Ambient,
    *,
    limit: int | None = 100,
    status: str | None = None,
    type_name: str | None = None,
) -> list[Listed]:
    """Events, the newest first. Reads events and claims as far as it must."""

    async def look(name: str) -> Listed | None:
        envelope = await read(store, namespace, name)
        if envelope is None or type_name not in (None, envelope.type):
            return None
        listed = Listed(envelope, status_of(await claims_of(store, namespace, envelope.id), ambient.clock.wall_ns()))
        return listed if status in (None, listed.status) else None

    found: list[Listed] = []
    left = (await names(store, namespace))[::-1]
    while left and (limit is None or len(found) < limit):
        some = min(READS_AT_ONCE, len(left)) if limit is None else min(READS_AT_ONCE, limit - len(found))
        now, left = left[:some], left[some:]
        found += [each for each in await map_bounded(now, look, limit=READS_AT_ONCE) if each is not None]
    return found


async def inspect(store: Store, namespace: str, event_id: str, ambient: Ambient) -> Inspected:
    """The event and its claims as they are."""
    for name in await names(store, namespace):
        if layout.event_id(name) == event_id and (envelope := await read(store, namespace, name)) is not None:
            claims = await claims_of(store, namespace, event_id)
            return Inspected(envelope, status_of(claims, ambient.clock.wall_ns()), claims)
    raise NotFound(f"no event {event_id} in namespace {namespace}", remedy="see holdfast events list")


def status_of(claims: list[Document], now_ns: int) -> str:
    readable = [claim for claim in claims if UNREADABLE not in claim]
    states = {Claim.parse(claim, key="claim").state(now_ns) for claim in readable}
    rest = PENDING if len(readable) == len(claims) else UNREADABLE
    return next((state.value for state in PRECEDENCE if state in states), rest)


def is_readable(envelope: Envelope) -> bool:
    return UNREADABLE not in envelope.extra


def check_readable(envelope: Envelope) -> None:
    if not is_readable(envelope):
        raise Corrupt(str(envelope.extra[UNREADABLE]), remedy="there is nothing in it to publish again")


async def dead_letters(store: Store, namespace: str, *, limit: int | None = 100) -> list[Document]:
    """Dead letters, the latest failure first; each with its event's ``type``, empty where the writer gave none."""
    keys = [key async for key in store.keys(layout.dead_letter_folder(namespace))]
    found = await map_bounded(keys, store.find, limit=READS_AT_ONCE)
    letters = [letter for each in found if each is not None and (letter := _letter(each)) is not None]
    return sorted(letters, key=lambda letter: str(letter.get("failed_at")), reverse=True)[:limit]


def _letter(found: Object) -> Document | None:
    """A dead letter; None for an object with another name. Its key says which event and handler it belongs to."""
    parts = found.key.removesuffix(".json").split("/")
    if len(parts) != 4 or not found.key.endswith(".json"):
        return None
    try:
        letter = codec.decode(found.body, key=found.key)
    except Corrupt as error:
        letter = {"namespace": parts[1], "last_error": f"{UNREADABLE}: {error}"}
    return {**letter, "event_id": parts[2], "handler_id": parts[3], "type": letter.get("event_type", "")}


async def letter_of(store: Store, key: str) -> Envelope:
    """The event in a dead letter."""
    found = await store.find(key)
    if found is None:
        raise NotFound(f"{key}: no such dead letter", remedy="see holdfast events dead-letters list")
    event = codec.decode(found.body, key=key).get("event")
    if not isinstance(event, dict):
        raise NotFound(f"{key}: its event was cleaned up, and the letter has no copy", remedy="drop the letter")
    return Envelope.parse(event, key=key)


async def list_namespaces(store: Store, ambient: Ambient, *, session_ttl_ms: int) -> list[Namespace]:
    """Every namespace with events or sessions; ``sessions`` counts the living."""
    found = {*await folders(store, layout.EVENTS), *await folders(store, layout.SESSIONS)}
    listed: list[Namespace] = []
    for namespace in sorted(found):
        sessions = await list_sessions(store, namespace, ambient, session_ttl_ms=session_ttl_ms)
        dead = sum(session.is_dead for session in sessions)
        listed.append(
            Namespace(
                namespace,
                events=len(await names(store, namespace)),
                sessions=len(sessions) - dead,
                dead_letters=len([key async for key in store.keys(layout.dead_letter_folder(namespace))]),
                dead_sessions=dead,
            )
        )
    return listed


async def read(store: Store, namespace: str, name: str) -> Envelope | None:
    """An event by its name; None if there is none."""
    key = layout.event_key(namespace, name)
    found = await store.find(key)
    if found is None:
        return None
    try:
        return Envelope.decode(found.body, key=key)
    except Corrupt as error:
        created_ns, event_id = layout.parse_name(name)
        return Envelope(event_id, namespace, UNREADABLE, {}, created_ns, 0, event_id, 0, extra={UNREADABLE: str(error)})


async def claims_of(store: Store, namespace: str, event_id: str) -> list[Document]:
    keys = [key async for key in store.keys(layout.claim_folder(namespace, event_id))]
    found: list[Any] = await map_bounded(keys, store.find, limit=READS_AT_ONCE) if keys else []
    return [_claim(each) for each in found if each is not None]


async def read_claim(store: Store, key: str) -> Document | None:
    """A claim by its key; None if there is none."""
    found = await store.find(key)
    return None if found is None else {"event_id": key.split("/")[-2], **_claim(found)}


async def read_letter(store: Store, key: str) -> Document | None:
    """A dead letter by its key; None if there is none."""
    found = await store.find(key)
    return None if found is None else _letter(found)


def _claim(found: Object) -> Document:
    try:
        document = codec.decode(found.body, key=found.key)
        Claim.parse(document, key=found.key)
    except Corrupt as error:
        return {"handler_id": layout.name_of(found.key), UNREADABLE: str(error)}
    return document


async def folders(store: Store, root: str) -> list[str]:
    """The names of the folders right below a root."""
    found: list[str] = []
    async for page in store.list(root, delimiter=True):
        found += [folder.removeprefix(root).removesuffix("/") for folder in page.folders]
    return found


class Tail:
    """Events of a namespace as they appear, each once, with one LIST per look.

    A look begins a minute before the look before it, by the reader's clock: an event whose publisher's clock is behind
    by less than that is seen, and one whose publisher is ahead hides no other. An event that is dated further back is
    not seen here; handlers get it all the same.
    """

    def __init__(self, store: Store, namespace: str, ambient: Ambient) -> None:
        self._store = store
        self._namespace = namespace
        self._ambient = ambient
        self._seen: set[str] = set()
        self._from = ""

    async def begin(self, *, lines: int | None, since_ns: int | None = None) -> list[Envelope]:
        """The events to begin with: the last so many, of those since a moment if one is given."""
        self._from = self._past()
        known = await names(self._store, self._namespace)
        self._seen = {name for name in known if name >= self._from}
        since = "" if since_ns is None else layout.time_name(since_ns)
        chosen = [name for name in known if name >= since]
        first = 0 if lines is None else max(0, len(chosen) - lines)
        return [each async for each in self._read(chosen[first:])]

    async def look(self) -> AsyncIterator[Envelope]:
        """What has appeared since the last look."""
        after, self._from = self._from, self._past()
        start = layout.event_key(self._namespace, after)
        keys = self._store.keys(layout.event_folder(self._namespace), after=start)
        names = [layout.name_of(key) async for key in keys]
        new = [name for name in names if name not in self._seen and layout.is_name(name)]
        self._seen = {name for name in names if name >= self._from}
        async for envelope in self._read(new):
            yield envelope

    async def _read(self, names: list[str]) -> AsyncIterator[Envelope]:
        for name in names:
            envelope = await read(self._store, self._namespace, name)
            if envelope is not None:
                yield envelope

    def _past(self) -> str:
        return layout.time_name(self._ambient.clock.wall_ns() - TAIL_LAG_NS)
