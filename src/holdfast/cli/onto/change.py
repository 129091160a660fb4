"""``holdfast onto migrate|erase|revert`` and ``holdfast onto schema drop``: a preview, then a token to apply it."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from holdfast.base.errors import Invalid
from holdfast.cli import options
from holdfast.cli.output import Columns
from holdfast.cli.shell import Shell, imported
from holdfast.objects.client import Client
from holdfast.ontology.chain.history import Tags
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.commit.lock import WriteLock
from holdfast.ontology.maintain import drop as dropping
from holdfast.ontology.maintain import erase as erasing
from holdfast.ontology.maintain import migrate as migration
from holdfast.ontology.maintain import revert as reverting
from holdfast.ontology.maintain.plan import Plan, apply
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, type_info

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="A type; entity/NAME where a relation has it too.")]
Token = Annotated[
    str | None, typer.Option(metavar="TOKEN", help="The token of the preview; without it nothing is changed.")
]


async def migrate(
    shell: Shell,
    target: Annotated[str, typer.Argument(metavar="MODULE:TYPES", help="A class, or a list of classes.")],
    token: Token = None,
    by: options.By = "",
    why: options.Why = "",
) -> None:
    """Migrate schemas in the store, and their rows, to those of classes.

    Shows how they differ, tries the upgraders on every row, and prints the token to apply it with.
    """
    types = load_types(target)
    async with shell.open(new=True) as hf:
        found = await migration.preview(hf.store, types, count=token is None)
        done = await _apply(hf.store, found, token, by, why)
    columns: Columns = {
        "kind": lambda each: each.type_id.kind,
        "type": lambda each: each.type_id.name,
        "action": "action",
        "version": lambda each: f"{each.from_version} to {each.to_version}" if each.drift else each.to_version,
        "rows": "rows",
        "differences": lambda each: "; ".join(map(str, each.drift.changes)) if each.drift is not None else None,
    }
    _show(
        shell,
        found,
        done,
        {"types": [each.document() for each in found.changes]},
        preview=lambda: shell.out.table(found.changes, columns),
        applied=lambda commit: f"{commit.rows} rows were upgraded",
        pending=bool(found),
    )


def load_types(target: str) -> dict[TypeId, TypeInfo]:
    """The types that ``module:name`` has."""
    types: dict[TypeId, TypeInfo] = {}
    for member in imported(target, "shop.types:TYPES", Invalid):
        if not (isinstance(member, type) and issubclass(member, Mixin)):
            raise Invalid(f"{target}: {member!r} is not an entity or relation type", remedy="name classes")
        info = type_info(member)
        types[info.type_id] = info
    return types


async def drop(
    shell: Shell,
    type_name: TypeName,
    purge: Annotated[bool, typer.Option("--purge", help="Also destroy its rows, in all of history.")] = False,
    token: Token = None,
    by: options.By = "",
    why: options.Why = "",
) -> None:
    """Drop a type, by a commit of its own.

    Shows what would be dropped, and the token to do it with. Queries as of earlier commits still see its rows, unless
    they are purged.
    """
    async with shell.open() as hf:
        found = await dropping.preview(hf.store, type_name, purge=purge)
        done = await _apply(hf.store, found, token, by, why)
    fields: dict[str, Any] = {
        "kind": found.type_id.kind,
        "type_name": found.type_id.name,
        "objects": found.objects,
        "files": found.files,
        "earlier_lives": len(found.lives),
        "relations": list(found.relations),
        "purge": found.purge,
    }
    state = "its rows are destroyed" if purge else f"queries as of commits up to {found.head} still see it"
    _show(
        shell,
        found,
        done,
        fields,
        preview=lambda: shell.out.record(fields),
        applied=lambda _: f"{found.type_id.name} is dropped; {state}",
    )


async def erase(
    shell: Shell,
    type_name: Annotated[str | None, typer.Argument(metavar="TYPE", help="A type.")] = None,
    key: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="The key; both ends of a relation.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish erasures that were begun, and nothing else.")
    ] = False,
    token: Token = None,
    by: options.By = "",
    why: options.Why = "",
) -> None:
    """Destroy the payload of one object in all of history.

    Shows how many rows that are, and the token to do it with. The key stays; history shows that it was erased.
    """
    if resume:
        await _resume(shell)
        return
    if type_name is None or not key:
        raise Invalid("there is nothing to erase", remedy="say holdfast onto erase TYPE KEY, or --resume")
    async with shell.open() as hf:
        found = await erasing.preview(hf.store, type_name, *key)
        done = await _apply(hf.store, found, token, by, why)
    fields: dict[str, Any] = {
        "kind": found.type_id.kind,
        "type_name": found.type_id.name,
        "key": list(found.identity),
        "rows": found.rows,
        "commits": list(found.commits),
    }
    _show(
        shell,
        found,
        done,
        fields,
        preview=lambda: shell.out.record({**fields, "key": "/".join(key)}),
        applied=lambda _: f"{found.rows} rows of {'/'.join(key)} are erased",
    )


async def _resume(shell: Shell) -> None:
    async with shell.open() as hf:
        done = await erasing.resume(hf.store, hf.ambient)
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
    by: options.By = "",
    why: options.Why = "",
) -> None:
    """Restore the state of an earlier commit, by a new commit.

    Shows what would change, and the token to do it with.
    """
    async with shell.open() as hf:
        number = int(commit) if commit.isdigit() else (await Tags(hf.store, hf.ambient).find(commit)).commit_id
        found = await reverting.preview(hf.store, number)
        done = await _apply(hf.store, found, token, by, why)
    types = [
        {"kind": each.kind, "type_name": each.name, "written": written, "retracted": retracted}
        for each, (written, retracted) in found.counts.items()
    ]
    same = f"everything is as it was at commit {found.target}"

    def preview() -> None:
        if types:
            columns = {"kind": "kind", "type": "type_name", "written again": "written", "retracted": "retracted"}
            shell.out.table(types, columns)
        else:
            shell.out.line(f"nothing to do: {same}")

    document = {"to_commit": found.target, "types": types}
    _show(shell, found, done, document, preview=preview, applied=lambda _: same, pending=bool(types))


async def _apply(store: Client, found: Plan, token: str | None, by: str, why: str) -> Commit | None:
    """Apply the previewed change with the token, if there is one, under a write lock of this command's own."""
    if token is None:
        return None
    lock = WriteLock(store, f"{by} {store.ambient.ids.attempt()}", store.ambient)
    try:
        return await apply(store, store.ambient, found, token, lock=lock, by=by, why=why)
    finally:
        await lock.close()


def _show(
    shell: Shell,
    found: Plan,
    done: Commit | None,
    document: dict[str, Any],
    *,
    preview: Callable[[], None],
    applied: Callable[[Commit], str],
    pending: bool = True,
) -> None:
    """Show the preview of a change, or the commit that has applied it. ``pending``: there is something to apply."""
    if shell.out.as_json:
        commit_id = done.commit_id if done is not None else None
        shell.out.document({**document, "head": found.head, "token": found.token, "commit_id": commit_id})
    elif done is not None:
        shell.out.line(f"commit {done.commit_id}: {applied(done)}")
    else:
        preview()
        if pending:
            shell.out.note(f"nothing was written: add --token {found.token}")
