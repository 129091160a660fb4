"""Conflicts of identity, on record: two frames claimed one identity, and one of them was accepted.

The record is created once per identity and submitted hash, so its time is that of the first sight, also when another
collector sees the conflict again. The submitted bytes are in the store before the record that names them.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.identity import BatchIdentity


async def record_conflict(
    store: Store, ambient: Ambient, accepted: AcceptedManifest, submitted_sha256: str, *, collector_id: str
) -> ConflictManifest:
    """Record a conflict; returns the record, which may have existed before."""
    ours = ConflictManifest(
        identity=accepted.identity,
        accepted_manifest_key=accepted.key,
        accepted_raw_blob_key=accepted.raw_blob_key,
        accepted_frame_sha256=accepted.frame_sha256,
        submitted_raw_blob_key=layout.blob_key(submitted_sha256),
        submitted_frame_sha256=submitted_sha256,
        observed_at_unix_ns=ambient.clock.wall_ns(),
        collector_id=collector_id,
        write_id=ambient.ids.write_id(),
    )
    outcome = await store.put(ours.key, ours.encode(), CREATE)
    if not isinstance(outcome, Lost):
        return ours
    found = outcome.current or await store.find(ours.key)
    if found is None:
        raise Unavailable(f"{ours.key}: was there and is gone: it was resolved for good, and removed")
    return ConflictManifest.read(found)


async def find_conflict(store: Store, identity: BatchIdentity, submitted_sha256: str) -> ConflictManifest | None:
    found = await store.find(layout.conflict_key(identity, submitted_sha256))
    return None if found is None else ConflictManifest.read(found)


async def conflicts_of(store: Store, identity: BatchIdentity) -> list[ConflictManifest]:
    """Every conflict over this identity. ``Corrupt`` or ``Incompatible`` if one cannot be read."""
    keys = [key async for key in store.keys(layout.conflict_folder(identity))]
    return [ConflictManifest.read(await store.get(key)) for key in keys]


@dataclass(frozen=True, slots=True)
class UnreadableConflict:
    """A record of a conflict that cannot be read; its key still names the identity and the hash."""

    key: str
    identity: BatchIdentity
    why: str

    @property
    def submitted_frame_sha256(self) -> str:
        return self.key.rpartition("/")[2].removesuffix(".json")

    def document(self) -> Document:
        return {
            "agent_id": self.identity.agent_id,
            "boot_id": self.identity.boot_id,
            "seq_start": self.identity.seq_start,
            "seq_end": self.identity.seq_end,
            "submitted_frame_sha256": self.submitted_frame_sha256,
            "corrupt": self.why,
        }


async def conflicts(
    store: Store, *, agent_id: str | None = None
) -> AsyncIterator[ConflictManifest | UnreadableConflict]:
    """Every conflict on record, of one agent or of all. One that cannot be read hides no other."""
    prefix = layout.CONFLICTS if agent_id is None else f"{layout.CONFLICTS}agent={agent_id.encode().hex()}/"
    async for key in store.keys(prefix):
        identity = layout.identity_in(key)
        if identity is None:
            continue
        try:
            yield ConflictManifest.read(await store.get(key))
        except (Corrupt, Incompatible) as error:
            yield UnreadableConflict(key, identity, str(error))
