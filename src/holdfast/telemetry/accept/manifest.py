"""The two records that collectors leave: a batch was accepted, or it conflicts with one that was.

Schemas and field names are the specification's. What is ours besides (``write_id``, ``authority_id``, ``records``) a
plain reader passes over, and a manifest by a plain writer is read without them. Both are written once and never
changed. ``write_id`` makes every attempt's bytes its own, so that a collector recognises the manifest that it wrote
even if the answer to its write was lost (correction 1).

Errors: ``Corrupt`` for a manifest that cannot be read or stands under another batch's key; ``Incompatible`` for a
schema that this client does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.objects.store import Object
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.record_times import TimeLimits
from holdfast.telemetry.identity import BatchIdentity

ACCEPTED_SCHEMA = "lightmetrics.accepted_batch.v1"
CONFLICT_SCHEMA = "lightmetrics.identity_conflict.v1"


@dataclass(frozen=True, slots=True)
class AcceptedManifest:
    identity: BatchIdentity
    frame_sha256: str
    frame_bytes: int
    raw_blob_key: str
    accepted_at_unix_ns: int
    collector_id: str
    wire_version: int
    frame_version: int
    records: Mapping[str, int] = field(default_factory=dict)
    """How many records of each kind; empty in a manifest by a plain writer."""
    authority_id: str | None = None
    write_id: str | None = None
    time_limits: TimeLimits | None = None
    """The times that its records were allowed to have when it was accepted."""

    @property
    def key(self) -> str:
        return layout.accepted_key(self.identity)

    @property
    def limits(self) -> TimeLimits:
        """The times in which its records count."""
        return self.time_limits or TimeLimits.by_default(self.accepted_at_unix_ns)

    def document(self) -> Document:
        ours: Document = {
            "records": dict(self.records),
            "authority_id": self.authority_id,
            "write_id": self.write_id,
        }
        limits = self.time_limits
        if limits is not None:
            ours |= {"records_from_unix_ns": limits.from_ns, "records_until_unix_ns": limits.until_ns}
        return {
            "schema": ACCEPTED_SCHEMA,
            **_identity_fields(self.identity),
            "frame_sha256": self.frame_sha256,
            "frame_bytes": self.frame_bytes,
            "raw_blob_key": self.raw_blob_key,
            "accepted_at_unix_ns": self.accepted_at_unix_ns,
            "collector_id": self.collector_id,
            "wire_version": self.wire_version,
            "frame_version": self.frame_version,
            **{name: value for name, value in ours.items() if value not in (None, {}, "")},
        }

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> "AcceptedManifest":
        return cls.of(codec.decode(found.body, key=found.key), found.key)

    @classmethod
    def of(cls, fields: Document, key: str) -> "AcceptedManifest":
        """The manifest that stands under this key, from its document, wherever that was found."""
        document = _Reader(fields, key, ACCEPTED_SCHEMA)
        return cls(
            identity=document.identity(layout.accepted_key),
            frame_sha256=document.text("frame_sha256"),
            frame_bytes=document.number("frame_bytes"),
            raw_blob_key=document.text("raw_blob_key"),
            accepted_at_unix_ns=document.number("accepted_at_unix_ns"),
            collector_id=document.text("collector_id"),
            wire_version=document.number("wire_version"),
            frame_version=document.number("frame_version"),
            records=document.counts("records"),
            authority_id=document.maybe_text("authority_id"),
            write_id=document.maybe_text("write_id"),
            time_limits=document.time_limits(),
        )


@dataclass(frozen=True, slots=True)
class ConflictManifest:
    """Two different frames claim one identity. The accepted one stands; the other is kept for an operator to see."""

    identity: BatchIdentity
    accepted_manifest_key: str
    accepted_raw_blob_key: str
    accepted_frame_sha256: str
    submitted_raw_blob_key: str
    submitted_frame_sha256: str
    observed_at_unix_ns: int
    collector_id: str
    write_id: str | None = None

    @property
    def key(self) -> str:
        return layout.conflict_key(self.identity, self.submitted_frame_sha256)

    def document(self) -> Document:
        return {
            "schema": CONFLICT_SCHEMA,
            **_identity_fields(self.identity),
            "accepted_manifest_key": self.accepted_manifest_key,
            "accepted_raw_blob_key": self.accepted_raw_blob_key,
            "accepted_frame_sha256": self.accepted_frame_sha256,
            "submitted_raw_blob_key": self.submitted_raw_blob_key,
            "submitted_frame_sha256": self.submitted_frame_sha256,
            "observed_at_unix_ns": self.observed_at_unix_ns,
            "collector_id": self.collector_id,
            **({"write_id": self.write_id} if self.write_id else {}),
        }

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> "ConflictManifest":
        document = _Reader(codec.decode(found.body, key=found.key), found.key, CONFLICT_SCHEMA)
        submitted = document.text("submitted_frame_sha256")
        return cls(
            identity=document.identity(lambda identity: layout.conflict_key(identity, submitted)),
            accepted_manifest_key=document.text("accepted_manifest_key"),
            accepted_raw_blob_key=document.text("accepted_raw_blob_key"),
            accepted_frame_sha256=document.text("accepted_frame_sha256"),
            submitted_raw_blob_key=document.text("submitted_raw_blob_key"),
            submitted_frame_sha256=submitted,
            observed_at_unix_ns=document.number("observed_at_unix_ns"),
            collector_id=document.text("collector_id"),
            write_id=document.maybe_text("write_id"),
        )


def _identity_fields(identity: BatchIdentity) -> Document:
    return {
        "agent_id": identity.agent_id,
        "boot_id": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
    }


class _Reader:
    """Typed access to one manifest's fields."""

    def __init__(self, document: Document, key: str, schema: str) -> None:
        self._key = key
        self._document = document
        if self._document.get("schema") != schema:
            raise Incompatible(
                f"{key}: schema {self._document.get('schema')!r} is not {schema!r}",
                remedy="upgrade holdfast on this machine, or find out who wrote this object",
            )

    def identity(self, key_of: Any) -> BatchIdentity:
        """The identity in the manifest; it must be the one that its key names."""
        try:
            identity = BatchIdentity(
                self.text("agent_id"), self.text("boot_id"), self.number("seq_start"), self.number("seq_end")
            )
            expected = key_of(identity)
        except Invalid as error:
            raise Corrupt(f"{self._key}: {error}") from error
        if expected != self._key:
            raise Corrupt(f"{self._key}: the manifest in it is that of {identity}")
        return identity

    def text(self, name: str) -> str:
        value = self._document.get(name)
        if not isinstance(value, str):
            raise Corrupt(f"{self._key}: field {name} is {value!r}, and should be text")
        return value

    def maybe_text(self, name: str) -> str | None:
        value = self._document.get(name)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> int:
        value = self._document.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Corrupt(f"{self._key}: field {name} is {value!r}, and should be a whole number")
        return value

    def time_limits(self) -> TimeLimits | None:
        begin, end = self._document.get("records_from_unix_ns"), self._document.get("records_until_unix_ns")
        if not isinstance(end, int) or not isinstance(begin, int | None):
            return None
        return TimeLimits(begin, end)

    def counts(self, name: str) -> Mapping[str, int]:
        value = self._document.get(name)
        return value if isinstance(value, dict) else {}
