"""Frames: a batch of telemetry as bytes, the same in the agent's queue, on the wire, in the spool and in the store."""

from holdfast.ingest.frame.batch import Sequenced
from holdfast.ingest.frame.envelope import Header, Identity, Limits, inspect
from holdfast.ingest.frame.errors import FrameInvalid, Reason

__all__ = ["FrameInvalid", "Header", "Identity", "Limits", "Reason", "Sequenced", "inspect"]
