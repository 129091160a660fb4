"""``holdfast gc``: remove garbage and data past its retention, with a record of every deletion.

Nothing is removed without ``--apply``. If the settings have credentials for it (``gc.*``), it works with those: the
role that they belong to is the only one that may delete raw blobs.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.cli import options
from holdfast.cli.output import Columns
from holdfast.cli.pipeline.driver import LOCAL, Master, Takeover, as_garbage_collector, driver
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.client import Client
from holdfast.pipeline.gc.options import KINDS

app = noun_app()

COLUMNS = ("kind", "outcome", "why", "objects", "example")
OUTCOMES = {"removed": "remove", "did": "mend", "kept": "keep"}

Kinds = Annotated[
    str | None, typer.Option(metavar="NAMES", help=f"Only these kinds, separated by commas: {', '.join(KINDS)}.")
]


@app.command()
async def plan(shell: Shell, kinds: Kinds = None, master: Master = LOCAL) -> None:
    """Show what a run would remove now, what it would keep, and why. Removes nothing."""
    await _preview(shell, kinds, None, master)


@app.command()
async def run(
    shell: Shell,
    kinds: Kinds = None,
    apply: Annotated[bool, typer.Option("--apply", help="Remove objects; without it this is a dry run.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Remove at most N objects; events of a namespace go together."),
    ] = None,
    master: Master = LOCAL,
    takeover: Takeover = False,
) -> None:
    """Remove garbage. A dry run, unless --apply is given."""
    if not apply:
        await _preview(shell, kinds, limit, master)
        shell.out.note("a dry run: nothing was removed; --apply does it")
        return
    request = {"kinds": _names(kinds), "apply": True, "limit": limit}
    async with driver(shell, master, collects_garbage=True) as it:
        ended = await it.run(["gc"], request, takeover=takeover)
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
        shell.out.table(_outcomes(each.summary), COLUMNS)
        _note_settings(shell, each.summary)
        removed, size = each.summary.get("removed", 0), each.summary.get("bytes", 0)
        shell.out.note(f"run {each.run_id}: {removed} objects removed, {size:,} bytes")


@app.command()
async def history(shell: Shell, limit: options.Limit = 20) -> None:
    """List past runs, the latest first, with how much each removed."""
    from holdfast.pipeline import history as past  # noqa: PLC0415  # loads Arrow, which takes a while

    async with shell.open(settings=as_garbage_collector(shell.settings)) as hf:
        found = await past(hf.store, limit=limit, job="gc")
    results = [{"run_id": each.run_id, "status": each.status, **result} for each, result in found]
    ended = {each.run_id: iso(each.updated_ms * 1_000_000) for each, _ in found}
    columns: Columns = {
        "run": "run_id",
        "status": "status",
        "applied": "apply",
        "removed": "removed",
        "bytes": "bytes",
        "ended": lambda result: ended[result["run_id"]],
    }
    shell.out.table(results, columns, empty="garbage collection has not run here")


@app.command()
async def show(
    shell: Shell,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")],
) -> None:
    """List every object that a run has removed, or was about to remove when it was interrupted, and why.

    Of a dry run, which removes nothing, show what it would have removed.
    """
    from holdfast.pipeline.gc.sweep import GC, intents  # noqa: PLC0415  # loads Arrow, which takes a while

    async with shell.open(settings=as_garbage_collector(shell.settings)) as hf:
        if await hf.store.find(f"{GC}{run_id}/run.json") is None:
            shell.out.table(_outcomes(await _dry_run(hf.store, run_id)), COLUMNS)
            shell.out.note(f"run {run_id} was a dry run: nothing was removed")
            return
        results = [
            {
                "kind": intent.kind,
                "why": why,
                "bytes": size,
                "key": key,
            }
            async for intent in intents(hf.store, run_id)
            for key, size, why in intent.objects
        ]
    shell.out.table(results, empty="this run has removed nothing")


async def _dry_run(store: Client, run_id: str) -> Document:
    """The result of a run that was not to remove anything."""
    from holdfast.pipeline.job import PREFIX  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.runs import describe  # noqa: PLC0415  # as above

    unknown = NotFound(f"no run {run_id} of gc is recorded", remedy="see `holdfast gc history`")
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


async def _preview(shell: Shell, kinds: str | None, limit: int | None, master: str | None) -> None:
    from holdfast.pipeline.jobs.gc import Gc  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline.options import Env  # noqa: PLC0415  # as above

    async with driver(shell, master, collects_garbage=True) as it, it.watch.shown():
        env = Env(it.store, it.store.ambient, it.engine, it.options, it.watch.say)
        found = await Gc(env).preview({"kinds": _names(kinds), "limit": limit})
    if shell.out.as_json:
        shell.out.document(found)
        return
    results = list(_outcomes(found))
    shell.out.table(results, COLUMNS)
    _note_settings(shell, found)
    if not results and len(found["off"]) < len(found["kinds"]):
        shell.out.note("no garbage was found")


def _note_settings(shell: Shell, found: Document) -> None:
    """Note the kinds for which no setting gives an age, and ages for windows that the pipeline does not make."""
    from holdfast.pipeline.gc.options import unmade  # noqa: PLC0415  # loads Arrow, which takes a while

    for kind, setting in found.get("off", {}).items():
        shell.out.note(f"{kind}: nothing expires, because {setting} is not set")
    for window in unmade(shell.settings) if "expire-rollups" in found.get("kinds", {}) else ():
        message = (
            f"retention.rollups names {window}, which is none of pipeline.windows ({shell.settings.pipeline.windows})"
        )
        shell.out.note(f"{message}: it applies to hours that were made with it before, if any were")


def _outcomes(summary: Document) -> Iterator[dict[str, Any]]:
    """One row for each kind, outcome and reason, with one of the keys."""
    for kind, found in summary.get("kinds", {}).items():
        for field, outcome in OUTCOMES.items():
            for why, count in sorted(found[field].items()):
                example = (found["examples"].get(why) or [""])[0]
                yield {"kind": kind, "outcome": outcome, "why": why, "objects": count, "example": example}


def _names(kinds: str | None) -> list[str] | None:
    if kinds is None:
        return None
    found = [name.strip() for name in kinds.split(",") if name.strip()]
    if not found:
        raise Invalid("--kinds names none", remedy="leave it out to mean all")
    return found
