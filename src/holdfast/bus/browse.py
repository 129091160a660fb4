"""Looking at a namespace: events with their status, one event with its claims, dead letters, namespaces, figures.

Nothing here needs the classes of events or handlers. Statistics read the digest alone. An event's status is the
first that any claim gives it of: dead_lettered, acked, claimed; else it is pending. What cannot be read is shown as
``unreadable``, and hides nothing else; what only lies among events without the name of one is passed over.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.claim import Claim, State
from holdfast.bus.digest import DigestShape
from holdfast.bus.event import Envelope
from holdfast.bus.sessions import list_sessions
from holdfast.objects.client import DOLLARS_PER_REQUEST
from holdfast.objects.store import Object, Store

PRECEDENCE = (State.DEAD, State.ACKED, State.CLAIMED)
PENDING = "pending"
UNREADABLE = "unreadable"
STATUSES = (*(state.value for state in PRECEDENCE), PENDING, UNREADABLE)
READS_AT_ONCE = 16

COSTS = {"put": 3, "get": 2}
"""Requests per event and handler where nothing goes wrong: event, claim, ack; the event's body and the boundary."""


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


@dataclass(frozen=True)
class HandlerStats:
    handler_id: str
    types: tuple[str, ...]
    open: int
    due: int
    settled: int
    """Of all events that it has looked at, those of other types included."""
    by_type: dict[str, int] = field(default_factory=dict)


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


async def inspect(store: Store, event_id: str, ambient: Ambient, *, namespace: str | None = None) -> Inspected:
    """The event and its claims as they are. Without a namespace, all are looked through."""
    for each in [namespace] if namespace is not None else await folders(store, layout.EVENTS):
        for name in await names(store, each):
            if layout.event_id(name) == event_id:
                envelope = await read(store, each, name)
                if envelope is not None:
                    claims = await claims_of(store, each, event_id)
                    return Inspected(envelope, status_of(claims, ambient.clock.wall_ns()), claims)
    where = f"namespace {namespace}" if namespace is not None else "any namespace"
    raise NotFound(f"there is no event {event_id} in {where}", remedy="see holdfast events list")


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
    """A dead letter; None for what lies there and is none by its name. Whose it is is said by where it lies."""
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


async def handler_stats(store: Store, namespace: str, ambient: Ambient) -> list[HandlerStats]:
    """What the digest says of every handler. One GET."""
    key = layout.digest_key(namespace)
    found = await store.find(key)
    if found is None:
        return []
    digest = DigestShape().read(codec.decode(found.body, key=key), key)
    now_ns = ambient.clock.wall_ns()
    return [
        HandlerStats(
            handler,
            section.types,
            open=len(section.open),
            due=section.due(now_ns),
            settled=section.settled,
            by_type=dict(Counter(item.type for item in section.open.values())),
        )
        for handler, section in sorted(digest.sections.items())
    ]


def requests_per_million(handlers: int = 1) -> dict[str, int]:
    """Requests for a million events: each published once, and claimed and acked by every handler."""
    return {
        "put": 1_000_000 * (1 + (COSTS["put"] - 1) * handlers),
        "get": 1_000_000 * COSTS["get"] * handlers,
    }


def dollars_per_million(handlers: int = 1) -> float:
    """The same at S3's prices."""
    return sum(DOLLARS_PER_REQUEST[verb] * count for verb, count in requests_per_million(handlers).items())


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
