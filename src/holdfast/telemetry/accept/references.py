"""References: small objects by which accepted batches are found by time, and the users of a blob. They prove nothing.

The **reference by time** is written before the manifest, beside the bytes, so every accepted batch can be found by time
(``telemetry.discover``). It counts if it was written at most ``IN_TIME_NS`` before the manifest, by the store's own
times of both. Readers look for a missing manifest until ``HORIZON_NS`` has passed, twice as long.

A batch is acknowledged only when its reference counts. A collector knows that if it wrote the reference itself and took
no longer than ``SLOW_NS`` until the manifest existed; otherwise it reads the reference and, if that does not count,
writes it again (``refer``). Each version of a reference differs from those before it, and is replaced only by a
conditional write: one that counts is never written again, so its time never changes.

All other references follow from the manifest, byte by byte. The reconciler writes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible
from holdfast.objects.store import ADDRESSED, CREATE, IfMatch, Meta, Object, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest

ACCEPTED_BY_TIME_SCHEMA = "holdfast.accepted_by_time.v1"
ACCEPTED_BY_BLOB_SCHEMA = "holdfast.accepted_by_blob.v1"
CONFLICT_BY_BLOB_SCHEMA = "holdfast.conflict_by_blob.v1"
BLOB_BY_TIME_SCHEMA = "holdfast.raw_blob_by_time.v1"

HORIZON_NS = 600 * 1_000_000_000
"""How long readers look for the manifest of a reference."""
IN_TIME_NS = HORIZON_NS // 2
SLOW_NS = HORIZON_NS // 4


@dataclass(frozen=True, slots=True)
class Reference:
    key: str
    body: bytes


def by_time(manifest: AcceptedManifest, **more: str) -> Reference:
    """``more`` makes it differ from others of this batch: the ``write_id`` of an attempt, or what it ``replaces``."""
    document: Document = {"schema": ACCEPTED_BY_TIME_SCHEMA, "accepted_manifest_key": manifest.key, **more}
    key = layout.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity)
    return Reference(key, codec.encode(document))


def named_manifest(reference: Object) -> str:
    """The key of the manifest that a reference by time names. ``Corrupt`` if it names none, ``Incompatible`` for a
    schema that is not known here."""
    document = codec.decode(reference.body, key=reference.key)
    codec.check_schema(document, ACCEPTED_BY_TIME_SCHEMA, key=reference.key)
    named = document.get("accepted_manifest_key")
    identity = layout.identity_in(named) if isinstance(named, str) else None
    if identity is None or named != layout.accepted_key(identity):
        raise Corrupt(f"{reference.key}: names no manifest")
    return str(named)


def is_in_time(reference: Object | Meta, manifest_ns: int) -> bool:
    """Whether a reference was written early enough to count; ``manifest_ns`` is when its manifest was written."""
    return manifest_ns - reference.modified_ns <= IN_TIME_NS


async def refer(store: Store, manifest: AcceptedManifest, manifest_ns: int, known: Object | None = None) -> bool:
    """Make sure that the reference of a manifest in the store counts; whether it was written now. ``known`` is the
    reference, if it was just read; otherwise one GET. One PUT if it must be written.
    """
    wanted = by_time(manifest)
    current = known or await store.find(wanted.key)
    while True:
        if current is None:
            outcome = await store.put(wanted.key, wanted.body, CREATE)
        elif _counts(current, manifest, manifest_ns):
            return False
        else:
            again = by_time(manifest, replaces=current.version)
            outcome = await store.put(again.key, again.body, IfMatch(current.version))
        if isinstance(outcome, Written):
            return True
        current = outcome.current or await store.find(wanted.key)


def _counts(reference: Object, manifest: AcceptedManifest, manifest_ns: int) -> bool:
    try:
        return named_manifest(reference) == manifest.key and is_in_time(reference, manifest_ns)
    except (Corrupt, Incompatible):
        return False


def of_accepted(manifest: AcceptedManifest) -> Iterator[Reference]:
    """All references that follow from an accepted manifest."""
    yield by_time(manifest)
    yield from of_bytes(manifest)


def of_bytes(manifest: AcceptedManifest) -> Iterator[Reference]:
    """The references by which the users of a blob are found, and the blob by time."""
    yield Reference(
        layout.accepted_by_blob_key(manifest.frame_sha256, manifest.identity),
        codec.encode(
            {
                "schema": ACCEPTED_BY_BLOB_SCHEMA,
                "accepted_manifest_key": manifest.key,
                "raw_blob_key": manifest.raw_blob_key,
            }
        ),
    )
    yield Reference(
        layout.blob_by_time_key(manifest.accepted_at_unix_ns, manifest.frame_sha256),
        codec.encode(
            {
                "schema": BLOB_BY_TIME_SCHEMA,
                "raw_blob_key": layout.blob_key(manifest.frame_sha256),
                "frame_sha256": manifest.frame_sha256,
                "frame_bytes": manifest.frame_bytes,
            }
        ),
    )


def of_conflict(manifest: ConflictManifest) -> Reference:
    return Reference(
        layout.conflict_by_blob_key(manifest.submitted_frame_sha256, manifest.identity),
        codec.encode(
            {
                "schema": CONFLICT_BY_BLOB_SCHEMA,
                "quarantine_manifest_key": manifest.key,
                "raw_blob_key": manifest.submitted_raw_blob_key,
            }
        ),
    )


async def write(store: Store, reference: Reference) -> None:
    """Does nothing if the reference exists."""
    await store.put(reference.key, reference.body, ADDRESSED)
