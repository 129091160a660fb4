"""``holdfast events``: publish, list, replay and clean up events. No command needs the classes of events."""

import asyncio
import json
from typing import Annotated, Any

import typer

from holdfast.base.clock import iso
from holdfast.base.errors import Invalid, NotFound
from holdfast.bus import Envelope
from holdfast.bus.browse import STATUSES, Tail
from holdfast.bus.event import DEFAULT_PRIORITY
from holdfast.bus.stats import HandlerStats
from holdfast.cli import options
from holdfast.cli.output import json_text
from holdfast.cli.shell import Shell, noun_app

app = noun_app()
letters_app = noun_app()
app.add_typer(letters_app, name="dead-letters", help="List, replay or drop events that have failed for good.")

EventId = Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")]
LetterId = Annotated[str | None, typer.Argument(metavar="EVENT_ID", help="The event that failed.")]
HandlerId = Annotated[str | None, typer.Option("--handler", metavar="ID", help="Only dead letters of this handler.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the namespace.")]
TypeName = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.")]
Status = Annotated[str | None, options.choice("--status", STATUSES, "Only events with this status", metavar="STATUS")]


@app.command()
async def publish(
    shell: Shell,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="The event's type, such as order.placed.")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="A JSON object.")] = "{}",
    namespace: options.Namespace = "default",
    delay: Annotated[int | None, options.span("--delay", "Hand the event out after this time: 90s, 30m, 2h.")] = None,
    priority: Annotated[
        int, typer.Option(metavar="N", help="Events with a higher priority are handed out first.")
    ] = DEFAULT_PRIORITY,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Publish once for this key.")] = None,
    order_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Ordered handlers take events with one key in order.")
    ] = None,
) -> None:
    """Publish an event. Prints its id."""
    fields = parse_payload(payload)
    async with shell.open(new=True) as hf:
        published = await hf.bus(namespace).publish_raw(
            type_name, fields, delay=(delay or 0) / 1e9, priority=priority, key=key, order_key=order_key
        )
    answer = {"duplicate": published.duplicate, "differs": published.differs}
    shell.out.line(published.id, document={**published.envelope.document(), **answer})
    if published.differs:
        shell.out.note(
            "this key was taken by the event above, which has another type or payload: it stays as it is, and "
            "nothing was published now; see holdfast events inspect, or use another key"
        )
    elif published.duplicate:
        shell.out.note("this key was published before")


def parse_payload(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Invalid(f"the payload is not JSON: {error}", remedy="""quote it: '{"order_id": "o1"}'""") from error
    if not isinstance(value, dict):
        raise Invalid("the payload must be a JSON object", remedy="""write it like '{"order_id": "o1"}'""")
    return value


@app.command("list")
async def list_events(
    shell: Shell,
    namespace: options.Namespace = "default",
    status: Status = None,
    type_name: TypeName = None,
    limit: options.Limit = 100,
) -> None:
    """List events with their status, the newest first."""
    async with shell.open() as hf:
        found = await hf.bus(namespace).events(limit=limit, status=status, type_name=type_name)
    results = [{**each.envelope.document(), "status": each.status} for each in found]
    columns = {"id": "id", "type": "type", "status": "status", "priority": "priority", "created": "created_at"}
    empty = f"no events in namespace {namespace}" + (" match" if status or type_name else "")
    shell.out.table(results, columns, empty=empty)


@app.command()
async def inspect(shell: Shell, event_id: EventId, namespace: options.Namespace = "default") -> None:
    """Show one event and the claims of its handlers."""
    async with shell.open() as hf:
        found = await hf.bus(namespace).inspect(event_id)
    document = {**found.envelope.document(), "status": found.status}
    if shell.out.as_json:
        shell.out.document({**document, "claims": found.claims})
        return
    shell.out.record({**document, "payload": json_text(found.envelope.payload)})
    if not found.claims:
        shell.out.note("no handler has claimed it yet")
        return
    shell.out.line("")
    shell.out.table(
        found.claims,
        ("handler_id", "generation", "attempts", "lease_until", "ack_at", "dead_lettered_at", "last_error"),
    )


@app.command()
async def replay(
    shell: Shell,
    event_id: Annotated[str | None, typer.Argument(metavar="EVENT_ID", help="One event.")] = None,
    namespace: options.Namespace = "default",
    status: Status = None,
    type_name: TypeName = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many to publish at most, the newest.")
    ] = None,
) -> None:
    """Publish copies of events, with ids and times of their own: one, or all that a filter finds."""
    if (event_id is None) == (status is None and type_name is None):
        raise Invalid("name one event, or say which with --status or --type", remedy="see holdfast events list")

    async with shell.open() as hf:
        bus = hf.bus(namespace)
        if event_id is not None:
            published = [await bus.replay(event_id)]
        else:
            published = await bus.replay_many(status=status, type_name=type_name, limit=limit)
    if shell.out.as_json:
        shell.out.document([each.envelope.document() for each in published])
    elif not published:
        shell.out.note(f"no events in namespace {namespace} match: nothing was replayed")
    for each in published:
        shell.out.line(each.id)


