"""Conflicts of identity, on record: two frames claimed one identity, and one of them was accepted.

The record is created once per identity and submitted hash, so its time is that of the first sight, whoever meets the
conflict again. The submitted bytes are in the store before the record that names them.
"""

from collections.abc import AsyncIterator

from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.ingest import layout
from holdfast.ingest.identity import BatchIdentity
from holdfast.ingest.manifest import AcceptedManifest, ConflictManifest
from holdfast.objects.store import CREATE, Lost, Store


async def record_conflict(
    store: Store, ambient: Ambient, accepted: AcceptedManifest, submitted_sha256: str, *, collector_id: str
) -> ConflictManifest:
    """The record of this conflict: ours, or the one that was there before."""
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
        raise Unavailable(f"{ours.key}: was there and is gone; conflicts are never deleted")
    return ConflictManifest.read(found)


async def find_conflict(store: Store, identity: BatchIdentity, submitted_sha256: str) -> ConflictManifest | None:
    found = await store.find(layout.conflict_key(identity, submitted_sha256))
    return None if found is None else ConflictManifest.read(found)


async def conflicts(store: Store, *, agent_id: str | None = None) -> AsyncIterator[ConflictManifest]:
    """Every conflict on record, of one agent or of all."""
    prefix = layout.CONFLICTS if agent_id is None else f"{layout.CONFLICTS}agent={agent_id.encode().hex()}/"
    async for key in store.keys(prefix):
        if layout.identity_in(key) is not None:
            yield ConflictManifest.read(await store.get(key))
