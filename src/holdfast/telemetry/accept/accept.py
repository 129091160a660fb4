"""What acceptance decides, without I/O: submissions, answers, and what an existing manifest means for a submission.

A batch is accepted by creating the manifest of its identity, and by nothing else. So its bytes are written first (a
manifest never names bytes that do not exist), and whatever must happen once per accepted batch happens after.

    blob created            create the manifest
    blob exists             read the manifest: most likely this is a duplicate, which then costs one PUT and one GET
    manifest created        accepted
    manifest is ours        accepted: an earlier attempt of this collector succeeded, and its response was lost
    manifest, same bytes    duplicate
    manifest, other bytes   identity conflict
    no manifest             create it
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.base.errors import Invalid
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.record_times import TimeLimits
from holdfast.telemetry.frame import VERSION, Batch, FrameInvalid, Header, Limits, inspect
from holdfast.telemetry.identity import BatchIdentity

WIRE_VERSION = 1
TOTAL = "total"
"""The count in the manifest of a batch that was not decoded: the kinds of its records are unknown."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A validated frame on its way to acceptance."""

    identity: BatchIdentity
    body: bytes
    frame_sha256: str
    records: Mapping[str, int] = field(default_factory=dict)
    """How many of each kind."""
    accepted: AcceptedManifest | None = None
    """The manifest with which a spool accepted it; None if it is not accepted yet."""
    batch: Any = field(default=None, compare=False, repr=False)
    """The decoded batch, for callbacks on its acceptance; acceptance itself never looks inside."""
    blob_key: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blob_key", layout.blob_key(self.frame_sha256))

    @classmethod
    def of(
        cls,
        identity: BatchIdentity,
        body: bytes,
        *,
        declared_sha256: str | None = None,
        frame_sha256: str | None = None,
        **rest: Any,
    ) -> "Submission":
        """The hash is taken over the exact bytes that will be stored, and must be the one that the sender declared."""
        found = hashlib.sha256(body).hexdigest() if frame_sha256 is None else frame_sha256
        if declared_sha256 is not None and declared_sha256.lower() != found:
            raise Invalid(
                f"batch {identity}: its bytes have the hash {found}, and {declared_sha256[:64]} was declared",
                remedy="send the bytes that were hashed",
            )
        return cls(identity, body, found, **rest)

    def manifest(
        self,
        *,
        accepted_at_unix_ns: int,
        collector_id: str,
        authority_id: str | None = None,
        write_id: str | None = None,
        time_limits: TimeLimits | None = None,
    ) -> AcceptedManifest:
        """The manifest that accepts this submission."""
        return AcceptedManifest(
            identity=self.identity,
            frame_sha256=self.frame_sha256,
            frame_bytes=len(self.body),
            raw_blob_key=self.blob_key,
            accepted_at_unix_ns=accepted_at_unix_ns,
            collector_id=collector_id,
            wire_version=WIRE_VERSION,
            frame_version=VERSION,
            records=self.records,
            authority_id=authority_id,
            write_id=write_id,
            records_from_unix_ns=None if time_limits is None else time_limits.from_ns,
            records_until_unix_ns=None if time_limits is None else time_limits.until_ns,
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """The batch is accepted. ``duplicate`` if that was so before this submission."""

    manifest: AcceptedManifest
    duplicate: bool


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """Other bytes were accepted under this identity before. The sender must keep the batch."""

    accepted: AcceptedManifest
    quarantine: ConflictManifest | None
    """None if the store failed before the conflict could be recorded."""
    resolution: str | None = None
    """What an operator has decided about it, where that is known (see ``resolutions``)."""


Answer = Accepted | IdentityConflict


class Existing(Enum):
    """What the manifest of an identity means for a submission."""

    NONE = "no collector has accepted this identity"
    OURS = "an earlier attempt of this collector accepted it, and its response was lost"
    SAME = "the same bytes were accepted"
    OTHER = "other bytes were accepted"

    @classmethod
    def of(cls, found: AcceptedManifest | None, frame_sha256: str, in_doubt: Collection[str] = ()) -> "Existing":
        """``in_doubt`` are the write ids of this collector's attempts whose outcome is unknown."""
        if found is None:
            return cls.NONE
        if found.frame_sha256 != frame_sha256:
            return cls.OTHER
        return cls.OURS if found.write_id is not None and found.write_id in in_doubt else cls.SAME


def submission_of(body: bytes, batch: Batch, *, frame_sha256: str | None = None) -> Submission:
    """A submission of a frame that was decoded and found valid; ``batch`` is passed on to ``on_accepted``.

    ``frame_sha256`` is the hash of the body, for those who have taken it already.
    """
    parts = {
        "samples": len(batch.samples),
        "histograms": len(batch.histograms),
        "logs": len(batch.logs),
        "alerts": len(batch.alerts),
    }
    return Submission.of(
        batch.identity,
        body,
        frame_sha256=frame_sha256,
        records={kind: count for kind, count in parts.items() if count},
        batch=batch,
    )


def inspect_frame(body: bytes) -> Header | None:
    """The header of a stored frame; None for bytes that no collector of this version would have stored."""
    try:
        return inspect(body, Limits(frame_bytes=max(len(body), 1)))
    except FrameInvalid:
        return None
