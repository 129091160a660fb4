"""``holdfast events``: publish, look at, replay and clean up events. Nothing here needs the classes of events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from holdfast.base.clock import iso, parse_moment, parse_span
from holdfast.base.errors import Invalid, NotFound
from holdfast.bus import Bus, Envelope
from holdfast.bus.browse import STATUSES, Tail
from holdfast.bus.event import DEFAULT_PRIORITY
from holdfast.bus.stats import HandlerStats
from holdfast.cli.output import json_text
from holdfast.cli.shell import Shell, check_choice, noun_app
from holdfast.objects.client import Client
from holdfast.platform.open import open_platform

app = noun_app()
letters_app = noun_app()
app.add_typer(letters_app, name="dead-letters", help="List, replay or drop events that have failed for good.")

NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The events' namespace.")]
EventId = Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")]
LetterId = Annotated[str | None, typer.Argument(metavar="EVENT_ID", help="The event that failed.")]
HandlerId = Annotated[str | None, typer.Option("--handler", metavar="ID", help="Only dead letters of this handler.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters of the namespace.")]
TypeOption = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only events of this type.")]
StatusOption = Annotated[
    str | None, typer.Option(metavar="STATUS", help=f"Only events with this status: {', '.join(STATUSES)}.")
]


@app.callback()
def events() -> None:
    """Publish, list and replay events."""


@asynccontextmanager
async def open_bus(shell: Shell, namespace: str = "default", *, new: bool = False) -> AsyncIterator[tuple[Client, Bus]]:
    """``new``: the command may be the first to write to this store."""
    uri = shell.settings.store.uri if new else shell.existing_store()
    async with open_platform(uri, settings=shell.settings) as hf:
        yield hf.store, hf.bus(namespace)


@app.command()
async def publish(
    shell: Shell,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="The event's type, such as order.placed.")],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="A JSON object.")] = "{}",
    namespace: NamespaceOption = "default",
    delay: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Hand the event out after this time: 90s, 30m, 2h.")
    ] = None,
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
    seconds = 0.0 if delay is None else parse_span(delay) / 1e9

    async with open_bus(shell, namespace, new=True) as (_, bus):
        published = await bus.publish_raw(
            type_name, fields, delay=seconds, priority=priority, key=key, order_key=order_key
        )
        if shell.out.as_json:
            answer = {"duplicate": published.duplicate, "differs": published.differs}
            shell.out.document({**published.envelope.document(), **answer})
            return
        shell.out.line(published.id)
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
    namespace: NamespaceOption = "default",
    status: StatusOption = None,
    type_name: TypeOption = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many to list at most, the newest first.")] = 100,
) -> None:
    """List events with their status, the newest first."""
    check_choice("status", [status] if status else [], STATUSES)

    async with open_bus(shell, namespace) as (_, bus):
        found = await bus.events(limit=limit, status=status, type_name=type_name)
        if shell.out.as_json:
            shell.out.document([{**each.envelope.document(), "status": each.status} for each in found])
            return
        rows = [
            (each.envelope.id, each.envelope.type, each.status, each.envelope.priority, each.envelope.created_at)
            for each in found
        ]
        empty = f"no events in namespace {namespace}" + (" match" if status or type_name else "")
        shell.out.table(("id", "type", "status", "priority", "created"), rows, empty=empty)


@app.command()
async def inspect(shell: Shell, event_id: EventId, namespace: NamespaceOption = "default") -> None:
    """Show one event and the claims of its handlers."""
    async with open_bus(shell, namespace) as (_, bus):
        found = await bus.inspect(event_id)
        document = {**found.envelope.document(), "status": found.status}
        if shell.out.as_json:
            shell.out.document({**document, "claims": found.claims})
            return
        shell.out.record({**document, "payload": json_text(found.envelope.payload)})
        if found.claims:
            columns = (
                "handler_id",
                "generation",
                "attempts",
                "lease_until",
                "ack_at",
                "dead_lettered_at",
                "last_error",
            )
            shell.out.line("")
            shell.out.table(columns, [[claim.get(name) for name in columns] for claim in found.claims])
        else:
            shell.out.note("no handler has claimed it yet")


@app.command()
async def replay(
    shell: Shell,
    event_id: Annotated[str | None, typer.Argument(metavar="EVENT_ID", help="One event.")] = None,
    namespace: NamespaceOption = "default",
    status: StatusOption = None,
    type_name: TypeOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many to publish at most, the newest.")
    ] = None,
) -> None:
    """Publish copies of events, with ids and times of their own: one, or all that a filter finds."""
    check_choice("status", [status] if status else [], STATUSES)
    if (event_id is None) == (status is None and type_name is None):
        raise Invalid("name one event, or say which with --status or --type", remedy="see holdfast events list")

    async with open_bus(shell, namespace) as (_, bus):
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
async def sessions(shell: Shell, namespace: NamespaceOption = "default") -> None:
    """List the workers of a namespace and their last signs of life."""
    async with open_bus(shell, namespace) as (_, bus):
        columns = ("session_id", "started_at", "last_heartbeat", "is_dead", "metadata")
        shell.out.records(await bus.sessions(), columns, empty=f"namespace {namespace} has no workers")


@app.command()
async def namespaces(shell: Shell) -> None:
    """List all namespaces with their events, workers and dead letters."""
    async with open_bus(shell) as (_, bus):
        columns = ("namespace", "events", "sessions", "dead_sessions", "dead_letters")
        shell.out.records(await bus.namespaces(), columns, empty="there are no namespaces yet: nothing was published")


@app.command()
async def cleanup(
    shell: Shell,
    namespace: NamespaceOption = "default",
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Remove events older than this: 7d, or ISO 8601 (default: the retention)."),
    ] = None,
    unsafe_unsettled: Annotated[
        bool, typer.Option("--unsafe-unsettled", help="Also remove events that a handler has not handled yet.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and remove nothing.")] = False,
) -> None:
    """Remove old events that every handler is done with, and their claims."""
    async with open_bus(shell, namespace) as (store, bus):
        before_ns = None if before is None else parse_moment(before, store.ambient.clock.wall_ns())
        done = await bus.cleanup(before_ns=before_ns, unsafe_unsettled=unsafe_unsettled, dry_run=dry_run)
        counts = {"events": done.events, "claims": done.claims, "keys": done.keys, "held": done.held}
        shell.out.record({**counts, "held_by": done.held_by, "before": iso(done.before_ns), "dry_run": dry_run})
        if done.held_by:
            shell.out.note(
                f"{done.held} old events stay, because of handlers that are not done with the first of them: "
                f"{', '.join(done.held_by)}; see holdfast events handlers"
            )
        elif done.held:
            shell.out.note(f"{done.held} old events stay: no handler has read namespace {namespace} yet")


@app.command("tail")
async def follow(
    shell: Shell,
    namespace: NamespaceOption = "default",
    interval: Annotated[float, typer.Option(min=0.01, metavar="SECONDS", help="Seconds between two polls.")] = 1.0,
    lines: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Begin with the latest N events (default 10; with --since all)."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Begin with events since then: 30m, 2h, or ISO 8601.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the first poll.")] = False,
) -> None:
    """Print events as they are published, after the latest few. Each poll is one LIST."""

    def show(envelope: Envelope) -> None:
        if shell.out.as_json:
            shell.out.document(envelope.document())
        else:
            text = json_text(envelope.payload)
            shell.out.line(f"{envelope.created_at[:23]}  {envelope.id}  {envelope.type}  {text}")

    async with open_bus(shell, namespace) as (store, _):
        now_ns = store.ambient.clock.wall_ns()
        since_ns = None if since is None else parse_moment(since, now_ns)
        first = 10 if lines is None and since is None else lines
        tail = Tail(store, namespace, store.ambient)
        for envelope in await tail.begin(lines=first, since_ns=since_ns):
            show(envelope)
        while not once:
            await asyncio.sleep(interval)
            async for envelope in tail.look():
                show(envelope)


@app.command()
async def handlers(shell: Shell, namespace: NamespaceOption = "default") -> None:
    """List the handlers of a namespace, their workers, and the oldest event that each has still to do."""
    async with open_bus(shell, namespace) as (_, bus):
        found = await bus.stats()
        columns = ("handler_id", "types", "workers", "last_seen", "oldest")
        shell.out.records(found, columns, empty=f"no handler has read namespace {namespace} yet")
        note_holding(shell, found)


@app.command()
async def retire(
    shell: Shell,
    handler_id: Annotated[
        str, typer.Argument(metavar="HANDLER_ID", help="The handler's id, as `events handlers` lists it.")
    ],
    namespace: NamespaceOption = "default",
) -> None:
    """Remove a handler that no worker has any more: cleanup keeps no events for it."""
    async with open_bus(shell, namespace) as (_, bus):
        await bus.retire(handler_id)
        shell.out.record({"retired": handler_id, "namespace": namespace})


def note_holding(shell: Shell, found: list[HandlerStats]) -> None:
    for each in found:
        if each.is_holding:
            shell.out.note(
                f"no worker has the handler {each.handler_id}, and cleanup keeps all events since {each.oldest} for "
                f"it: start a worker that has it, or run holdfast events retire {each.handler_id}"
            )


@app.command()
async def stats(shell: Shell, namespace: NamespaceOption = "default") -> None:
    """Show what each handler has still to do.

    open: events to handle; due: those that may be tried now; closed: events that were read and are handled, dead, or
    of types that the handler does not take.
    """
    async with open_bus(shell, namespace) as (_, bus):
        found = await bus.stats()
        columns = ("handler_id", "types", "open", "due", "closed")
        shell.out.records(found, columns, empty=f"no handler has read namespace {namespace} yet")
        note_holding(shell, found)


# --- dead letters ---


@letters_app.command("list")
async def list_letters(
    shell: Shell,
    namespace: NamespaceOption = "default",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many to list at most, the latest first.")] = 100,
) -> None:
    """List dead letters, the latest failure first."""
    async with open_bus(shell, namespace) as (_, bus):
        found = await bus.dead_letters(limit=limit)
        if shell.out.as_json:
            shell.out.document(found)
            return
        columns = ("event_id", "handler_id", "type", "attempts", "failed_at", "last_error")
        rows = [[letter.get(name) for name in columns] for letter in found]
        shell.out.table(columns, rows, empty=f"no dead letters in namespace {namespace}")


@letters_app.command("replay")
async def replay_letters(
    shell: Shell,
    event_id: LetterId = None,
    namespace: NamespaceOption = "default",
    handler: HandlerId = None,
    every: All = False,
) -> None:
    """Publish dead events again, once per dead letter, and drop the letters."""
    await _each_letter(shell, namespace, event_id, handler, every=every, drop=False)


@letters_app.command("drop")
async def drop_letters(
    shell: Shell,
    event_id: LetterId = None,
    namespace: NamespaceOption = "default",
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

    async with open_bus(shell, namespace) as (_, bus):
        letters = [
            (str(letter["event_id"]), str(letter["handler_id"]))
            for letter in await bus.dead_letters(limit=None)
            if event_id in (None, letter["event_id"]) and handler in (None, letter["handler_id"])
        ]
        if event_id is not None and not letters:
            of = f" of {handler}" if handler is not None else ""
            raise NotFound(
                f"event {event_id} has no dead letter{of} in namespace {namespace}",
                remedy="see holdfast events dead-letters list",
            )
        done = []
        for each in letters:
            if drop:
                await bus.drop_dead_letter(*each)
                done.append({"event_id": each[0], "handler_id": each[1]})
            else:
                published = await bus.replay_dead_letter(*each)
                done.append({"event_id": each[0], "handler_id": each[1], "replayed_as": published.id})
        shell.out.table(
            ("event_id", "handler_id") if drop else ("event_id", "handler_id", "replayed_as"),
            [tuple(each.values()) for each in done],
            empty=f"no dead letters in namespace {namespace} match: nothing was done",
            document=done,
        )
