"""Ingest: telemetry accepted by any of several collectors, each batch exactly once.

``Client`` sends records from an application; ``Gauge``, ``Counter``, ``Histogram``, ``Log`` and ``Alert`` are records.
Names are looked up when first used: importing a part of this package does not load the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.ingest.client import BatchConflict as BatchConflict
    from holdfast.ingest.client import Client as Client
    from holdfast.ingest.client import Delivered as Delivered
    from holdfast.ingest.client import Receipt as Receipt
    from holdfast.ingest.client import Undelivered as Undelivered
    from holdfast.ingest.records import Alert as Alert
    from holdfast.ingest.records import Counter as Counter
    from holdfast.ingest.records import Gauge as Gauge
    from holdfast.ingest.records import Histogram as Histogram
    from holdfast.ingest.records import Log as Log
    from holdfast.ingest.records import Severity as Severity
    from holdfast.ingest.records import State as State

_CLIENT = ("BatchConflict", "Client", "Delivered", "Receipt", "Undelivered")
_RECORDS = ("Alert", "Counter", "Gauge", "Histogram", "Log", "Severity", "State")
_HOMES = dict.fromkeys(_CLIENT, "holdfast.ingest.client") | dict.fromkeys(_RECORDS, "holdfast.ingest.records")

__all__ = [
    "Alert",
    "BatchConflict",
    "Client",
    "Counter",
    "Delivered",
    "Gauge",
    "Histogram",
    "Log",
    "Receipt",
    "Severity",
    "State",
    "Undelivered",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'holdfast.ingest' has no attribute {name!r}")
