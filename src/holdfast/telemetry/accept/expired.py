"""Batches whose bytes were expired, on record for ever: the manifest stays, and this says what became of its blob.

    expired/v1/agent={hex}/boot={hex}/{start}-{end}.json    beside the manifest of the same identity

A manifest is never changed, so the record stands beside it. It is created before the blob goes, and never deleted.
A reader that misses the bytes of an accepted batch looks here before it reports damage.

Errors: ``Corrupt`` for a record that cannot be read; ``Incompatible`` for a schema that this client does not know.
"""

from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt
from holdfast.objects.store import ADDRESSED, Object, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.identity import BatchIdentity

SCHEMA = "holdfast.expired_batch.v1"


@dataclass(frozen=True, slots=True)
class Expired:
    identity: BatchIdentity
    frame_sha256: str
    frame_bytes: int
    raw_blob_key: str
    policy: str
    """Why: the setting and its value."""
    generations: tuple[str, ...] = ()
    """Keys of the generations that closed the hours of its records."""
    hours: tuple[int, ...] = ()
    """These hours, counted from 1970."""

    @property
    def key(self) -> str:
        return layout.expired_key(self.identity)

    @classmethod
    def of_manifest(
        cls, manifest: AcceptedManifest, policy: str, generations: tuple[str, ...] = (), hours: tuple[int, ...] = ()
    ) -> "Expired":
        blob = (manifest.frame_sha256, manifest.frame_bytes, manifest.raw_blob_key)
        return cls(manifest.identity, *blob, policy, generations, hours)

    def document(self) -> Document:
        identity = self.identity
        return {
            "schema": SCHEMA,
            "agent_id": identity.agent_id,
            "boot_id": identity.boot_id,
            "seq_start": identity.seq_start,
            "seq_end": identity.seq_end,
            "accepted_manifest_key": layout.accepted_key(identity),
            "frame_sha256": self.frame_sha256,
            "frame_bytes": self.frame_bytes,
            "raw_blob_key": self.raw_blob_key,
            "policy": self.policy,
            "generations": list(self.generations),
            "hours": list(self.hours),
        }

    @classmethod
    def read(cls, found: Object) -> "Expired":
        document = codec.decode_schema(found.body, SCHEMA, key=found.key)
        try:
            numbers = (int(document["seq_start"]), int(document["seq_end"]))
            identity = BatchIdentity(str(document["agent_id"]), str(document["boot_id"]), *numbers)
            return cls(
                identity,
                str(document["frame_sha256"]),
                int(document["frame_bytes"]),
                str(document["raw_blob_key"]),
                str(document["policy"]),
                tuple(map(str, document["generations"])),
                tuple(map(int, document.get("hours", ()))),
            )
        except MALFORMED as error:
            raise Corrupt(f"{found.key}: not the record of an expired batch ({error!r})") from error


async def record(store: Store, expired: Expired) -> None:
    """Create the record. An existing record stays: bytes expire once."""
    await store.put(expired.key, codec.encode(expired.document()), ADDRESSED)


async def find_expired(store: Store, identity: BatchIdentity) -> Expired | None:
    found = await store.find(layout.expired_key(identity))
    return None if found is None else Expired.read(found)
