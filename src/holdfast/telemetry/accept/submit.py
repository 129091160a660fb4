"""From frames to acceptance: the identity in a frame's head becomes the identity that keys are made of.

Both have the same rules for names and numbers, so a valid frame always has an identity.
"""

from holdfast.base.errors import Invalid
from holdfast.telemetry.accept.accept import FrameHead, Submission
from holdfast.telemetry.frame import VERSION, Batch, FrameInvalid, Identity, Limits, inspect
from holdfast.telemetry.identity import BatchIdentity

TOTAL = "total"
"""The count in the manifest of a batch that was not decoded: the kinds of its records are unknown."""


def submission_of(
    body: bytes, batch: Batch, *, declared_sha256: str | None = None, frame_sha256: str | None = None
) -> Submission:
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
        identity_of(batch.identity),
        body,
        declared_sha256=declared_sha256,
        frame_sha256=frame_sha256,
        frame_version=VERSION,
        records={kind: count for kind, count in parts.items() if count},
        batch=batch,
    )


def inspect_frame(body: bytes) -> FrameHead | None:
    """The head of a frame that was stored; None for bytes that no collector of this version would have stored."""
    try:
        header = inspect(body, Limits(frame_bytes=max(len(body), 1)))
        return FrameHead(identity_of(header.identity), header.version, {TOTAL: header.records})
    except (FrameInvalid, Invalid):
        return None


def identity_of(found: Identity) -> BatchIdentity:
    return BatchIdentity(found.agent_id, found.boot_id, found.seq_start, found.seq_end)