@app.command()
async def sessions(shell: Shell, namespace: options.Namespace = "default") -> None:
    """List the workers of a namespace and their last heartbeats."""
    async with shell.open() as hf:
        found = await hf.bus(namespace).sessions()
    columns = ("session_id", "started_at", "last_heartbeat", "is_dead", "metadata")
    shell.out.table(found, columns, empty=f"namespace {namespace} has no workers")


@app.command()
async def namespaces(shell: Shell) -> None:
    """List all namespaces with their events, workers and dead letters."""
    async with shell.open() as hf:
        found = await hf.bus().namespaces()
    columns = ("namespace", "events", "sessions", "dead_sessions", "dead_letters")
    shell.out.table(found, columns, empty="there are no namespaces yet: nothing was published")


@app.command()
async def cleanup(
    shell: Shell,
    namespace: options.Namespace = "default",
    before: Annotated[
        int | None,
        options.moment("--before", "Remove events older than this: 7d, or ISO 8601 (default: the retention)."),
    ] = None,
    unsafe_unsettled: Annotated[
        bool, typer.Option("--unsafe-unsettled", help="Also remove events that a handler has not handled yet.")
    ] = False,
    dry_run: options.DryRun = False,
) -> None:
    """Remove old events that every handler is done with, and their claims."""
    async with shell.open() as hf:
        done = await hf.bus(namespace).cleanup(before_ns=before, unsafe_unsettled=unsafe_unsettled, dry_run=dry_run)
    counts = {"events": done.events, "claims": done.claims, "keys": done.keys, "held": done.held}
    shell.out.record({**counts, "held_by": done.held_by, "before": iso(done.before_ns), "dry_run": dry_run})
    if done.held_by:
        shell.out.note(
            f"{done.held} old events stay, because of handlers that are not done with the first of them: "
            f"{', '.join(done.held_by)}; see holdfast events handlers"
        )
    elif done.held:
        shell.out.note(f"{done.held} old events stay: no handler has read namespace {namespace} yet")


@app.command()
async def tail(
    shell: Shell,
    namespace: options.Namespace = "default",
    interval: options.Interval = 1.0,
    lines: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Begin with the latest N events (default 10; with --since all)."),
    ] = None,
    since: Annotated[
        int | None, options.moment("--since", "Begin with events since then: 30m, 2h, or ISO 8601.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the first poll.")] = False,
) -> None:
    """Print events as they are published, after the latest few. Each poll is one LIST."""

    def show(envelope: Envelope) -> None:
        text = f"{envelope.created_at[:23]}  {envelope.id}  {envelope.type}  {json_text(envelope.payload)}"
        shell.out.line(text, document=envelope.document())

    async with shell.open() as hf:
        first = 10 if lines is None and since is None else lines
        tail = Tail(hf.store, namespace, hf.ambient)
        for envelope in await tail.begin(lines=first, since_ns=since):
            show(envelope)
        while not once:
            await asyncio.sleep(interval)
            async for envelope in tail.look():
                show(envelope)


