"""Frames: a batch of telemetry as bytes, the same in the agent's queue, on the wire, in the spool and in the store.

``encode(pack(agent_id, boot_id, records, seq_start=n))`` makes one, ``decode(data)`` checks it and gives the columns,
``inspect(data)`` reads the identity alone. Everything here is pure and blocking: no store, no clock.
"""

from holdfast.ingest.frame.batch import Alerts, Batch, Histograms, LabelSets, Logs, Samples, Sequenced, Series
from holdfast.ingest.frame.envelope import ANY_SIZE, VERSION, Header, Identity, Limits, inspect
from holdfast.ingest.frame.errors import FrameInvalid, Reason
from holdfast.ingest.frame.pack import pack, pack_sequenced
from holdfast.ingest.frame.read import Unpacked, decode, unpack
from holdfast.ingest.frame.repeated import Repeated
from holdfast.ingest.frame.write import encode

__all__ = [
    "ANY_SIZE",
    "VERSION",
    "Alerts",
    "Batch",
    "FrameInvalid",
    "Header",
    "Histograms",
    "Identity",
    "LabelSets",
    "Limits",
    "Logs",
    "Reason",
    "Repeated",
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
