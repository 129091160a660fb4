"""``holdfast onto migrate MODULE:TYPES``: the schemas and rows in the store become those of classes."""

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import Invalid
from holdfast.cli.onto_shared import By, Token, Why, my_turn, open_ontology
from holdfast.cli.shell import Shell
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.maintain import migrate as migration
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, type_info


async def migrate(
    shell: Shell,
    target: Annotated[str | None, typer.Argument(metavar="MODULE:TYPES", help="A class, or a list of them.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; needs the token of the preview.")] = False,
    token: Token = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Remove what migrations left behind that can go on no more.")
    ] = False,
    by: By = "",
    why: Why = "",
) -> None:
    """Make the schemas in the store those of classes, and the rows with them.

    Shows how they differ, tries the upgraders on every row, and gives the token to do it with. With --abandon and a
    token, what that migration has staged is removed too.
    """
    if abandon:
        await _abandon(shell, token)
        return
    if target is None:
        raise Invalid("there is nothing to migrate", remedy="say holdfast onto migrate MODULE:TYPES, or --abandon")
    if apply and token is None:
        raise Invalid("--apply needs a token", remedy="run it without --apply first: the preview gives one")
    types = load_types(target)

    done: Commit | None = None
    async with open_ontology(shell, new=True) as store:
        found = await migration.preview(store, types, count=token is None)
        if token is not None:
            async with my_turn(store, by) as turn:
                done = await migration.apply(store, store.ambient, types, token, turn=turn, by=by, why=why)
    if shell.out.as_json:
        commit_id = done.commit_id if done is not None else None
        listed = [each.document() for each in found.changes]
        shell.out.document({"head": found.head, "token": found.token, "types": listed, "commit_id": commit_id})
        return
    if done is not None:
        shell.out.line(f"commit {done.commit_id}: {done.rows} rows were upgraded")
        return
    columns = ("kind", "type", "action", "version", "rows", "differences")
    shell.out.table(columns, [_row(each) for each in found.changes])
    if token is None and found:
        shell.out.note(f"nothing was written: add --apply --token {found.token}")


async def _abandon(shell: Shell, token: str | None) -> None:
    async with open_ontology(shell) as store:
        gone = await migration.abandon(store, token)
    if shell.out.as_json:
        shell.out.document({"removed": gone})
    else:
        shell.out.line(f"{len(gone)} staged parts were removed" if gone else "nothing was left behind")


def _row(each: migration.Change) -> tuple[object, ...]:
    version = f"{each.from_version} to {each.to_version}" if each.drift else each.to_version
    listed = "; ".join(map(str, each.drift.changes)) if each.drift is not None else None
    return each.type_id.kind, each.type_id.name, each.action, version, each.rows, listed


def load_types(target: str) -> dict[TypeId, TypeInfo]:
    """What ``module:name`` holds, from the working folder or anywhere on the path."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise Invalid(f"{target!r} is not MODULE:TYPES", remedy="write it like shop.types:TYPES")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise Invalid(f"{target}: {error}", remedy="name an importable module and what is in it") from error
    members: list[Any] = list(found) if isinstance(found, Iterable) else [found]
    types: dict[TypeId, TypeInfo] = {}
    for member in members:
        if not (isinstance(member, type) and issubclass(member, Mixin)):
            raise Invalid(f"{target}: {member!r} is no entity or relation type", remedy="name classes")
        info = type_info(member)
        types[info.type_id] = info
    return types
