"""``holdfast onto``: inspect and maintain an ontology. Only ``import`` and ``migrate`` need the classes of types."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Invalid, NotFound
from holdfast.cli import options
from holdfast.cli.onto import upkeep
from holdfast.cli.onto.change import drop, erase, load_types, migrate, revert
from holdfast.cli.onto.sql import moment_of
from holdfast.cli.output import Columns, json_text
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.store import CREATE, Lost
from holdfast.ontology.bulk.decide import Policy
from holdfast.ontology.bulk.transfer import FileFormat, export_file, import_file
from holdfast.ontology.chain import history
from holdfast.ontology.chain.catalog import schema_at
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Tags
from holdfast.ontology.commit import lock
from holdfast.ontology.commit.info import read_info
from holdfast.ontology.commit.lock import LockState
from holdfast.ontology.feed import Difference, Feed
from holdfast.ontology.feed import diff as differences
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.format.schema_objects import Versions
from holdfast.ontology.maintain.drop import find_type
from holdfast.ontology.session import Ontology, Options
from holdfast.platform.open import Holdfast

app = noun_app()
commits_app, lock_app, tag_app, schema_app = noun_app(), noun_app(), noun_app(), noun_app()

LONGEST = 80
"""Characters of a key or a value in a table."""

CommitId = Annotated[int, typer.Argument(min=0, metavar="ID", help="A commit's number.")]
FileStyle = Annotated[
    FileFormat | None, typer.Option("--format", help="The file's format (default: by its extension).")
]
TagName = Annotated[str, typer.Argument(metavar="NAME", help="The tag.")]


@app.command()
async def init(shell: Shell) -> None:
    """Make an empty ontology: write a head at commit 0, if there is none. The first commit does it too."""
    async with shell.open(new=True) as hf:
        empty = Head(updated_at=iso(hf.ambient.clock.wall_ns()), runtime_id="holdfast onto init")
        outcome = await hf.store.put(layout.HEAD, empty.body(hf.ambient.ids.write_id()), CREATE)
        head = await read_head(hf.store)
        made = not isinstance(outcome, Lost)
        state = "made an empty ontology" if made else f"there is an ontology already, at commit {head.commit_id}"
        shell.out.line(f"{hf.store.spec.uri}: {state}", document={"created": made, "commit_id": head.commit_id})


@app.command()
async def info(shell: Shell) -> None:
    """Show the head, the files and the index lag of each type, and the lock."""
    async with shell.open() as hf:
        found = await read_info(hf.store, hf.ambient, Chain(hf.store))
    types = [
        {
            "kind": each.type_id.kind,
            "type_name": each.type_id.name,
            "files": each.files,
            "last_commit": each.last_commit,
            "schema_version_id": each.schema_version_id,
            "index_lag": each.index_lag,
            "advice": each.advice,
        }
        for each in found.types
    ]
    head = {
        "commit_id": found.commit_id,
        "manifest_path": found.manifest_path,
        "updated_at": found.updated_at or None,
    }
    shell.out.record(
        {
            "head": f"commit {found.commit_id}",
            "manifest": found.manifest_path,
            "updated": found.updated_at or None,
            "lock": _lock_line(found.lock),
            "index lag": found.index_lag,
            "index warning": found.last_index_warning,
        },
        document={
            "head": head,
            "types": types,
            "index_lag": found.index_lag,
            "last_index_warning": found.last_index_warning,
            "lock": _lock_document(found.lock),
        },
    )
    if types and not shell.out.as_json:
        shell.out.line("")
        titles = ("kind", "type", "files", "last commit", "schema", "index lag", "advice")
        shell.out.table(types, dict(zip(titles, types[0], strict=True)))


@app.command("export")
async def export_type(
    shell: Shell,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="An entity or relation type.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Such as customers.parquet.")],
    style: FileStyle = None,
    as_of: options.AsOf = None,
) -> None:
    """Export a type to a file: Parquet, Arrow, CSV or JSON lines."""
    async with shell.open() as hf:
        moment = None if as_of is None else moment_of(as_of)
        done = await export_file(hf.store, type_name, path, style=style, as_of=moment)
    shell.out.record({"rows": done.rows, "commit_id": done.commit_id, "file": str(done.path)})


@app.command("import")
async def import_type(
    shell: Shell,
    target: Annotated[str, typer.Argument(metavar="MODULE:TYPE", help="The class of the objects in the file.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Such as customers.csv.")],
    style: FileStyle = None,
    on_conflict: Annotated[
        Policy, typer.Option("--on-conflict", help="What to do with objects that exist with other fields.")
    ] = Policy.ERROR,
    absent: options.Absent = False,
    if_head: options.IfHead = None,
    by: options.By = "",
) -> None:
    """Import a file as one commit."""
    types = load_types(target)
    if len(types) != 1:
        raise Invalid(f"{target} has {len(types)} types, and a file has one", remedy="name one class")
    (info,) = types.values()
    async with shell.open(new=True) as hf:
        session = Options(runtime_id=f"{by} {hf.ambient.ids.attempt()}")
        async with Ontology(hf.store, hf.ambient, [info.python], session) as onto:
            done = await import_file(
                onto,
                info.python,
                path,
                style=style,
                on_conflict=on_conflict,
                absent=absent,
                if_head=if_head,
                metadata={"import": {"file": path.name, "by": by}},
            )
    shell.out.record(
        {
            "rows": done.rows,
            "added": done.added,
            "replaced": done.replaced,
            "skipped": done.skipped,
            "same": done.same,
            "commit_id": done.commit.commit_id if done.commit is not None else None,
        }
    )


@app.command()
async def changes(
    shell: Shell,
    since: Annotated[int, typer.Option(min=0, metavar="ID", help="Only changes of commits after this one.")] = 0,
    type_name: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only these; repeatable.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with later commits, until interrupted.")] = False,
) -> None:
    """Print what each commit changed, one JSON document per line."""
    async with shell.open() as hf:
        ledger = (await _ledger(hf))[1] if type_name else None
        types = [find_type(ledger, name) for name in type_name or []] if ledger is not None else None
        feed = Feed(hf.store, since=since, types=types)
        async for change in feed.follow() if follow else feed.changes():
            shell.out.document(change.document())


app.command()(migrate)
app.command()(erase)
app.command("verify")(upkeep.verify_store)
app.command()(upkeep.compact)
app.command()(revert)
app.add_typer(commits_app, name="commits", help="List, show and compare commits.")
app.add_typer(lock_app, name="lock", help="Show or break the write lock.")
app.add_typer(upkeep.index_app, name="index", help="Check or repair the indexes.")
app.add_typer(tag_app, name="tag", help="Name commits.")
app.add_typer(schema_app, name="schema", help="Show the schemas of types, or drop a type.")


async def _ledger(hf: Holdfast) -> tuple[Chain, Ledger]:
    chain = Chain(hf.store)
    return chain, await chain.ledger((await read_head(hf.store)).place)


# --- commits ---


@commits_app.command("list")
async def list_commits(
    shell: Shell,
    limit: options.Limit = 20,
    before: Annotated[int | None, typer.Option(min=1, metavar="ID", help="Only commits before this one.")] = None,
) -> None:
    """List commits, the newest first."""
    async with shell.open() as hf:
        found = [each async for each in history.commits(hf.store, limit=limit, before=before)]
    columns: Columns = {
        "commit": "commit_id",
        "created": "created_at",
        "by": "runtime_id",
        "rows": lambda each: sum(file.row_count for file in each.files),
        "types": lambda each: ", ".join(sorted(file.type_id.name for file in each.files)) or None,
        "metadata": lambda each: dict(each.metadata) or None,
    }
    shell.out.table(found, columns, document=_commit_document, empty=f"no commits in {hf.store.spec.uri}")


@commits_app.command()
async def show(shell: Shell, commit_id: CommitId) -> None:
    """Show one commit: who made it, when, and its files."""
    async with shell.open() as hf:
        found = await history.find_commit(hf.store, commit_id)
    shell.out.record(
        {
            "commit": found.commit_id,
            "manifest": found.path,
            "parent": found.parent.path if found.parent is not None else None,
            "created": found.created_at,
            "by": found.runtime_id,
            "metadata": dict(found.metadata) or None,
        },
        document=_commit_document(found),
    )
    if found.files and not shell.out.as_json:
        shell.out.line("")
        columns: Columns = {
            "kind": lambda each: each.type_id.kind,
            "type": lambda each: each.type_id.name,
            "rows": "row_count",
            "schema": "schema_version_id",
            "file": "path",
        }
        shell.out.table(found.files, columns)


@commits_app.command()
async def diff(
    shell: Shell,
    older: Annotated[int, typer.Argument(min=0, metavar="OLDER", help="The earlier commit's number.")],
    newer: Annotated[int, typer.Argument(min=0, metavar="NEWER", help="The later commit's number.")],
) -> None:
    """Show what changed from one commit to another; 0 is the empty store."""
    async with shell.open() as hf:
        found = await differences(hf.store, older, newer)
    columns: Columns = {
        "change": "action",
        "type": lambda each: each.type_id.name,
        "key": _key,
        "commit": "commit_id",
        "fields": _changed_fields,
    }
    empty = f"nothing changed from commit {older} to commit {newer}"
    shell.out.table(found, columns, document=_difference_document, empty=empty)


def _commit_document(found: Manifest) -> dict[str, Any]:
    return {
        "commit_id": found.commit_id,
        "manifest_path": found.path,
        "parent_commit_id": found.parent.commit_id if found.parent is not None else None,
        "created_at": found.created_at,
        "runtime_id": found.runtime_id,
        "metadata": dict(found.metadata),
        "files": [each.document() for each in found.files],
        "registered": [each.type_id.label for each in found.registered],
    }


def _difference_document(found: Difference) -> dict[str, Any]:
    return {
        "change": found.action,
        "kind": found.type_id.kind,
        "type_name": found.type_id.name,
        "key": list(found.identity),
        "commit_id": found.commit_id,
        "before": found.before,
        "after": found.after,
    }


def _key(found: Difference) -> str:
    key = "/".join(part for part in found.identity if part)
    return _shortened(key if key.isprintable() else repr(key))


def _changed_fields(found: Difference) -> str:
    """The changed fields, old and new; all fields of an object that was added or removed."""
    before, after = found.before, found.after
    if before is None or after is None:
        return ", ".join(f"{name}={_shortened(repr(value))}" for name, value in (after or before or {}).items())
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed = ((name, _shortened(repr(before.get(name))), _shortened(repr(after.get(name)))) for name in names)
    return ", ".join(f"{name}: {old} to {new}" for name, old, new in changed)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


# --- tags ---


@tag_app.command("list")
async def list_tags(shell: Shell) -> None:
    """List tags."""
    async with shell.open() as hf:
        found = await Tags(hf.store, hf.ambient).all()
    columns = ("name", "commit_id", "created_at", "created_by", "note")
    results = [{name: getattr(each, name) for name in columns} for each in found]
    shell.out.table(results, columns, empty="no tags")


@tag_app.command("set")
async def set_tag(
    shell: Shell,
    name: TagName,
    commit_id: Annotated[
        int | None, typer.Argument(min=1, metavar="ID", help="The commit (default: the head).")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = "",
    by: options.By = "",
    move: Annotated[bool, typer.Option("--move", help="Move the tag if the name is taken.")] = False,
) -> None:
    """Name a commit."""
    async with shell.open() as hf:
        made = await Tags(hf.store, hf.ambient).set(name, commit_id, by=by, note=note, move=move)
    shell.out.record({"name": made.name, "commit_id": made.commit_id, "manifest_path": made.manifest_path})


@tag_app.command("delete")
async def delete_tag(shell: Shell, name: TagName) -> None:
    """Delete a tag; the commit stays."""
    async with shell.open() as hf:
        await Tags(hf.store, hf.ambient).delete(name)
    shell.out.record({"deleted": name})


# --- schemas ---


@schema_app.command("export")
async def export_schemas(
    shell: Shell, type_name: Annotated[str | None, typer.Argument(metavar="TYPE", help="Only this.")] = None
) -> None:
    """Print the current schemas as one JSON document."""
    found: dict[str, dict[str, Any]] = {"entity": {}, "relation": {}}
    async with shell.open() as hf:
        chain, ledger = await _ledger(hf)
        types = sorted({*ledger.heads, *ledger.schemas}) if type_name is None else [find_type(ledger, type_name)]
        for each in types:
            stored = await schema_at(chain, ledger, each)
            if stored is not None:
                found[each.kind][each.name] = stored.schema
    shell.out.line(json_text(found, sort_keys=True), document=found)


schema_app.command("drop")(drop)


@schema_app.command("history")
async def schema_history(
    shell: Shell, type_name: Annotated[str, typer.Argument(metavar="TYPE", help="A type.")]
) -> None:
    """List the versions that a type's schema has had."""
    async with shell.open() as hf:
        key = layout.versions_key(*find_type((await _ledger(hf))[1], type_name))
        stored = await hf.store.find(key)
        if stored is None:
            raise NotFound(f"{key}: {type_name} was never registered", remedy="open a session with its class")
        found = Versions.parse(codec.decode(stored.body, key=key), key=key)
    if not found.versions:
        raise Invalid(f"{type_name} has no versions")
    shell.out.table(
        {
            "version": each.schema_version_id,
            "hash": each.schema_hash[:12],
            "created_at": each.created_at,
            "by": each.runtime_id,
            "reason": each.reason,
            "fields": ", ".join(json.loads(each.schema_json).get("fields", {})),
        }
        for each in found.versions
    )