@app.command()
async def handlers(shell: Shell, namespace: options.Namespace = "default") -> None:
    """List the handlers of a namespace, their workers, and the oldest event that each has not handled."""
    columns = ("handler_id", "types", "workers", "last_seen", "oldest")
    await _show_handlers(shell, namespace, columns)


@app.command()
async def stats(shell: Shell, namespace: options.Namespace = "default") -> None:
    """Show how many events each handler has still to handle.

    open: events to handle; due: those that may be tried now; closed: events that were read and are handled, dead, or
    of types that the handler does not take.
    """
    await _show_handlers(shell, namespace, ("handler_id", "types", "open", "due", "closed"))


async def _show_handlers(shell: Shell, namespace: str, columns: tuple[str, ...]) -> None:
    async with shell.open() as hf:
        found: list[HandlerStats] = await hf.bus(namespace).stats()
    shell.out.table(found, columns, empty=f"no handler has read namespace {namespace} yet")
    for each in found:
        if each.is_holding:
            shell.out.note(
                f"no worker has the handler {each.handler_id}, and cleanup keeps all events since {each.oldest} for "
                f"it: start a worker that has it, or run holdfast events retire {each.handler_id}"
            )


@app.command()
async def retire(
    shell: Shell,
    handler_id: Annotated[
        str, typer.Argument(metavar="HANDLER_ID", help="The handler's id, as `events handlers` lists it.")
    ],
    namespace: options.Namespace = "default",
) -> None:
    """Remove a handler that no worker has any more: cleanup keeps no events for it."""
    async with shell.open() as hf:
        await hf.bus(namespace).retire(handler_id)
    shell.out.record({"retired": handler_id, "namespace": namespace})


# --- dead letters ---


@letters_app.command("list")
async def list_letters(shell: Shell, namespace: options.Namespace = "default", limit: options.Limit = 100) -> None:
    """List dead letters, the latest failure first."""
    async with shell.open() as hf:
        found = await hf.bus(namespace).dead_letters(limit=limit)
    columns = ("event_id", "handler_id", "type", "attempts", "failed_at", "last_error")
    shell.out.table(found, columns, empty=f"no dead letters in namespace {namespace}")


@letters_app.command("replay")
async def replay_letters(
    shell: Shell,
    event_id: LetterId = None,
    namespace: options.Namespace = "default",
    handler: HandlerId = None,
    every: All = False,
) -> None:
    """Publish dead events again, once per dead letter, and drop the letters."""
    await _each_letter(shell, namespace, event_id, handler, every=every, drop=False)


@letters_app.command("drop")
async def drop_letters(
    shell: Shell,
    event_id: LetterId = None,
    namespace: options.Namespace = "default",
    handler: HandlerId = None,
    every: All = False,
) -> None:
    """Remove dead letters for good. The events stay dead."""
    await _each_letter(shell, namespace, event_id, handler, every=every, drop=True)


async def _each_letter(
    shell: Shell, namespace: str, event_id: str | None, handler: str | None, *, every: bool, drop: bool
) -> None:
    if (event_id is None) == (not every and handler is None):
        raise Invalid("name one event, or use --handler or --all", remedy="see holdfast events dead-letters list")

    done: list[dict[str, str]] = []
    async with shell.open() as hf:
        bus = hf.bus(namespace)
        for letter in await bus.dead_letters(limit=None):
            pair = str(letter["event_id"]), str(letter["handler_id"])
            if event_id not in (None, pair[0]) or handler not in (None, pair[1]):
                continue
            done.append({"event_id": pair[0], "handler_id": pair[1]})
            if drop:
                await bus.drop_dead_letter(*pair)
            else:
                done[-1]["replayed_as"] = (await bus.replay_dead_letter(*pair)).id
    if event_id is not None and not done:
        of = f" of {handler}" if handler is not None else ""
        raise NotFound(
            f"event {event_id} has no dead letter{of} in namespace {namespace}",
            remedy="see holdfast events dead-letters list",
        )
    shell.out.table(done, empty=f"no dead letters in namespace {namespace} match: nothing was done")
