"""``holdfast onto``: an ontology's head, commits and lock. Nothing here needs the classes of its types."""

from typing import Annotated, Any

import typer

from holdfast.base.clock import iso
from holdfast.base.errors import NotFound
from holdfast.cli.onto import feed, upkeep
from holdfast.cli.onto.change import drop, erase, migrate, revert
from holdfast.cli.onto.files import export_type, import_type
from holdfast.cli.onto.shared import open_ontology
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.store import CREATE, Lost
from holdfast.ontology.chain import history
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Difference
from holdfast.ontology.commit import lock
from holdfast.ontology.commit.info import Info, read_info
from holdfast.ontology.commit.lock import LockState
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.format.manifest import Manifest

app = noun_app()
commits_app = noun_app()
lock_app = noun_app()
feed.schema_app.command("drop")(drop)
app.command()(migrate)
app.command()(erase)
app.command("export")(export_type)
app.command("import")(import_type)
app.add_typer(commits_app, name="commits", help="List, show and compare commits.")
app.add_typer(lock_app, name="lock", help="Show or break the write lock.")
app.add_typer(upkeep.index_app, name="index", help="Check or repair the indexes.")
app.command("verify")(upkeep.verify_store)
app.command()(upkeep.compact)
app.command()(feed.changes)
app.command()(revert)
app.add_typer(feed.tag_app, name="tag", help="Name commits.")
app.add_typer(feed.schema_app, name="schema", help="Show the schemas of types, or drop a type.")

SHOWN = 80
"""Characters of a key or a value in a table."""

CommitId = Annotated[int, typer.Argument(min=0, metavar="ID", help="A commit's number.")]


@app.callback()
def onto() -> None:
    """Inspect and maintain typed entities and relations."""


@app.command()
async def init(shell: Shell) -> None:
    """Make an empty ontology: write a head at commit 0, if there is none. The first commit does it too."""
    async with open_ontology(shell, new=True) as store:
        ambient = store.ambient
        empty = Head(updated_at=iso(ambient.clock.wall_ns()), runtime_id="holdfast onto init")
        outcome = await store.put(layout.HEAD, empty.body(ambient.ids.write_id()), CREATE)
        head = await read_head(store)
        made = not isinstance(outcome, Lost)
        if shell.out.as_json:
            shell.out.document({"created": made, "commit_id": head.commit_id})
        else:
            state = "made an empty ontology" if made else f"there is an ontology already, at commit {head.commit_id}"
            shell.out.line(f"{store.spec.uri}: {state}")


@app.command()
async def info(shell: Shell) -> None:
    """Show the head, the files and the index lag of each type, and the lock."""
    async with open_ontology(shell) as store:
        found = await read_info(store, store.ambient, Chain(store))
        if shell.out.as_json:
            shell.out.document(_info_document(found))
            return
        shell.out.record(
            {
                "head": f"commit {found.commit_id}",
                "manifest": found.manifest_path,
                "updated": found.updated_at or None,
                "lock": _lock_line(found.lock),
                "index lag": found.index_lag,
                "index warning": found.last_index_warning,
            }
        )
        if found.types:
            shell.out.line("")
            columns = ("kind", "type", "files", "last commit", "schema", "index lag", "advice")
            shell.out.table(columns, [_type_row(each) for each in found.types])


def _type_row(each: Any) -> tuple[object, ...]:
    kind, name = each.type_id
    return kind, name, each.files, each.last_commit, each.schema_version_id, each.index_lag, each.advice


def _info_document(found: Info) -> dict[str, Any]:
    return {
        "head": {
            "commit_id": found.commit_id,
            "manifest_path": found.manifest_path,
            "updated_at": found.updated_at or None,
        },
        "types": [
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
        ],
        "index_lag": found.index_lag,
        "last_index_warning": found.last_index_warning,
        "lock": _lock_document(found.lock),
    }


# --- commits ---


