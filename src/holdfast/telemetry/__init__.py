"""Telemetry: accepted by any of several collectors, each batch exactly once, rolled up, and queried.

``Client`` sends records from an application; ``Gauge``, ``Counter``, ``Histogram``, ``Log`` and ``Alert`` are records.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.telemetry.records import Alert, Counter, Gauge, Histogram, Log, Severity, State

if TYPE_CHECKING:
    from holdfast.telemetry.agent.client import (
        BatchConflict,
        BatchDenied,
        BatchRejected,
        Client,
        Delivered,
        PendingFull,
        Receipt,
        Undelivered,
        Unfinished,
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
    """What belongs to the client is loaded when it is first used: it needs an HTTP client."""
    if name in __all__:
        return getattr(import_module("holdfast.telemetry.agent.client"), name)
    raise AttributeError(f"module 'holdfast.telemetry' has no attribute {name!r}")
