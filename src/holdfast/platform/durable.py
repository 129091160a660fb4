"""Handlers that are workflows, and workflows that emit events: runs and bus composed.

A durable handler's body is a workflow; the run of an event is called by the event's id and the handler's. The event
stays with its claim until the run has ended: a run that sleeps or waits is handed back until it is due, a run that
fails counts as a failed try (recorded steps stay recorded), and its last failure buries the event.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.base import telemetry
from holdfast.base.clock import parse_iso
from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.bus import Context, DeadLetter, Handler, Later
from holdfast.bus.event import Emission, Envelope
from holdfast.bus.layout import check_part, spelled_id
from holdfast.bus.publish import put_event
from holdfast.objects.store import Store
from holdfast.runs import Context as RunContext
from holdfast.runs import Outcome, Workflow, workflow
from holdfast.runs.engine.outbox import carried_by
from holdfast.runs.layout import MAX_RUN_ID_BYTES

log = telemetry.logger("platform")

SHORTEST_WAIT_S = 1.0
LONGEST_WAIT_S = 3_600.0
_MICROSECOND = 1_000


class RunFailed(Exception):
    """The run of a durable handler has failed."""


class BusCourier:
    """Brings what steps emit to the bus."""

    def __init__(
        self, store: Store, ambient: Ambient, parent: Envelope | None = None, max_chain_depth: int | None = None
    ) -> None:
        """``parent`` is the event that a durable handler's run belongs to."""
        self._store = store
        self._ambient = ambient
        self._parent = parent
        self._max_chain_depth = max_chain_depth
        self._last_ns = 0

    def compose(self, event: Any, event_id: str, options: dict[str, Any]) -> Document:
        namespace = check_part("namespace", str(options.pop("namespace", "default")))
        emission = Emission.of(event, **options)
        now_ns = self._ambient.clock.wall_ns() // _MICROSECOND * _MICROSECOND
        self._last_ns = created_ns = max(now_ns, self._last_ns + _MICROSECOND)
        return emission.envelope(
            namespace,
            spelled_id(event_id),
            created_ns,
            parent=self._parent,
            max_chain_depth=self._max_chain_depth,
        ).document()

    async def publish(self, documents: Sequence[Document]) -> None:
        for document in documents:
            envelope = Envelope.parse(document, key="outbox of a step")
            await put_event(self._store, envelope)


def run_id_of(event_id: str, handler_id: str) -> str:
    """The run of one event in one durable handler."""
    ident = f"{event_id}.{handler_id}"
    if len(ident.encode()) <= MAX_RUN_ID_BYTES:
        return ident
    return f"{event_id}.{hashlib.sha256(handler_id.encode()).hexdigest()}"


def as_runs(handlers: Iterable[Handler], store: Store, ambient: Ambient) -> Iterable[Handler]:
    """The handlers; those that are durable with a workflow as their function. Other objects are left for the runner to
    refuse.
    """
    given: object = handlers
    return handlers if isinstance(given, Handler) else [as_run(handler, store, ambient) for handler in handlers]


def as_run(handler: Handler, store: Store, ambient: Ambient) -> Handler:
    """The handler, with its body as a workflow if it is durable."""
    given: object = handler
    if not (isinstance(given, Handler) and given.durable):
        return handler
    flow = _workflow(handler)

    async def handle(ctx: Context, event: Any) -> None:
        run_id = run_id_of(ctx.event_id, handler.id)
        with carried_by(BusCourier(store, ambient, ctx.envelope, ctx.max_chain_depth)):
            outcome = await flow.start(store, ctx.envelope.document(), run_id=run_id)
            if outcome.status == "failed" and outcome.finished and ctx.attempt > 1:
                outcome = await flow.retry_failed(store, run_id)
        _judge(outcome, ctx)

    return replace(handler, function=handle, durable=False)


def _workflow(handler: Handler) -> Workflow:
    async def body(run: RunContext, document: Document) -> None:
        try:
            await handler.function(run, handler.event_of(Envelope.parse(document, key=run.run_id)))
        except SystemExit as error:  # it would end the worker, and this event alone has failed
            raise RunFailed(f"SystemExit: {error}") from error

    name = "".join("-" if mark in "#[]/" else mark for mark in handler.id)
    return workflow(name=name)(body)


def _judge(outcome: Outcome, ctx: Context) -> None:
    """Return if the run has succeeded; otherwise raise what the runner should do with the event."""
    match outcome.status:
        case "success":
            return
        case "cancelled":
            raise DeadLetter(f"run {outcome.run_id} was cancelled")
        case "failed" if outcome.finished:
            raise RunFailed(outcome.error or f"run {outcome.run_id} has failed")
    if outcome.wake_at_ns is not None:
        raise Later(until_ns=outcome.wake_at_ns)
    # The run waits for an event: look again after as long as it has waited so far.
    waited_s = (ctx.hold.claim.claimed_ns - parse_iso(ctx.envelope.created_at)) / 1e9
    raise Later(seconds=min(max(waited_s, SHORTEST_WAIT_S), LONGEST_WAIT_S))
