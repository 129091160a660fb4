"""``holdfast authority``: which store accepts telemetry, under which id and how; and how a copy becomes one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.open import open_store
from holdfast.objects.place import Place
from holdfast.telemetry.accept.authority import Acceptance, Authority, add_alias, objection, promote, read_authority
from holdfast.telemetry.accept.spool import open_spool

app = noun_app()


@app.callback()
def authority() -> None:
    """Show which store accepts telemetry; promote a copy, add an alias."""


@app.command()
async def show(shell: Shell) -> None:
    """Show the authority of a store, and whether collectors may accept at this address."""
    async with open_store(shell.existing_store(), settings=shell.settings) as store:
        found = await read_authority(store, store.ambient)
        place = store.place
        if found is None:
            raise NotFound(f"{place}: has no authority", remedy="start a collector; it begins one")
        shell.out.record(_fields(found, place))


@app.command("promote")
async def promote_copy(
    shell: Shell,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; it is recorded.")],
    acceptance: Annotated[
        str | None, typer.Option(metavar="MODE", help="s3_manifest or local_spool (default: as before).")
    ] = None,
    spool_id: Annotated[
        str | None, typer.Option(metavar="ID", help="With local_spool: the spool that accepts.")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The same, by its directory here; it is created if missing.")
    ] = None,
    original_is_out_of_service: Annotated[
        bool,
        typer.Option(
            "--original-is-out-of-service", help="Confirm that no collector accepts at the original any more."
        ),
    ] = False,
) -> None:
    """Let collectors accept at this copy of a store, under a new authority.

    The original does not learn of it. If it still accepted, the same batch could be accepted twice.
    """
    mode = None if acceptance is None else _mode(acceptance)
    if spool is not None and spool_id is not None:
        raise Invalid("--spool and --spool-id both name a spool", remedy="give one of the two")

    async with open_store(shell.existing_store(), settings=shell.settings) as store:
        place = store.place
        found = await read_authority(store, store.ambient)
        if not original_is_out_of_service:
            original = "its original" if found is None else str(found.place)
            typer.confirm(f"does no collector accept at {original} any more, and never again?", abort=True, err=True)
        named = spool_id if spool is None or found is None else await _spool_in(spool, store.ambient)
        made = await promote(store, store.ambient, place, reason=why, acceptance=mode, spool_id=named)
        shell.out.record(_fields(made, place))


@app.command("alias")
async def alias(
    shell: Shell,
    same_bucket: Annotated[
        bool, typer.Option("--same-bucket", help="Confirm that this is the same bucket, and not a copy of it.")
    ] = False,
) -> None:
    """Let collectors accept at another address of the very same bucket and prefix.

    For example a second name of an endpoint. For a copy see `holdfast authority promote`.
    """
    async with open_store(shell.existing_store(), settings=shell.settings) as store:
        place = store.place
        if not same_bucket:
            found = await read_authority(store, store.ambient)
            known = "the one in its authority" if found is None else str(found.place)
            typer.confirm(f"is {place} the very same as {known}, and no copy of it?", abort=True, err=True)
        shell.out.record(_fields(await add_alias(store, store.ambient, place), place))


async def _spool_in(folder: Path, ambient: Ambient) -> str:
    async with open_spool(folder, ambient) as spool:
        return await spool.spool_id(ambient)


def _mode(text: str) -> Acceptance:
    try:
        return Acceptance(text)
    except ValueError as error:
        modes = " or ".join(each.value for each in Acceptance)
        raise Invalid(f"unknown acceptance mode {text!r}", remedy=f"write {modes}") from error


def _fields(found: Authority, place: Place) -> dict[str, Any]:
    problem = objection(found, place, found.acceptance)
    return {
        "authority_id": found.authority_id,
        "place": str(found.place),
        "acceptance": found.acceptance.value,
        "created_at": found.created_at,
        "aliases": ", ".join(map(str, found.aliases)) or None,
        "spool_id": found.spool_id,
        "former": ", ".join(str(each.get("authority_id")) for each in found.former) or None,
        "accepts_here": problem is None,
        "because": None if problem is None else str(problem),
    }
