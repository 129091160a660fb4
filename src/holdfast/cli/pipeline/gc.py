"""``holdfast gc``: remove garbage and data past its retention, with a record of every deletion.

Nothing is removed without ``--apply``. It works with credentials of its own, where settings give any (``gc.*``): those
of the one role that may delete raw blobs.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.cli.pipeline.engines import (
    Latest,
    Master,
    Takeover,
    engine_for,
    open_as_collector_of_garbage,
    options_of,
)
from holdfast.cli.pipeline.view import Watch
from holdfast.cli.shell import Shell, noun_app

if TYPE_CHECKING:
    from holdfast.objects.client import Client

app = noun_app()

COLUMNS = ("kind", "outcome", "why", "objects", "example")

Kinds = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Only these kinds, separated by commas: orphans, derived, ...")
]


@app.callback()
def gc() -> None:
    """Remove garbage and data past its retention, and record every deletion."""


@app.command()
async def plan(shell: Shell, kinds: Kinds = None, master: Master = None) -> None:
    """Show what a run would remove now, what it would keep, and why. Removes nothing."""
    await _dry(shell, kinds, None, master)


@app.command()
async def run(
    shell: Shell,
    kinds: Kinds = None,
    apply: Annotated[bool, typer.Option("--apply", help="Remove objects; without it this is a dry run.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Remove at most N objects; events of a namespace go together."),
    ] = None,
    master: Master = None,
    takeover: Takeover = False,
) -> None:
    """Remove garbage. A dry run, unless --apply is given."""
    if not apply:
        await _dry(shell, kinds, limit, master)
        shell.out.note("a dry run: nothing was removed; --apply does it")
        return

    from holdfast import pipeline as rooms  # noqa: PLC0415  # loads Arrow, which takes a while

    async with (
        open_as_collector_of_garbage(shell) as store,
        engine_for(shell, store, master or "local", []) as engine,
        Watch(shell.out).shown() as watch,
    ):
        ended = await rooms.run(
            store,
            ["gc"],
            engine=engine,
            options=options_of(shell, None, service=False),
            request={"kinds": _names(kinds), "apply": True, "limit": limit},
            takeover=takeover,
            say=watch.say,
        )
    for each in ended:
        if each.status != "success":
            raise HoldfastError(
                f"run {each.run_id}: {each.status}: {each.error}",
                remedy="see what it removed with `holdfast gc show RUN`; the next run continues it",
            )
    if shell.out.as_json:
        shell.out.document([each.document() for each in ended])
        return
    for each in ended:
        shell.out.table(COLUMNS, _rows(each.summary))
        _note_settings(shell, each.summary)
        removed, size = each.summary.get("removed", 0), each.summary.get("bytes", 0)
        shell.out.note(f"run {each.run_id}: {removed} objects removed, {size:,} bytes")


@app.command()
async def history(
    shell: Shell,
    limit: Latest = 20,
) -> None:
    """List past runs, the latest first, with how much each removed."""

    from holdfast.base.clock import iso  # noqa: PLC0415  # a help page needs none of it
    from holdfast.pipeline import history as past  # noqa: PLC0415  # loads Arrow, which takes a while

    async with open_as_collector_of_garbage(shell) as store:
        found = await past(store, limit=limit, job="gc")
    rows = [
        (
            each.run_id,
            each.status,
            result.get("apply"),
            result.get("removed"),
            result.get("bytes"),
            iso(each.updated_ms * 1_000_000),
        )
        for each, result in found
    ]
    shell.out.table(
        ("run", "status", "applied", "removed", "bytes", "ended"),
        rows,
        document=[{"run_id": each.run_id, "status": each.status, **result} for each, result in found],
    )
    if not rows:
        shell.out.note("garbage collection has not run here")


@app.command()
async def show(
    shell: Shell,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")],
) -> None:
    """List every object that a run has removed, or was about to remove when it was cut short, and why.

    Of a dry run, which removes nothing, show what it would have removed.
    """

    from holdfast.pipeline.gc.record import GC, intents  # noqa: PLC0415  # loads Arrow, which takes a while

    rows: list[tuple[object, ...]] = []
    async with open_as_collector_of_garbage(shell) as store:
        if await store.find(f"{GC}{run_id}/run.json") is None:
            shell.out.table(COLUMNS, _rows(await _dry_run(store, run_id)))
            shell.out.note(f"run {run_id} was a dry run: nothing was removed")
            return
        async for intent in intents(store, run_id):
            state = "gone" if intent.concluded else "intended"
            rows += [(intent.kind, state, why, size, key) for key, size, why in intent.objects]
    shell.out.table(("kind", "state", "why", "bytes", "key"), rows)


async def _dry_run(store: "Client", run_id: str) -> dict[str, Any]:
    """What a run would have removed that was not to apply it."""
    from holdfast.pipeline.job import PREFIX  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.runs import describe  # noqa: PLC0415  # as above

    unknown = NotFound(f"no run {run_id} of gc is on record", remedy="see `holdfast gc history`")
    try:
        found = await describe(store, run_id)
    except (NotFound, Invalid) as error:
        raise unknown from error
    if found.workflow != f"{PREFIX}gc":
        raise unknown
    if not isinstance(found.result, dict):
        message = f"run {run_id} is {found.status}, and has removed nothing"
        raise NotFound(message, remedy=f"see `holdfast runs status {run_id}`")
    return found.result


async def _dry(shell: Shell, kinds: str | None, limit: int | None, master: str | None) -> None:
    from holdfast.pipeline.jobs.gc import Gc  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline.options import Env  # noqa: PLC0415  # as above

    async with (
        open_as_collector_of_garbage(shell) as store,
        engine_for(shell, store, master or "local", []) as engine,
        Watch(shell.out).shown() as watch,
    ):
        env = Env(store, store.ambient, engine, options_of(shell, None, service=False), watch.say)
        found = await Gc(env).preview({"kinds": _names(kinds), "limit": limit})
    if shell.out.as_json:
        shell.out.document(found)
        return
    rows = _rows(found)
    shell.out.table(COLUMNS, rows)
    _note_settings(shell, found)
    if not rows and len(found["off"]) < len(found["kinds"]):
        shell.out.note("no garbage was found")


def _note_settings(shell: Shell, found: dict[str, Any]) -> None:
    """Nothing goes that no setting has given an age, and no window that no hour has."""
    from holdfast.pipeline.gc.options import unmade  # noqa: PLC0415  # loads Arrow, which takes a while

    for kind, setting in found.get("off", {}).items():
        shell.out.note(f"{kind}: nothing expires, because {setting} is not set")
    for window in unmade(shell.settings) if "expire-rollups" in found.get("kinds", {}) else ():
        message = (
            f"retention.rollups names {window}, which is none of pipeline.windows ({shell.settings.pipeline.windows})"
        )
        shell.out.note(f"{message}: it applies to hours that were made with it before, if any were")


def _rows(summary: dict[str, Any]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for kind, found in summary.get("kinds", {}).items():
        for outcome, name in (("removed", "remove"), ("did", "mend"), ("kept", "keep")):
            for why, count in sorted(found[outcome].items()):
                example = (found["examples"].get(why) or [""])[0]
                rows.append((kind, name, why, count, example))
    return rows


def _names(kinds: str | None) -> list[str] | None:
    if kinds is None:
        return None
    found = [name.strip() for name in kinds.split(",") if name.strip()]
    if not found:
        raise Invalid("--kinds names none", remedy="leave it out to mean all")
    return found
