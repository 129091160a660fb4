"""The two records that collectors write: a batch was accepted, or it conflicts with a batch that was.

Schemas and field names are the specification's. Fields of ours (``write_id``, ``authority_id``, ``records``) are extra:
a plain reader ignores them, and a manifest by a plain writer is read without them. Both records are written once and
never changed. ``write_id`` makes the bytes of every attempt different, so that a collector recognises the manifest that
it wrote even if the response to its write was lost (correction 1).

Errors: ``Corrupt`` for a manifest that cannot be read or is stored under the key of another batch; ``Incompatible`` for
a schema that this client does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import Object
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.record_times import TimeLimits
from holdfast.telemetry.identity import BatchIdentity

ACCEPTED_SCHEMA = "lightmetrics.accepted_batch.v1"
CONFLICT_SCHEMA = "lightmetrics.identity_conflict.v1"

_Number = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
_Time = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
"""Nanoseconds since 1970, before 2116."""
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class _Identity:
    agent_id: str
    boot_id: str
    seq_start: _Number
    seq_end: _Number


@dataclass(frozen=True)
class _Accepted(_Identity):
    frame_sha256: _Sha256
    frame_bytes: _Number
    raw_blob_key: str
    accepted_at_unix_ns: _Time
    collector_id: str
    wire_version: _Number
    frame_version: _Number
    records: dict[str, int] = field(default_factory=dict)
    authority_id: str | None = None
    write_id: str | None = None
    records_from_unix_ns: int | None = None
    records_until_unix_ns: int | None = None


@dataclass(frozen=True)
class _Conflict(_Identity):
    accepted_manifest_key: str
    accepted_raw_blob_key: str
    accepted_frame_sha256: str
    submitted_raw_blob_key: str
    submitted_frame_sha256: _Sha256
    observed_at_unix_ns: _Number
    collector_id: str
    write_id: str | None = None


F = TypeVar("F", bound=_Identity)

_ACCEPTED = TypeAdapter(_Accepted)
_CONFLICT = TypeAdapter(_Conflict)


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
    def of(cls, document: Document, key: str) -> "AcceptedManifest":
        """The manifest that is stored under this key, from its document."""
        fields = _fields(_ACCEPTED, document, ACCEPTED_SCHEMA, key)
        identity = _identity(fields, key)
        _check_key(key, layout.accepted_key(identity), identity)
        until = fields.records_until_unix_ns
        return cls(
            identity=identity,
            frame_sha256=fields.frame_sha256,
            frame_bytes=fields.frame_bytes,
            raw_blob_key=fields.raw_blob_key,
            accepted_at_unix_ns=fields.accepted_at_unix_ns,
            collector_id=fields.collector_id,
            wire_version=fields.wire_version,
            frame_version=fields.frame_version,
            records=fields.records,
            authority_id=fields.authority_id,
            write_id=fields.write_id,
            time_limits=None if until is None else TimeLimits(fields.records_from_unix_ns, until),
        )


@dataclass(frozen=True, slots=True)
class ConflictManifest:
    """Two different frames have one identity. The accepted one counts; the other is kept for an operator to see."""

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
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("identity", "write_id")}
        ours = {"write_id": self.write_id} if self.write_id else {}
        return {"schema": CONFLICT_SCHEMA, **_identity_fields(self.identity), **fields, **ours}

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> "ConflictManifest":
        document = codec.decode(found.body, key=found.key)
        fields = _fields(_CONFLICT, document, CONFLICT_SCHEMA, found.key)
        identity = _identity(fields, found.key)
        _check_key(found.key, layout.conflict_key(identity, fields.submitted_frame_sha256), identity)
        return cls(identity, **{name: getattr(fields, name) for name in cls.__slots__ if name != "identity"})


def _identity_fields(identity: BatchIdentity) -> Document:
    return {
        "agent_id": identity.agent_id,
        "boot_id": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
    }


def _fields(adapter: TypeAdapter[F], document: Document, schema: str, key: str) -> F:
    codec.check_schema(document, schema, key=key)
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where, value = ".".join(map(str, problem["loc"])), problem["input"]
        raise Corrupt(f"{key}: field {where}: {problem['msg']}, not {value!r:.80}") from error


def _identity(fields: _Identity, key: str) -> BatchIdentity:
    try:
        return BatchIdentity(fields.agent_id, fields.boot_id, fields.seq_start, fields.seq_end)
    except Invalid as error:
        raise Corrupt(f"{key}: {error}") from error


def _check_key(key: str, expected: str, identity: BatchIdentity) -> None:
    if expected != key:
        raise Corrupt(f"{key}: the manifest in it is that of {identity}")
