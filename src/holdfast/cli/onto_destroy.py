"""``holdfast onto schema drop`` and ``holdfast onto erase``: what destroys, with preview, token, and a record of it."""

from typing import Annotated, Any

import typer

from holdfast.base.errors import Invalid
from holdfast.cli.onto_shared import By, Token, Why, my_turn, open_ontology
from holdfast.cli.shell import Shell
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.maintain import drop as dropping
from holdfast.ontology.maintain import erase as erasing

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="A type; entity/NAME where a relation has it too.")]


async def drop(
    shell: Shell,
    type_name: TypeName,
    purge: Annotated[bool, typer.Option("--purge", help="Destroy its rows, in all of history.")] = False,
    token: Token = None,
    by: By = "",
    why: Why = "",
) -> None:
    """End a type, by a commit of its own.

    Shows what would end, and the token to do it with. Queries as of earlier commits still see its rows, unless they
    are purged.
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
    resume: Annotated[bool, typer.Option("--resume", help="Finish what was begun, and nothing else.")] = False,
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
        "rows_of_ended_chains": found.ended,
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
    if shell.out.as_json:
        shell.out.document({"finished": done.finished, "removed": done.removed})
        return
    shell.out.line(f"finished what commits {done.finished} ordered" if done.finished else "nothing is unfinished")
    if done.removed:
        shell.out.line(f"{len(done.removed)} objects that were left behind with erased payload are removed")
