"""Handlers: a function, the events it takes, and how it is called.

A handler gets a context and the event. What it emits through the context becomes visible with its ack, exactly once:
an attempt that fails emits nothing. It may be called more than once for an event (at least once): what it does
elsewhere should bear that; ``ctx.idempotency_key`` is the same for every try.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import ConfigDict

from holdfast.base.aio import in_own_thread
from holdfast.bus import layout
from holdfast.bus.claim import Retry
from holdfast.bus.errors import MAX_SECONDS, BadHandler, BadPayload, ChainTooDeep, UnknownEventType
from holdfast.bus.event import ANY_TYPE, DEFAULT_PRIORITY, Emission, Envelope, Event
from holdfast.bus.worker.claims import Claims, Hold
from holdfast.objects.store import Store

Function = Callable[[Any, Any], Any]


class AnyEvent(Event):
    """Stands for every type in ``on``; an event whose class the program does not have arrives as one of these."""

    type_name: ClassVar[str] = ANY_TYPE
    model_config = ConfigDict(extra="allow", frozen=True)


@dataclass
class Context:
    """What a handler is given besides its event."""

    store: Store
    envelope: Envelope
    handler_id: str
    session_id: str
    attempt: int
    """1 for the first try; failures before this one, plus 1."""
    max_chain_depth: int
    hold: Hold = field(repr=False)
    claims: Claims = field(repr=False)
    emissions: list[Emission] = field(default_factory=list, repr=False)

    @property
    def event_id(self) -> str:
        return self.envelope.id

    @property
    def namespace(self) -> str:
        return self.envelope.namespace

    @property
    def idempotency_key(self) -> str:
        return f"{self.envelope.id}/{self.handler_id}"

    @property
    def lost(self) -> bool:
        """Whether another worker has the event now. What this one does counts for nothing."""
        return self.hold.lost

    def finish(self) -> None:
        """The handler has returned. What it left undone is an error."""

    def emit(
        self,
        event: Event,
        *,
        delay: float = 0.0,
        priority: int = DEFAULT_PRIORITY,
        order_key: str | None = None,
    ) -> None:
        """Publish ``event`` together with the ack of this one, as its child."""
        depth = self.envelope.chain_depth + 1
        if depth > self.max_chain_depth:
            raise ChainTooDeep(
                f"{type(event).type_name}: it would be {depth} emissions away from event {self.envelope.root_event_id}"
            )
        self.emissions.append(Emission.of(event, delay=delay, priority=priority, order_key=order_key))


@dataclass(frozen=True)
class Handler:
    """What ``on`` makes of a function. Call it as before, for example in a test."""

    id: str
    types: tuple[str, ...]
    function: Function = field(repr=False)
    retry: Retry | None = None
    priority: int = DEFAULT_PRIORITY
    """Which handler of a worker gets events first: the higher."""
    concurrency: int = 8
    ordered: bool = False
    timeout: float | None = None
    """Seconds after which a try has failed."""
    durable: bool = False
    """The function is a workflow: every event is a run. It takes the platform to run it."""

    def __call__(self, ctx: Any, event: Any) -> Any:
        return self.function(ctx, event)

    async def handle(self, ctx: Context, event: Event) -> None:
        result: Any
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(ctx, event)
        else:
            result = await in_own_thread(self.function, ctx, event)
        if isinstance(result, Awaitable):
            await result

    def event_of(self, envelope: Envelope) -> Event:
        """The event as its class has it; for a handler of everything, whatever can be made of it."""
        if ANY_TYPE not in self.types:
            return envelope.event()
        try:
            return envelope.event()
        except (UnknownEventType, BadPayload):
            return AnyEvent.from_payload(envelope.payload)


def on(
    *types: type[Event],
    id: str | None = None,  # noqa: A002  # reads best where it is used
    retry: Retry | None = None,
    priority: int = DEFAULT_PRIORITY,
    concurrency: int = 8,
    ordered: bool = False,
    timeout: float | None = None,
    durable: bool = False,
) -> Callable[[Function], Handler]:
    """Make a function the handler of these events.

    Its ``id`` is module and name unless given; claims are kept under it, so a handler that is renamed starts again.
    ``ordered`` delivers events with the same ``order_key`` one after the other, oldest first. A try that takes longer
    than ``timeout`` seconds has failed; without one, a handler that hangs keeps its event, and a place of its
    ``concurrency``. ``durable`` makes the function a workflow: it is given a run's context, and its steps are done
    once, whatever crashes.
    """
    given: tuple[Any, ...] = types
    if not given or not all(inspect.isclass(each) and issubclass(each, Event) for each in given):
        raise BadHandler("on() needs the classes of the events to handle", remedy="write @on(OrderPlaced)")
    if concurrency < 1:
        raise BadHandler(f"a handler with concurrency {concurrency} would never be called")
    if timeout is not None and not 0 < timeout < MAX_SECONDS:
        raise BadHandler(f"a handler cannot be given {timeout!r} s", remedy="give seconds, or no timeout at all")

    def declare(function: Function) -> Handler:
        name = id if id is not None else _name(function)
        check_function(function, name, durable=durable)
        return Handler(
            id=layout.check_part("handler id", name),
            types=tuple(each.type_name for each in types),
            function=function,
            retry=retry,
            priority=priority,
            concurrency=concurrency,
            ordered=ordered,
            timeout=timeout,
            durable=durable,
        )

    return declare


def _name(function: Function) -> str:
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise BadHandler(f"{function!r} has no name", remedy="give the handler one: @on(..., id=...)") from None


def check_function(function: Function, name: str, *, durable: bool) -> None:
    """Whether it can be called with a context and an event, and does its work when it is."""
    if not callable(function):
        raise BadHandler(f"{function!r} cannot be called, so it handles nothing")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadHandler(f"{name} is a generator: calling it does nothing", remedy="take the yield out of it")
    if durable and not inspect.iscoroutinefunction(function):
        raise BadHandler(f"{name} cannot be durable: it is not an async function", remedy="write async def")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise BadHandler(
            f"{name}{signature} cannot be called with a context and an event: {error}",
            remedy="declare it as def handler(ctx, event)",
        ) from None
