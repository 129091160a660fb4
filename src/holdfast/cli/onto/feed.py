"""``holdfast onto changes|tag|schema``: what each commit changed, names of commits, schemas of types."""

import json
from typing import Annotated, Any

import typer

from holdfast.base import codec
from holdfast.base.errors import Invalid, NotFound
from holdfast.cli.onto.shared import By, no_such_type, open_ontology
from holdfast.cli.output import json_text
from holdfast.cli.shell import Shell, noun_app
from holdfast.ontology.chain.catalog import schema_at
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Tags
from holdfast.ontology.feed import Change, Feed
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.schema_objects import Versions
from holdfast.ontology.types.refs import TypeId

tag_app = noun_app()
schema_app = noun_app()

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tag.")]


async def changes(
    shell: Shell,
    since: Annotated[int, typer.Option(min=0, metavar="ID", help="Only changes of commits after this one.")] = 0,
    type_name: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only these; repeatable.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with later commits, until interrupted.")] = False,
) -> None:
    """Print what each commit changed, one JSON document per line."""
    async with open_ontology(shell) as store:
        types = None
        if type_name:
            ledger = await Chain(store).ledger((await read_head(store)).place)
            types = [_known(ledger, name) for name in type_name]
        feed = Feed(store, since=since, types=types)
        async for change in feed.follow() if follow else feed.changes():
            _print(shell, change)


def _print(shell: Shell, change: Change) -> None:
    shell.out.line(json_text(change.document()), document=change.document())


def _known(ledger: Ledger, name: str) -> TypeId:
    known = {*ledger.heads, *ledger.schemas}
    found = [each for each in known if each.name == name]
    if not found:
        raise no_such_type(name, (each.name for each in known))
    return found[0]


# --- tags ---


@tag_app.command("list")
async def list_tags(shell: Shell) -> None:
    """List tags."""
    async with open_ontology(shell) as store:
        found = await Tags(store, store.ambient).all()
    columns = ("name", "commit_id", "created_at", "created_by", "note")
    if found or shell.out.as_json:
        shell.out.table(columns, [tuple(getattr(each, column) for column in columns) for each in found])
    else:
        shell.out.note("no tags")


@tag_app.command("set")
async def set_tag(
    shell: Shell,
    name: Name,
    commit_id: Annotated[
        int | None, typer.Argument(min=1, metavar="ID", help="The commit (default: the head).")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = "",
    by: By = "",
    move: Annotated[bool, typer.Option("--move", help="Move the tag if the name is taken.")] = False,
) -> None:
    """Name a commit."""
    async with open_ontology(shell) as store:
        made = await Tags(store, store.ambient).set(name, commit_id, by=by, note=note, move=move)
    shell.out.record({"name": made.name, "commit_id": made.commit_id, "manifest_path": made.manifest_path})


@tag_app.command("delete")
async def delete_tag(shell: Shell, name: Name) -> None:
    """Delete a tag; the commit stays."""
    async with open_ontology(shell) as store:
        await Tags(store, store.ambient).delete(name)
    shell.out.record({"deleted": name})


# --- schemas ---


@schema_app.command("export")
async def export_schemas(
    shell: Shell, type_name: Annotated[str | None, typer.Argument(metavar="TYPE", help="Only this.")] = None
) -> None:
    """Print the current schemas as one JSON document."""
    async with open_ontology(shell) as store:
        chain = Chain(store)
        ledger = await chain.ledger((await read_head(store)).place)
        types = sorted({*ledger.heads, *ledger.schemas}) if type_name is None else [_known(ledger, type_name)]
        found: dict[str, dict[str, Any]] = {"entity": {}, "relation": {}}
        for each in types:
            stored = await schema_at(chain, ledger, each)
            if stored is not None:
                found[each.kind][each.name] = stored.schema
    shell.out.line(json_text(found, sort_keys=True), document=found)


@schema_app.command("history")
async def schema_history(
    shell: Shell, type_name: Annotated[str, typer.Argument(metavar="TYPE", help="A type.")]
) -> None:
    """List the versions that a type's schema has had."""
    async with open_ontology(shell) as store:
        ledger = await Chain(store).ledger((await read_head(store)).place)
        key = layout.versions_key(*_known(ledger, type_name))
        stored = await store.find(key)
        if stored is None:
            raise NotFound(f"{key}: {type_name} was never registered", remedy="open a session with its class")
        found = Versions.parse(codec.decode(stored.body, key=key), key=key)
    if not found.versions:
        raise Invalid(f"{type_name} has no versions")
    columns = ("version", "hash", "created_at", "by", "reason", "fields")
    rows = [
        (
            each.schema_version_id,
            each.schema_hash[:12],
            each.created_at,
            each.runtime_id,
            each.reason,
            ", ".join(json.loads(each.schema_json).get("fields", {})),
        )
        for each in found.versions
    ]
    shell.out.table(columns, rows)