@commits_app.command("list")
async def list_commits(
    shell: Shell,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many to list at most.")] = 20,
    before: Annotated[int | None, typer.Option(min=1, metavar="ID", help="Only commits before this one.")] = None,
) -> None:
    """List commits, the newest first."""
    async with open_ontology(shell) as store:
        found = [each async for each in history.commits(store, limit=limit, before=before)]
        shell.out.table(
            ("commit", "created", "by", "rows", "types", "metadata"),
            map(_commit_row, found),
            empty=f"no commits in {store.spec.uri}",
            document=[_commit_document(each) for each in found],
        )


@commits_app.command()
async def show(shell: Shell, commit_id: CommitId) -> None:
    """Show one commit: who made it, when, and its files."""
    async with open_ontology(shell) as store:
        found = await history.find_commit(store, commit_id)
        if shell.out.as_json:
            shell.out.document(_commit_document(found))
            return
        shell.out.record(
            {
                "commit": found.commit_id,
                "manifest": found.path,
                "parent": found.parent.path if found.parent is not None else None,
                "created": found.created_at,
                "by": found.runtime_id,
                "metadata": dict(found.metadata) or None,
            }
        )
        if found.files:
            shell.out.line("")
            rows = [(*each.type_id, each.row_count, each.schema_version_id, each.path) for each in found.files]
            shell.out.table(("kind", "type", "rows", "schema", "file"), rows)


@commits_app.command()
async def diff(
    shell: Shell,
    older: Annotated[int, typer.Argument(min=0, metavar="OLDER", help="The earlier commit's number.")],
    newer: Annotated[int, typer.Argument(min=0, metavar="NEWER", help="The later commit's number.")],
) -> None:
    """Show what changed from one commit to another; 0 is the empty store."""
    async with open_ontology(shell) as store:
        found = await history.diff(store, older, newer)
        shell.out.table(
            ("change", "type", "key", "commit", "fields"),
            map(_difference_row, found),
            empty=f"nothing changed from commit {older} to commit {newer}",
            document=[_difference_document(each) for each in found],
        )


def _commit_row(found: Manifest) -> tuple[object, ...]:
    rows = sum(each.row_count for each in found.files)
    types = ", ".join(sorted(each.type_id.name for each in found.files))
    return found.commit_id, found.created_at, found.runtime_id, rows, types or None, dict(found.metadata) or None


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


def _difference_row(found: Difference) -> tuple[object, ...]:
    return found.action, found.type_id.name, _key(found), found.commit_id, _fields(found)


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
    return _short(key if key.isprintable() else repr(key))


def _fields(found: Difference) -> str:
    """Those that changed, old and new; all of an object that came or went."""
    before, after = found.before, found.after
    if before is None or after is None:
        return ", ".join(f"{name}={_short(repr(value))}" for name, value in (after or before or {}).items())
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    changed = ((name, _short(repr(before.get(name))), _short(repr(after.get(name)))) for name in names)
    return ", ".join(f"{name}: {old} to {new}" for name, old, new in changed)


def _short(text: str) -> str:
    """For a table; JSON has all of it."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


# --- lock ---


@lock_app.command("show")
async def show_lock(shell: Shell) -> None:
    """Show who holds the write lock, and until when."""
    async with open_ontology(shell) as store:
        found = await lock.show(store, store.ambient)
        shell.out.line(_lock_line(found), document=_lock_document(found))


@lock_app.command("break")
async def break_lock(shell: Shell) -> None:
    """Let the write lock expire now.

    Harmless at any moment: what is committed is decided by the head. Its holder's next commit takes the lock again.
    """
    async with open_ontology(shell) as store:
        found = await lock.break_lock(store, store.ambient)
        if found is None:
            raise NotFound(f"{layout.LOCK}: no lock to break", remedy="nothing holds writers up")
        if shell.out.as_json:
            shell.out.document({"broken": not found.expired, **(_lock_document(found) or {})})
        else:
            was = "was free already" if found.expired else "is free now"
            shell.out.line(f"the lock of {found.owner_id} {was}")


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
