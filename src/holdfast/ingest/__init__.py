"""Ingest: telemetry accepted by any of several collectors, each batch exactly once.

``Client`` sends records from an application; ``Gauge``, ``Counter``, ``Histogram``, ``Log`` and ``Alert`` are records.
Names are looked up when first used: importing a part of this package does not load the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.ingest.client import Client as Client
    from holdfast.ingest.outcome import BatchConflict as BatchConflict
    from holdfast.ingest.outcome import BatchDenied as BatchDenied
    from holdfast.ingest.outcome import BatchRejected as BatchRejected
    from holdfast.ingest.outcome import Delivered as Delivered
    from holdfast.ingest.outcome import PendingFull as PendingFull
    from holdfast.ingest.outcome import Receipt as Receipt
    from holdfast.ingest.outcome import Undelivered as Undelivered
    from holdfast.ingest.outcome import Unfinished as Unfinished
    from holdfast.ingest.records import Alert as Alert
    from holdfast.ingest.records import Counter as Counter
    from holdfast.ingest.records import Gauge as Gauge
    from holdfast.ingest.records import Histogram as Histogram
    from holdfast.ingest.records import Log as Log
    from holdfast.ingest.records import Severity as Severity
    from holdfast.ingest.records import State as State

_OUTCOME = (
    "BatchConflict",
    "BatchDenied",
    "BatchRejected",
    "Delivered",
    "PendingFull",
    "Receipt",
    "Undelivered",
    "Unfinished",
)
_RECORDS = ("Alert", "Counter", "Gauge", "Histogram", "Log", "Severity", "State")
_HOMES = (
    {"Client": "holdfast.ingest.client"}
    | dict.fromkeys(_OUTCOME, "holdfast.ingest.outcome")
    | dict.fromkeys(_RECORDS, "holdfast.ingest.records")
)

__all__ = [
    "Alert",
    "BatchConflict",
    "BatchDenied",
    "BatchRejected",
    "Client",
    "Counter",
    "Delivered",
    "Gauge",
    "Histogram",
    "Log",
    "PendingFull",
    "Receipt",
    "Severity",
    "State",
    "Undelivered",
    "Unfinished",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'holdfast.ingest' has no attribute {name!r}")
