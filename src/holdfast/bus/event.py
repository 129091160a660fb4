"""Typed events and their envelopes. Pure.

An event's class is a pydantic model; its type is the class's dotted lower-case name (``OrderPlaced``: ``order.placed``)
unless the class says ``type_name``. Two classes cannot have one type: the second is refused where it is declared,
unless it is the first one again, reloaded or defined anew in a notebook; then the newest counts. An envelope is the
event as it is stored: the eight fields of the specification, then ours, then unknown fields, which are kept.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from holdfast.base import codec
from holdfast.base.clock import iso, parse_iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Invalid
from holdfast.bus import layout
from holdfast.bus.errors import BadPayload, TypeTaken, UnknownEventType

DEFAULT_PRIORITY = 100
DEAD_LETTER_TYPE = "event.dead_letter"
ANY_TYPE = "*"
"""Stands for every type of event."""
MAX_TYPE_CHARS = 500

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_type(name: str) -> str:
    given: object = name
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_TYPE_CHARS or not given.isprintable():
        raise Invalid(f"{str(name)[:60]!r} is not a name for an event type", remedy="name it like order.placed")
    return given


class Event(BaseModel):
    """Base of event classes. Fields are the payload; unknown ones are an error unless a class allows them."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    type_name: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "type_name" not in cls.__dict__:
            cls.type_name = _WORD.sub(".", cls.__name__).lower()
        check_type(cls.type_name)
        _declare(cls)

    def to_payload(self) -> dict[str, Any]:
        """The fields as JSON has them; ``from_payload`` reads them back."""
        try:
            return self.model_dump(mode="json", round_trip=True)
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            raise BadPayload(f"{type(self).type_name}: it has no JSON form ({error})") from None

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        try:
            return cls.model_validate(dict(payload))
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in problem["loc"]) or "payload"
            raise BadPayload(
                f"{cls.type_name}: {where}: {problem['msg']}", remedy="publish a payload that fits the event's class"
            ) from None


_registry: dict[str, type[Event]] = {}


def _declare(cls: type[Event]) -> None:
    known = _registry.get(cls.type_name)
    if known is not None and not _is_same(known, cls):
        raise TypeTaken(
            f"{_spelled(cls)} would be the type {cls.type_name!r}, which {_spelled(known)} is",
            remedy="give one of them a type_name of its own",
        )
    _registry[cls.type_name] = cls


def _is_same(known: type[Event], cls: type[Event]) -> bool:
    """The same class, declared once more: a reload, a notebook's cell, or one file that was run and imported."""
    if known.__qualname__ != cls.__qualname__:
        return False
    return known.__module__ == cls.__module__ or _file(known) == _file(cls) != ""


def _file(cls: type[Event]) -> str:
    return str(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


def _spelled(cls: type[Event]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def event_class(type_name: str) -> type[Event]:
    """The class that declares this type, among those that the program has imported."""
    found = _registry.get(type_name)
    if found is None:
        raise UnknownEventType(
            f"no event class here is called {type_name!r}", remedy="import the module that declares it"
        )
    return found


class DeadLettered(Event):
    """Published when an event has failed for good in one handler."""

    type_name: ClassVar[str] = DEAD_LETTER_TYPE
    model_config = ConfigDict(extra="allow", frozen=True)

    event_id: str
    handler_id: str
    event_type: str = ""
    attempts: int = 0
    last_error: str | None = None


@dataclass(frozen=True)
class Envelope:
    """An event as it is stored: payload, time, lineage and delivery options."""

    id: str
    namespace: str
    type: str
    payload: dict[str, Any]
    created_ns: int
    priority: int
    root_event_id: str
    chain_depth: int
    available_ns: int | None = None
    """Not to be handed out before."""
    order_key: str | None = None
    parent_event_id: str | None = None
    extra: Document = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        return layout.event_name(self.created_ns, self.id)

    @property
    def key(self) -> str:
        return layout.event_key(self.namespace, self.name)

    @property
    def created_at(self) -> str:
        return iso(self.created_ns)

    def event(self) -> Event:
        """The payload as its class has it: ``UnknownEventType``, ``BadPayload``."""
        return event_class(self.type).from_payload(self.payload)

    def document(self) -> Document:
        document: Document = {
            **self.extra,
            "id": self.id,
            "namespace": self.namespace,
            "type": self.type,
            "payload": self.payload,
            "created_at": self.created_at,
            "priority": self.priority,
            "root_event_id": self.root_event_id,
            "chain_depth": self.chain_depth,
        }
        ours = {
            "available_at": None if self.available_ns is None else iso(self.available_ns),
            "order_key": self.order_key,
            "parent_event_id": self.parent_event_id,
        }
        return document | {name: value for name, value in ours.items() if value is not None}

    def body(self) -> bytes:
        """An event is written once under a key that holds its id, so equal bytes are the same event."""
        return codec.encode(self.document())

    @classmethod
    def parse(cls, document: Document, *, key: str) -> Self:
        try:
            event_id = str(document["id"])
            available_at, order_key = document.get("available_at"), document.get("order_key")
            payload = document["payload"]
            if not isinstance(order_key, str | None):
                raise TypeError(f"the ordering key is {type(order_key).__name__}")
            if not isinstance(payload, dict):
                raise TypeError(f"the payload is {type(payload).__name__}")
            return cls(
                id=event_id,
                namespace=str(document["namespace"]),
                type=str(document["type"]),
                payload=payload,
                created_ns=parse_iso(document["created_at"]),
                priority=int(document.get("priority", DEFAULT_PRIORITY)),
                root_event_id=str(document.get("root_event_id") or event_id),
                chain_depth=int(document.get("chain_depth", 0)),
                available_ns=None if available_at is None else parse_iso(available_at),
                order_key=order_key,
                parent_event_id=document.get("parent_event_id"),
                extra={name: value for name, value in document.items() if name not in _FIELDS},
            )
        except codec.MALFORMED as error:
            raise Corrupt(f"{key}: not an event ({error!r})") from error

    @classmethod
    def decode(cls, body: bytes, *, key: str) -> Self:
        return cls.parse(codec.decode(body, key=key), key=key)


_FIELDS = {
    "id", "namespace", "type", "payload", "created_at", "priority", "root_event_id", "chain_depth",
    "available_at", "order_key", "parent_event_id",
}  # fmt: skip
