"""``holdfast conflicts``: two different batches claimed one identity. See both, decide, and leave a record of it.

A conflict is named by the hash of the bytes that were refused, or the first characters of it.
"""

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import typer

from holdfast.base.clock import iso
from holdfast.base.errors import Corrupt, Invalid
from holdfast.cli.shell import Shell, noun_app
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.telemetry.accept.conflicts import (
    Decision,
    Hold,
    Holds,
    Resolution,
    Resolutions,
    UnreadableConflict,
    find_by_hash,
)
from holdfast.telemetry.accept.conflicts import conflicts as recorded
from holdfast.telemetry.accept.manifest import ConflictManifest

app = noun_app()

Hash = Annotated[str, typer.Argument(metavar="HASH", help="The submitted bytes' hash, or its first characters.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decides (default: your user name).")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; it is recorded.")]


@app.callback()
def conflicts() -> None:
    """List and resolve conflicts over the identity of batches."""


@asynccontextmanager
async def _open(shell: Shell) -> AsyncIterator[Client]:
    async with open_store(shell.existing_store(), settings=shell.settings) as store:
        yield store


@app.command("list")
async def list_conflicts(
    shell: Shell,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only conflicts of this agent.")] = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Only conflicts without a decision.")] = False,
) -> None:
    """List conflicts on record, by agent, boot and sequence number."""
    async with _open(shell) as store:
        resolutions = Resolutions(store, store.ambient)
        rows = []
        async for conflict in recorded(store, agent_id=agent):
            decisions: tuple[Decision, ...] | None
            try:
                decisions = await resolutions.of(conflict.identity, conflict.submitted_frame_sha256)
            except Corrupt:
                decisions = None
            if not (unresolved and decisions):
                rows.append(_row(conflict, decisions))
        columns = ("submitted", "accepted", "agent", "boot", "numbers", "first_seen", "resolution")
        shell.out.table(columns, rows, empty=f"no {'unresolved ' if unresolved else ''}conflicts in {store.spec.uri}")


@app.command()
async def show(shell: Shell, hash_: Hash) -> None:
    """Show one conflict: both hashes and keys, identity, range, first seen, and every decision."""
    async with _open(shell) as store:
        conflict = await find_by_hash(store, hash_)
        resolutions = Resolutions(store, store.ambient)
        decisions = await resolutions.of(conflict.identity, conflict.submitted_frame_sha256)
        shell.out.record(_fields(conflict, decisions, as_json=shell.out.as_json))


@app.command()
async def resolve(
    shell: Shell,
    hash_: Hash,
    why: Why,
    existing_is_authoritative: Annotated[
        bool,
        typer.Option(
            "--existing-is-authoritative", help="The accepted batch counts, and the agent drops the other. Final."
        ),
    ] = False,
    quarantine_identity: Annotated[
        bool,
        typer.Option("--quarantine-identity", help="All collectors refuse this agent and boot until it is lifted."),
    ] = False,
    by: By = None,
) -> None:
    """Decide a conflict, and record who did so, when and why."""
    if existing_is_authoritative == quarantine_identity:
        raise Invalid(
            "a conflict is resolved in one of two ways",
            remedy="give --existing-is-authoritative or --quarantine-identity",
        )
    who = by or getpass.getuser()

    async with _open(shell) as store:
        conflict = await find_by_hash(store, hash_)
        identity = conflict.identity
        resolution = Resolution.QUARANTINE_IDENTITY if quarantine_identity else Resolution.EXISTING_IS_AUTHORITATIVE
        # The record first: a hold without a reason on record would be the worse of the two to be left with.
        decisions = await Resolutions(store, store.ambient).decide(
            identity, conflict.submitted_frame_sha256, resolution, by=who, why=why
        )
        if quarantine_identity:
            await Holds(store, store.ambient).hold(identity.agent_id, identity.boot_id, by=who, why=why)
        shell.out.record(_fields(conflict, decisions, as_json=shell.out.as_json))


@app.command()
async def holds(shell: Shell) -> None:
    """List agents and boots in quarantine, and those that were."""
    async with _open(shell) as store:
        rows = [_hold_row(each) for each in await Holds(store, store.ambient).all()]
        columns = ("agent", "boot", "state", "by", "since", "why", "lifted_by", "lifted", "lifted_why")
        shell.out.table(columns, rows, empty=f"no agent is or was in quarantine in {store.spec.uri}")


@app.command()
async def lift(
    shell: Shell,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")],
    boot: Annotated[str, typer.Argument(metavar="BOOT", help="The boot's id.")],
    why: Why,
    by: By = None,
) -> None:
    """Let collectors take batches of a held agent and boot again."""
    async with _open(shell) as store:
        lifted = await Holds(store, store.ambient).lift(agent, boot, by=by or getpass.getuser(), why=why)
        shell.out.record(lifted.document())


def _row(conflict: ConflictManifest | UnreadableConflict, decisions: tuple[Decision, ...] | None) -> tuple[Any, ...]:
    """``decisions`` None: they cannot be read."""
    identity = conflict.identity
    accepted, seen = "corrupt", None
    if isinstance(conflict, ConflictManifest):
        accepted, seen = conflict.accepted_frame_sha256[:12], iso(conflict.observed_at_unix_ns)
    decided = "corrupt" if decisions is None else decisions[-1].resolution.value if decisions else None
    return (
        conflict.submitted_frame_sha256[:12],
        accepted,
        identity.agent_id,
        identity.boot_id,
        f"{identity.seq_start}-{identity.seq_end}",
        seen,
        decided,
    )


def _fields(conflict: ConflictManifest, decisions: tuple[Decision, ...], *, as_json: bool) -> dict[str, object]:
    identity = conflict.identity
    fields: dict[str, object] = {
        "agent_id": identity.agent_id,
        "boot_id": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
        "first_seen": iso(conflict.observed_at_unix_ns),
        "collector_id": conflict.collector_id,
        "accepted_frame_sha256": conflict.accepted_frame_sha256,
        "accepted_raw_blob_key": conflict.accepted_raw_blob_key,
        "accepted_manifest_key": conflict.accepted_manifest_key,
        "submitted_frame_sha256": conflict.submitted_frame_sha256,
        "submitted_raw_blob_key": conflict.submitted_raw_blob_key,
        "quarantine_manifest_key": conflict.key,
    }
    if as_json:
        return {**fields, "decisions": [each.document() for each in decisions]}
    for number, each in enumerate(decisions, 1):
        fields[f"decision {number}"] = f"{each.resolution.value}, by {each.by} at {each.at}: {each.why}"
    return fields


def _hold_row(hold: Hold) -> tuple[Any, ...]:
    state = "held" if hold.active else "lifted"
    return (
        hold.agent_id,
        hold.boot_id,
        state,
        hold.by,
        hold.at,
        hold.why,
        hold.lifted_by,
        hold.lifted_at,
        hold.lifted_why,
    )
