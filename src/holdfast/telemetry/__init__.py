"""Ingest: telemetry accepted by any of several collectors, each batch exactly once.

``Client`` sends records from an application; ``Gauge``, ``Counter``, ``Histogram``, ``Log`` and ``Alert`` are records.
Names are looked up when first used: importing a part of this package does not load the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.telemetry.agent.client import BatchConflict as BatchConflict
    from holdfast.telemetry.agent.client import BatchDenied as BatchDenied
    from holdfast.telemetry.agent.client import BatchRejected as BatchRejected
    from holdfast.telemetry.agent.client import Client as Client
    from holdfast.telemetry.agent.client import Delivered as Delivered
    from holdfast.telemetry.agent.client import PendingFull as PendingFull
    from holdfast.telemetry.agent.client import Receipt as Receipt
    from holdfast.telemetry.agent.client import Undelivered as Undelivered
    from holdfast.telemetry.agent.client import Unfinished as Unfinished
    from holdfast.telemetry.records import Alert as Alert
    from holdfast.telemetry.records import Counter as Counter
    from holdfast.telemetry.records import Gauge as Gauge
    from holdfast.telemetry.records import Histogram as Histogram
    from holdfast.telemetry.records import Log as Log
    from holdfast.telemetry.records import Severity as Severity
    from holdfast.telemetry.records import State as State

_CLIENT = (
    "BatchConflict",
    "BatchDenied",
    "BatchRejected",
    "Client",
    "Delivered",
    "PendingFull",
    "Receipt",
    "Undelivered",
    "Unfinished",
)
_RECORDS = ("Alert", "Counter", "Gauge", "Histogram", "Log", "Severity", "State")
_HOMES = dict.fromkeys(_CLIENT, "holdfast.telemetry.agent.client") | dict.fromkeys(
    _RECORDS, "holdfast.telemetry.records"
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
    raise AttributeError(f"module 'holdfast.telemetry' has no attribute {name!r}")
