"""``holdfast onto schema drop`` and ``holdfast onto erase``: what destroys, with preview, token, and a record of it."""

from typing import Annotated, Any

import typer

from holdfast.cli.onto_shared import By, Token, Why, my_turn, open_ontology
from holdfast.cli.shell import Shell
from holdfast.ontology import drop as dropping
from holdfast.ontology.commit import Commit

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="A type; entity/NAME where a relation has it too.")]


def drop(
    context: typer.Context,
    type_name: TypeName,
    purge: Annotated[bool, typer.Option("--purge", help="Destroy its rows, in all of history.")] = False,
    token: Token = None,
    by: By = "holdfast onto schema drop",
    why: Why = "",
) -> None:
    """End a type, by a commit of its own.

    Shows what would end, and the token to do it with. Queries as of earlier commits still see its rows, unless they
    are purged.
    """
    shell = Shell.of(context)

    async def work() -> tuple[dropping.Preview, Commit | None]:
        async with open_ontology(shell) as store:
            found = await dropping.preview(store, type_name, purge=purge)
            if token is None:
                return found, None
            async with my_turn(store, by) as turn:
                return found, await dropping.apply(store, store.ambient, found, token, turn=turn, by=by, why=why)

    found, done = shell.run(work())
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
