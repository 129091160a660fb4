"""Batches whose bytes have expired: the manifest stays, and a record beside it says what happened to the blob.

    expired/v1/agent={hex}/boot={hex}/{start}-{end}.json    beside the manifest of the same identity

A manifest is never changed, so this is an object of its own. It is created before the blob is deleted, and is never
deleted. A reader that does not find the bytes of an accepted batch looks here before it reports damage.

Errors: ``Corrupt`` for a record that cannot be read; ``Incompatible`` for a schema that this client does not know.
"""

from dataclasses import dataclass

from holdfast.base import codec
from holdfast.objects.store import ADDRESSED, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, BatchRecord
from holdfast.telemetry.identity import BatchIdentity


@dataclass(frozen=True)
class Expired(BatchRecord):
    WHAT = "the record of an expired batch"
    SCHEMA = "holdfast.expired_batch.v1"

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
        bytes_ = manifest.frame_sha256, manifest.frame_bytes, manifest.raw_blob_key
        return cls(manifest.identity, *bytes_, policy, generations, hours)

    @property
    def key(self) -> str:
        return layout.expired_key(self.identity)


async def record(store: Store, expired: Expired) -> None:
    """Create the record. An existing record stays: bytes expire once."""
    document = expired.document(accepted_manifest_key=layout.accepted_key(expired.identity))
    await store.put(expired.key, codec.encode(document), ADDRESSED)


async def find_expired(store: Store, identity: BatchIdentity) -> Expired | None:
    found = await store.find(layout.expired_key(identity))
    return None if found is None else Expired.read(found)
