"""``holdfast onto migrate|erase|revert`` and ``holdfast onto schema drop``: a preview, then a token to apply it."""

from typing import Annotated, Any

import typer

from holdfast.base.errors import Invalid
from holdfast.cli.onto.shared import By, Token, Why, my_turn, open_ontology
from holdfast.cli.shell import Shell, imported
from holdfast.ontology.chain.history import Tags
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.maintain import drop as dropping
from holdfast.ontology.maintain import erase as erasing
from holdfast.ontology.maintain import migrate as migration
from holdfast.ontology.maintain import revert as reverting
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, type_info


async def migrate(
    shell: Shell,
    target: Annotated[str, typer.Argument(metavar="MODULE:TYPES", help="A class, or a list of classes.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the migration; needs the token of the preview.")
    ] = False,
    token: Token = None,
    by: By = "",
    why: Why = "",
) -> None:
    """Migrate schemas in the store, and their rows, to those of classes.

    Shows how they differ, tries the upgraders on every row, and prints the token to apply it with.
    """
    if apply and token is None:
        raise Invalid("--apply needs a token", remedy="run it without --apply first: the preview gives one")
    types = load_types(target)

    done: Commit | None = None
    async with open_ontology(shell, new=True) as store:
        found = await migration.preview(store, types, count=token is None)
        if token is not None:
            async with my_turn(store, by) as turn:
                done = await migration.apply(store, store.ambient, found, token, turn=turn, by=by, why=why)
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


def _row(each: migration.Change) -> tuple[object, ...]:
    version = f"{each.from_version} to {each.to_version}" if each.drift else each.to_version
    listed = "; ".join(map(str, each.drift.changes)) if each.drift is not None else None
    return each.type_id.kind, each.type_id.name, each.action, version, each.rows, listed


def load_types(target: str) -> dict[TypeId, TypeInfo]:
    """The types that ``module:name`` has."""
    types: dict[TypeId, TypeInfo] = {}
    for member in imported(target, "shop.types:TYPES", Invalid):
        if not (isinstance(member, type) and issubclass(member, Mixin)):
            raise Invalid(f"{target}: {member!r} is not an entity or relation type", remedy="name classes")
        info = type_info(member)
        types[info.type_id] = info
    return types


TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="A type; entity/NAME where a relation has it too.")]


async def drop(
    shell: Shell,
    type_name: TypeName,
    purge: Annotated[bool, typer.Option("--purge", help="Also destroy its rows, in all of history.")] = False,
    token: Token = None,
    by: By = "",
    why: Why = "",
) -> None:
    """Drop a type, by a commit of its own.

    Shows what would be dropped, and the token to do it with. Queries as of earlier commits still see its rows, unless
    they are purged.
    """
    done: Commit | None = None
    async with open_ontology(shell) as store:
        found = await dropping.preview(store, type_name, purge=purge)
        if token is not None:
            async with my_turn(store, by) as turn:
                done = await dropping.apply(store, store.ambient, found, token, turn=turn, by=by, why=why)
    shown: dict[str, Any] = {
        "kind": found.type_id.kind,
        "type_name": found.type_id.name,
        "objects": found.objects,
        "files": found.files,
        "earlier_lives": len(found.lives),
        "relations": list(found.relations),
        "purge": found.purge,
    }
    if shell.out.as_json:
        commit_id = done.commit_id if done is not None else None
        shell.out.document({**shown, "head": found.head, "token": found.token, "commit_id": commit_id})
    elif done is not None:
        state = "its rows are destroyed" if purge else f"queries as of commits up to {found.head} still see it"
        shell.out.line(f"commit {done.commit_id}: {found.type_id.name} is dropped; {state}")
    else:
        shell.out.record({**shown, "relations": ", ".join(found.relations) or None})
        shell.out.note(f"nothing was written: add --token {found.token}")


async def erase(
    shell: Shell,
    type_name: Annotated[str | None, typer.Argument(metavar="TYPE", help="A type.")] = None,
    key: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="The key; both ends of a relation.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish erasures that were begun, and nothing else.")
    ] = False,
    token: Token = None,
    by: By = "",
    why: Why = "",
) -> None:
    """Destroy the payload of one object in all of history.

    Shows how many rows that are, and the token to do it with. The key stays; history shows that it was erased.
    """
    if resume:
        await _resume(shell)
        return
    if type_name is None or not key:
        raise Invalid("there is nothing to erase", remedy="say holdfast onto erase TYPE KEY, or --resume")

    done: Commit | None = None
    async with open_ontology(shell) as store:
        found = await erasing.preview(store, type_name, *key)
        if token is not None:
            async with my_turn(store, by) as turn:
                done = await erasing.apply(store, store.ambient, found, token, turn=turn, by=by, why=why)
    shown: dict[str, Any] = {
        "kind": found.type_id.kind,
        "type_name": found.type_id.name,
        "key": list(found.identity),
        "rows": found.rows,
        "commits": list(found.commits),
    }
    if shell.out.as_json:
        commit_id = done.commit_id if done is not None else None
        shell.out.document({**shown, "head": found.head, "token": found.token, "commit_id": commit_id})
    elif done is not None:
        shell.out.line(f"commit {done.commit_id}: {found.rows} rows of {'/'.join(key)} are erased")
    else:
        listed = ", ".join(map(str, found.commits))
        shell.out.record({**shown, "key": "/".join(key), "commits": listed})
        shell.out.note(f"nothing was written: add --token {found.token}")


async def _resume(shell: Shell) -> None:
    async with open_ontology(shell) as store:
        done = await erasing.resume(store, store.ambient)
    shell.out.line(
        f"finished what commits {done.finished} ordered" if done.finished else "nothing is unfinished",
        document={"finished": done.finished, "removed": done.removed},
    )
    if done.removed:
        shell.out.line(f"{len(done.removed)} objects that were left behind with erased payload are removed")


async def revert(
    shell: Shell,
    commit: Annotated[str, typer.Argument(metavar="COMMIT", help="A commit's number, or a tag.")],
    token: Token = None,
    by: By = "",
    why: Why = "",
) -> None:
    """Restore the state of an earlier commit, by a new commit.

    Shows what would change, and the token to do it with.
    """
    done: Commit | None = None
    async with open_ontology(shell) as store:
        number = int(commit) if commit.isdigit() else (await Tags(store, store.ambient).find(commit)).commit_id
        found = await reverting.preview(store, number)
        if token is not None:
            async with my_turn(store, by) as turn:
                done = await reverting.apply(store, store.ambient, found, token, turn=turn, by=by, why=why)
    types = [(*each, *counts) for each, counts in found.counts.items()]
    if shell.out.as_json:
        columns = ("kind", "type_name", "written", "retracted")
        document = {"head": found.head, "to_commit": found.target, "token": found.token}
        listed = [dict(zip(columns, row, strict=True)) for row in types]
        shell.out.document({**document, "types": listed, "commit_id": done.commit_id if done is not None else None})
    elif done is not None:
        shell.out.line(f"commit {done.commit_id}: everything is as it was at commit {found.target}")
    elif not types:
        shell.out.line(f"nothing to do: everything is as it was at commit {found.target}")
    else:
        shell.out.table(("kind", "type", "written again", "retracted"), types)
        shell.out.note(f"nothing was written: add --token {found.token}")
