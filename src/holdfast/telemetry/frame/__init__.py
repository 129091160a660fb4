"""Frames: the bytes of a batch of telemetry, the same in the agent's queue, on the wire, in the spool and in the store.

``encode(pack(agent_id, boot_id, records, seq_start=n))`` makes a frame, ``decode(data)`` checks it and returns its
columns, ``inspect(data)`` reads only its identity. The package does no I/O and reads no clock; calls block while they
compute.
"""

from holdfast.telemetry.frame.batch import (
    Alerts,
    Batch,
    Histograms,
    LabelSets,
    Logs,
    Samples,
    Sequenced,
    Series,
    pack,
    pack_sequenced,
)
from holdfast.telemetry.frame.envelope import ANY_SIZE, VERSION, FrameInvalid, Header, Limits, Reason, inspect
from holdfast.telemetry.frame.read import Unpacked, decode, unpack
from holdfast.telemetry.frame.write import encode

__all__ = [
    "ANY_SIZE",
    "VERSION",
    "Alerts",
    "Batch",
    "FrameInvalid",
    "Header",
    "Histograms",
    "LabelSets",
    "Limits",
    "Logs",
    "Reason",
    "Samples",
    "Sequenced",
    "Series",
    "Unpacked",
    "decode",
    "encode",
    "inspect",
    "pack",
    "pack_sequenced",
    "unpack",
]