# --- lock ---


@lock_app.command("show")
async def show_lock(shell: Shell) -> None:
    """Show who holds the write lock, and until when."""
    async with shell.open() as hf:
        found = await lock.show(hf.store, hf.ambient)
    shell.out.line(_lock_line(found), document=_lock_document(found))


@lock_app.command("break")
async def break_lock(shell: Shell) -> None:
    """Let the write lock expire now.

    Harmless at any moment: what is committed is decided by the head. Its holder's next commit takes the lock again.
    """
    async with shell.open() as hf:
        found = await lock.break_lock(hf.store, hf.ambient)
    if found is None:
        raise NotFound(f"{layout.LOCK}: no lock to break", remedy="no writer is waiting for it")
    was = "was free already" if found.expired else "is free now"
    document = {"broken": not found.expired, **(_lock_document(found) or {})}
    shell.out.line(f"the lock of {found.owner_id} {was}", document=document)


def _lock_document(found: LockState | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "owner_id": found.owner_id,
        "epoch": found.epoch,
        "acquired_at": found.acquired_at,
        "expires_at": found.expires_at,
        "released_at": found.released_at,
        "expired": found.expired,
        "seconds_left": max(0.0, found.remaining_ms / 1000),
    }


def _lock_line(found: LockState | None) -> str:
    if found is None:
        return "free: never taken"
    if found.expired:
        how = "expired" if found.released_at is None else "released"
        return f"free: last held by {found.owner_id}, {how} {-found.remaining_ms / 1000:.1f} s ago"
    return f"held by {found.owner_id} for another {found.remaining_ms / 1000:.1f} s"
