"""Typed events and their envelopes. Pure.

An event's class is a pydantic model; its type is the class's dotted lower-case name (``OrderPlaced``: ``order.placed``)
unless the class says ``type_name``. Two classes cannot have one type: the second is refused where it is declared,
unless it is the first one again, reloaded or defined again in a notebook; then the newest counts. An envelope is the
event as it is stored: the eight fields of the specification, then ours, then unknown fields, which are kept.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticSerializationError

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Invalid
from holdfast.base.record import UNLESS_EMPTY, Moment, Record
from holdfast.bus import layout
from holdfast.bus.errors import MAX_SECONDS, BadPayload, ChainTooDeep, TypeTaken, UnknownEventType

DEFAULT_PRIORITY = 100
DEAD_LETTER_TYPE = "event.dead_letter"
ANY_TYPE = "*"
"""Stands for every type of event."""
MAX_TYPE_CHARS = 500
_SHOWN = 60
"""Characters of a value that an error shows."""

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

    @model_validator(mode="wrap")
    @classmethod
    def _check_fields(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """``BadPayload`` for fields that do not fit."""
        try:
            return handler(data)
        except ValidationError as error:
            raise _unfit(cls, error) from None

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
        return cls.model_validate(dict(payload))


def _unfit(cls: type[Event], error: ValidationError) -> BadPayload:
    problem = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            return BadPayload(f"{cls.type_name}: {where} is missing", remedy="give it")
        case "extra_forbidden":
            fields = ", ".join(cls.model_fields) or "none"
            return BadPayload(f"{cls.type_name} has no field {where}", remedy=f"its fields: {fields}")
    found = f"{problem['input']!r}"
    found = found if len(found) <= _SHOWN else f"{found[: _SHOWN - 3]}..."
    return BadPayload(f"{cls.type_name}: {where or 'payload'}: {problem['msg']}, found {found}")


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


MAX_PRIORITY = 2**63 - 1
MAX_TEXT_BYTES = 1_024


def check_text(what: str, text: str) -> str:
    given: object = text
    try:
        if isinstance(given, str) and len(given.encode()) <= MAX_TEXT_BYTES:
            return given
    except UnicodeEncodeError:
        pass  # half a surrogate pair
    raise Invalid(f"{str(text)[:60]!r} is not {what}", remedy=f"give a text of at most {MAX_TEXT_BYTES} bytes")


@dataclass(frozen=True)
class Envelope(Record):
    """An event as it is stored: payload, time, lineage and delivery options."""

    WHAT = "an event"

    id: str
    namespace: str
    type: str
    payload: dict[str, Any]
    created_ns: Annotated[Moment, Field(alias="created_at")]
    priority: int = DEFAULT_PRIORITY
    root_event_id: Annotated[str, BeforeValidator(lambda value: value or "")] = ""
    """The event's own id where it is empty."""
    chain_depth: int = 0
    available_ns: Annotated[Moment | None, Field(alias="available_at"), UNLESS_EMPTY] = None
    """Not to be delivered before."""
    order_key: Annotated[str | None, Strict(), Field(exclude_if=lambda value: value is None)] = None
    parent_event_id: Annotated[str | None, UNLESS_EMPTY] = None

    def __post_init__(self) -> None:
        if not self.root_event_id:
            object.__setattr__(self, "root_event_id", self.id)

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

    def body(self) -> bytes:
        """An event is written once under a key that holds its id, so equal bytes are the same event."""
        return codec.encode(self.document())

    @classmethod
    def decode(cls, body: bytes, *, key: str) -> Self:
        return cls.parse(codec.decode(body, key=key), key=key)


@dataclass(frozen=True)
class Emission:
    """An event that has no id, time and place yet. Every envelope is made here."""

    type: str
    payload: dict[str, Any]
    delay: float = 0.0
    priority: int = DEFAULT_PRIORITY
    order_key: str | None = None

    def __post_init__(self) -> None:
        check_type(self.type)
        payload, delay, priority = (object.__getattribute__(self, name) for name in ("payload", "delay", "priority"))
        if not isinstance(payload, Mapping):
            raise Invalid(
                f"{self.type}: {type(payload).__name__} is not a payload", remedy="give an object with fields"
            )
        if not isinstance(delay, int | float) or not 0 <= delay < MAX_SECONDS:
            raise Invalid(f"an event cannot be delayed by {delay!r}", remedy="give seconds from now on, 0 or more")
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
            raise Invalid(f"{priority!r} is not a priority", remedy="give a whole number; higher ones come first")
        if self.order_key is not None:
            check_text("an ordering key", self.order_key)

    @classmethod
    def of(cls, event: Event, **options: Any) -> Self:
        """``options``: ``delay`` in seconds, ``priority``, ``order_key``."""
        given: object = event
        if not isinstance(given, Event):
            raise BadPayload(f"a {type(given).__name__} is not an event", remedy="give an object of a class of Event")
        payload = event.to_payload()
        codec.encode(payload)  # a payload without bytes is the caller's error, and must not fail the write that follows
        return cls(type(event).type_name, payload, **options)

    def envelope(
        self,
        namespace: str,
        event_id: str,
        created_ns: int,
        *,
        parent: Envelope | None = None,
        max_chain_depth: int | None = None,
        **extra: Any,
    ) -> Envelope:
        """The event as it is stored, as a child of ``parent`` if there is one; ``ChainTooDeep``."""
        depth = 0 if parent is None else parent.chain_depth + 1
        if parent is not None and max_chain_depth is not None and depth > max_chain_depth:
            raise ChainTooDeep(f"{self.type}: it would be {depth} emissions away from event {parent.root_event_id}")
        return Envelope(
            event_id,
            namespace,
            self.type,
            dict(self.payload),
            created_ns,
            self.priority,
            event_id if parent is None else parent.root_event_id,
            depth,
            available_ns=created_ns + int(self.delay * 1e9) if self.delay else None,
            order_key=self.order_key,
            parent_event_id=None if parent is None else parent.id,
            extra=extra,
        )
