"""The two records that collectors write: a batch was accepted, or it conflicts with a batch that was.

Schemas and field names are the specification's. Fields of ours (``write_id``, ``authority_id``, ``records``, the times)
are extra: a plain reader ignores them, and a manifest by a plain writer is read without them. Both records are written
once and never changed. ``write_id`` makes the bytes of every attempt different, so that a collector recognises the
manifest that it wrote even if the response to its write was lost (correction 1).

Errors: ``Corrupt`` for a manifest that cannot be read or is stored under the key of another batch; ``Incompatible`` for
a schema that this client does not know.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, StringConstraints

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Invalid
from holdfast.base.record import UNLESS_EMPTY, Record
from holdfast.objects.store import Object
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.record_times import TimeLimits
from holdfast.telemetry.identity import BatchIdentity

_Number = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
_Time = Annotated[int, Field(strict=True, ge=0, lt=1 << 62)]
"""Nanoseconds since 1970, before 2116."""
_UNLESS_NONE = Field(exclude_if=lambda value: value is None)
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_IDENTITY = [each.name for each in fields(BatchIdentity)]


@dataclass(frozen=True)
class BatchRecord(Record):
    """A record about one batch. In its document the identity is four fields among the others."""

    SCHEMA: ClassVar[str]

    identity: BatchIdentity

    @property
    @abstractmethod
    def key(self) -> str: ...

    def document(self, **more: Any) -> Document:
        document = super().document(schema=self.SCHEMA, **more)
        return {**document.pop("identity"), **document}

    def encode(self) -> bytes:
        return codec.encode(self.document())

    @classmethod
    def read(cls, found: Object) -> Self:
        document = codec.decode(found.body, key=found.key)
        codec.check_schema(document, cls.SCHEMA, key=found.key)
        identity = {name: document.pop(name) for name in _IDENTITY if name in document}
        try:
            record = cls.parse({**document, "identity": identity}, key=found.key)
        except Invalid as error:
            raise Corrupt(f"{found.key}: {error}") from error
        if record.key != found.key:
            raise Corrupt(f"{found.key}: {cls.WHAT} in it is that of {record.identity}")
        return record


@dataclass(frozen=True)
class AcceptedManifest(BatchRecord):
    WHAT = "the manifest"
    SCHEMA = "lightmetrics.accepted_batch.v1"

    frame_sha256: _Sha256
    frame_bytes: _Number
    raw_blob_key: str
    accepted_at_unix_ns: _Time
    collector_id: str
    wire_version: _Number
    frame_version: _Number
    records: Annotated[Mapping[str, int], UNLESS_EMPTY] = field(default_factory=dict)
    """How many records of each kind; empty in a manifest by a plain writer."""
    authority_id: Annotated[str | None, UNLESS_EMPTY] = None
    write_id: Annotated[str | None, UNLESS_EMPTY] = None
    records_from_unix_ns: Annotated[int | None, _UNLESS_NONE] = None
    records_until_unix_ns: Annotated[int | None, _UNLESS_NONE] = None
    """The times that its records were allowed to have when it was accepted."""

    @property
    def key(self) -> str:
        return layout.accepted_key(self.identity)

    @property
    def limits(self) -> TimeLimits:
        """The times in which its records count."""
        if self.records_until_unix_ns is None:
            return TimeLimits.by_default(self.accepted_at_unix_ns)
        return TimeLimits(self.records_from_unix_ns, self.records_until_unix_ns)


@dataclass(frozen=True)
class ConflictManifest(BatchRecord):
    """Two different frames have one identity. The accepted one counts; the other is kept for an operator to see."""

    WHAT = "the record of a conflict"
    SCHEMA = "lightmetrics.identity_conflict.v1"

    accepted_manifest_key: str
    accepted_raw_blob_key: str
    accepted_frame_sha256: str
    submitted_raw_blob_key: str
    submitted_frame_sha256: _Sha256
    observed_at_unix_ns: _Number
    collector_id: str
    write_id: Annotated[str | None, UNLESS_EMPTY] = None

    @property
    def key(self) -> str:
        return layout.conflict_key(self.identity, self.submitted_frame_sha256)
