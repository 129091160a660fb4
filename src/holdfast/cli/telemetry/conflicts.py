"""``holdfast conflicts``: list batches of which two versions claimed one identity, decide, and record the decision.

A conflict is named by the hash of the bytes that were refused, or the first characters of it.
"""

from typing import Annotated, Any

import typer

from holdfast.base.clock import iso
from holdfast.base.errors import Corrupt, Invalid
from holdfast.cli import options
from holdfast.cli.shell import Shell, noun_app
from holdfast.telemetry.accept.conflicts import (
    Decision,
    Holds,
    Resolution,
    Resolutions,
    UnreadableConflict,
    conflicts,
    find_by_hash,
)
from holdfast.telemetry.accept.manifest import ConflictManifest

app = noun_app()

Hash = Annotated[str, typer.Argument(metavar="HASH", help="The submitted bytes' hash, or its first characters.")]


@app.command("list")
async def list_conflicts(
    shell: Shell,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only conflicts of this agent.")] = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Only conflicts without a decision.")] = False,
) -> None:
    """List conflicts, by agent, boot and sequence number."""
    found = []
    async with shell.open() as hf:
        resolutions = Resolutions(hf.store, hf.ambient)
        async for conflict in conflicts(hf.store, agent_id=agent):
            decisions: tuple[Decision, ...] | None
            try:
                decisions = await resolutions.of(conflict.identity, conflict.submitted_frame_sha256)
            except Corrupt:
                decisions = None
            if not (unresolved and decisions):
                found.append(_listed(conflict, decisions))
    shell.out.table(found, empty=f"no {'unresolved ' if unresolved else ''}conflicts in {hf.store.spec.uri}")


@app.command()
async def show(shell: Shell, hash_: Hash) -> None:
    """Show one conflict: both hashes and keys, identity, range, first seen, and every decision."""
    async with shell.open() as hf:
        conflict = await find_by_hash(hf.store, hash_)
        decisions = await Resolutions(hf.store, hf.ambient).of(conflict.identity, conflict.submitted_frame_sha256)
    _show(shell, conflict, decisions)


@app.command()
async def resolve(
    shell: Shell,
    hash_: Hash,
    why: options.Why,
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
    by: options.By = "",
) -> None:
    """Decide a conflict, and record who did so, when and why."""
    if existing_is_authoritative == quarantine_identity:
        raise Invalid(
            "a conflict is resolved in one of two ways",
            remedy="give --existing-is-authoritative or --quarantine-identity",
        )
    async with shell.open() as hf:
        conflict = await find_by_hash(hf.store, hash_)
        identity = conflict.identity
        resolution = Resolution.QUARANTINE_IDENTITY if quarantine_identity else Resolution.EXISTING_IS_AUTHORITATIVE
        decisions = await Resolutions(hf.store, hf.ambient).decide(
            identity, conflict.submitted_frame_sha256, resolution, by=by, why=why
        )
    _show(shell, conflict, decisions)


@app.command()
async def holds(shell: Shell) -> None:
    """List agents and boots in quarantine, and those that were."""
    async with shell.open() as hf:
        found = await Holds(hf.store, hf.ambient).all()
    results = (
        {
            "agent": each.agent_id,
            "boot": each.boot_id,
            "state": "held" if each.active else "lifted",
            "by": each.by,
            "since": each.at,
            "why": each.why,
            "lifted_by": each.lifted_by,
            "lifted": each.lifted_at,
            "lifted_why": each.lifted_why,
        }
        for each in found
    )
    shell.out.table(results, empty=f"no agent is or was in quarantine in {hf.store.spec.uri}")


@app.command()
async def lift(
    shell: Shell,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")],
    boot: Annotated[str, typer.Argument(metavar="BOOT", help="The boot's id.")],
    why: options.Why,
    by: options.By = "",
) -> None:
    """Let collectors take batches of a held agent and boot again."""
    async with shell.open() as hf:
        lifted = await Holds(hf.store, hf.ambient).lift(agent, boot, by=by, why=why)
    shell.out.record(lifted.document())


def _listed(conflict: ConflictManifest | UnreadableConflict, decisions: tuple[Decision, ...] | None) -> dict[str, Any]:
    """``decisions`` is None if they cannot be read."""
    identity = conflict.identity
    readable = conflict if isinstance(conflict, ConflictManifest) else None
    return {
        "submitted": conflict.submitted_frame_sha256[:12],
        "accepted": readable.accepted_frame_sha256[:12] if readable else "corrupt",
        "agent": identity.agent_id,
        "boot": identity.boot_id,
        "numbers": f"{identity.seq_start}-{identity.seq_end}",
        "first_seen": iso(readable.observed_at_unix_ns) if readable else None,
        "resolution": "corrupt" if decisions is None else decisions[-1].resolution.value if decisions else None,
    }


def _show(shell: Shell, conflict: ConflictManifest, decisions: tuple[Decision, ...]) -> None:
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
    document = {**fields, "decisions": [each.document() for each in decisions]}
    for number, each in enumerate(decisions, 1):
        fields[f"decision {number}"] = f"{each.resolution.value}, by {each.by} at {each.at}: {each.why}"
    shell.out.record(fields, document=document)
