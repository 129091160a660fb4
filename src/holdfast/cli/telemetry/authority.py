"""``holdfast authority``: which store accepts telemetry, under which id and how; and how a copy becomes one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.cli import options
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.place import Place
from holdfast.telemetry.accept.authority import Acceptance, Authority, Claim, add_alias, promote, read_authority
from holdfast.telemetry.accept.spool import open_spool

app = noun_app()


@app.command()
async def show(shell: Shell) -> None:
    """Show the authority of a store, and whether collectors may accept at this address."""
    async with shell.open() as hf:
        found = await read_authority(hf.store, hf.ambient)
        if found is None:
            raise NotFound(f"{hf.store.place}: has no authority", remedy="start a collector; it begins one")
        shell.out.record(_fields(found, hf.store.place))


@app.command("promote")
async def promote_copy(
    shell: Shell,
    why: options.Why,
    acceptance: Annotated[
        Acceptance | None, typer.Option(metavar="MODE", help="s3_manifest or local_spool (default: as before).")
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

    The original is not changed. If it still accepted, the same batch could be accepted twice.
    """
    if spool is not None and spool_id is not None:
        raise Invalid("--spool and --spool-id both name a spool", remedy="give one of the two")

    async with shell.open() as hf:
        store, place = hf.store, hf.store.place
        found = await read_authority(store, hf.ambient)
        if not original_is_out_of_service:
            original = "its original" if found is None else str(found.place)
            question = f"Is it certain that no collector accepts at {original} any more?"
            shell.confirm(question, "--original-is-out-of-service")
        if spool is not None and found is not None:
            spool_id = await _spool_in(spool, hf.ambient)
        made = await promote(store, hf.ambient, place, reason=why, acceptance=acceptance, spool_id=spool_id)
    shell.out.record(_fields(made, place))


@app.command()
async def alias(
    shell: Shell,
    same_bucket: Annotated[
        bool, typer.Option("--same-bucket", help="Confirm that this is the same bucket, and not a copy of it.")
    ] = False,
) -> None:
    """Let collectors accept at another address of the very same bucket and prefix.

    For example a second name of an endpoint. For a copy see `holdfast authority promote`.
    """
    async with shell.open() as hf:
        place = hf.store.place
        if not same_bucket:
            found = await read_authority(hf.store, hf.ambient)
            known = "the one in its authority" if found is None else str(found.place)
            shell.confirm(f"Is {place} the very same bucket as {known}, and no copy of it?", "--same-bucket")
        shell.out.record(_fields(await add_alias(hf.store, hf.ambient, place), place))


async def _spool_in(folder: Path, ambient: Ambient) -> str:
    async with open_spool(folder, ambient) as spool:
        return spool.spool_id


def _fields(found: Authority, place: Place) -> dict[str, Any]:
    problem: str | None = None
    try:
        Claim(place, found.acceptance).check(found)
    except Refused as error:
        problem = str(error)
    return {
        "authority_id": found.authority_id,
        "place": str(found.place),
        "acceptance": found.acceptance.value,
        "created_at": found.created_at,
        "aliases": ", ".join(map(str, found.aliases)) or None,
        "spool_id": found.spool_id,
        "former": ", ".join(str(each.get("authority_id")) for each in found.former) or None,
        "accepts_here": problem is None,
        "because": problem,
    }
