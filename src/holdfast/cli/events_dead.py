"""``holdfast events dead-letters``: what has failed for good, to be replayed or dropped."""

from typing import Annotated

import typer

from holdfast.base.errors import Invalid, NotFound
from holdfast.bus import Bus, Options
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.open import open_store

app = noun_app()

Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The events' namespace.")]
EventId = Annotated[str | None, typer.Argument(metavar="[EVENT_ID]", help="The event that failed.")]
HandlerId = Annotated[str | None, typer.Option("--handler", metavar="ID", help="Only in this handler.")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter of the namespace.")]


@app.callback()
def dead_letters() -> None:
    """See, replay or drop what has failed for good."""


@app.command("list")
async def list_letters(
    shell: Shell,
    namespace: Namespace = "default",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many, latest first.")] = 100,
) -> None:
    """List dead letters, the latest failure first."""
    async with open_store(shell.existing_store(), settings=shell.settings) as store:
        found = await Bus(store, store.ambient, namespace).dead_letters(limit=limit)
        if shell.out.as_json:
            shell.out.document(found)
            return
        columns = ("event_id", "handler_id", "type", "attempts", "failed_at", "last_error")
        rows = [[letter.get(name) for name in columns] for letter in found]
        shell.out.table(columns, rows, empty=f"no dead letters in namespace {namespace}")


@app.command()
async def replay(
    shell: Shell,
    event_id: EventId = None,
    namespace: Namespace = "default",
    handler: HandlerId = None,
    every: All = False,
) -> None:
    """Publish dead events again, once per dead letter, and drop the letters."""
    await _each(shell, namespace, event_id, handler, every=every, drop=False)


@app.command()
async def drop(
    shell: Shell,
    event_id: EventId = None,
    namespace: Namespace = "default",
    handler: HandlerId = None,
    every: All = False,
) -> None:
    """Remove dead letters for good. The events stay dead."""
    await _each(shell, namespace, event_id, handler, every=every, drop=True)


async def _each(
    shell: Shell, namespace: str, event_id: str | None, handler: str | None, *, every: bool, drop: bool
) -> None:
    if (event_id is None) == (not every and handler is None):
        raise Invalid("name one event, or use --handler or --all", remedy="see holdfast events dead-letters list")

    async with open_store(shell.existing_store(), settings=shell.settings) as store:
        bus = Bus(store, store.ambient, namespace, Options.of(shell.settings.bus))
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
        if shell.out.as_json:
            shell.out.document(done)
        elif done:
            shell.out.table(tuple(done[0]), [tuple(each.values()) for each in done])
        else:
            shell.out.note(f"no dead letters in namespace {namespace} are like that: nothing was done")
