"""Batches whose bytes have expired: the manifest stays, and a record beside it says what happened to the blob.

    expired/v1/agent={hex}/boot={hex}/{start}-{end}.json    beside the manifest of the same identity

A manifest is never changed, so this is an object of its own. It is created before the blob is deleted, and is never
deleted. A reader that does not find the bytes of an accepted batch looks here before it reports damage.

Errors: ``Corrupt`` for a record that cannot be read; ``Incompatible`` for a schema that this client does not know.
"""

from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.record import Record
from holdfast.objects.store import ADDRESSED, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.identity import BatchIdentity

SCHEMA = "holdfast.expired_batch.v1"


@dataclass(frozen=True)
class Expired(Record):
    WHAT = "the record of an expired batch"

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    frame_bytes: int
    raw_blob_key: str
    policy: str
    """Why: the setting and its value."""
    generations: tuple[str, ...]
    """Keys of the generations that closed the hours of its records."""
    hours: tuple[int, ...] = ()
    """These hours, counted from 1970."""

    @classmethod
    def of_manifest(
        cls, manifest: AcceptedManifest, policy: str, generations: tuple[str, ...] = (), hours: tuple[int, ...] = ()
    ) -> "Expired":
        identity = manifest.identity
        return cls(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            frame_sha256=manifest.frame_sha256,
            frame_bytes=manifest.frame_bytes,
            raw_blob_key=manifest.raw_blob_key,
            policy=policy,
            generations=generations,
            hours=hours,
        )


async def record(store: Store, expired: Expired) -> None:
    """Create the record. An existing record stays: bytes expire once."""
    identity = BatchIdentity(expired.agent_id, expired.boot_id, expired.seq_start, expired.seq_end)
    document = expired.document(schema=SCHEMA, accepted_manifest_key=layout.accepted_key(identity))
    await store.put(layout.expired_key(identity), codec.encode(document), ADDRESSED)


async def find_expired(store: Store, identity: BatchIdentity) -> Expired | None:
    found = await store.find(layout.expired_key(identity))
    if found is None:
        return None
    document = codec.decode(found.body, key=found.key)
    codec.check_schema(document, SCHEMA, key=found.key)
    return Expired.parse(document, key=found.key)
