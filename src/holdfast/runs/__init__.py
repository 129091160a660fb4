"""Runs: work that survives crashes, journaled in the bucket."""

from holdfast.runs.admin.control import find, reindex, request_cancel, request_retry
from holdfast.runs.admin.delete import delete
from holdfast.runs.admin.describe import Description, describe, follow
from holdfast.runs.admin.fork import fork
from holdfast.runs.engine.calls import Outcome, Retry
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.worker import worker
from holdfast.runs.engine.workflow import Workflow, deliver, workflow
from holdfast.runs.errors import (
    Cancelled,
    ConcurrentSteps,
    InputMismatch,
    NotJson,
    ParentMismatch,
    ReplayMismatch,
    RunFinished,
    StepFailed,
    UnknownKind,
    UnreadableValue,
    VersionMismatch,
    WrongEvent,
    WrongWorkflow,
    acknowledge,
)
from holdfast.runs.journal.entry import Entry
from holdfast.runs.journal.summary import RunSummary
from holdfast.runs.values import register as register_codec

__all__ = [
    "Cancelled",
    "ConcurrentSteps",
    "Context",
    "Description",
    "Entry",
    "InputMismatch",
    "NotJson",
    "Outcome",
    "ParentMismatch",
    "ReplayMismatch",
    "Retry",
    "RunFinished",
    "RunSummary",
    "StepFailed",
    "UnknownKind",
    "UnreadableValue",
    "VersionMismatch",
    "Workflow",
    "WrongEvent",
    "WrongWorkflow",
    "acknowledge",
    "delete",
    "deliver",
    "describe",
    "find",
    "follow",
    "fork",
    "register_codec",
    "reindex",
    "request_cancel",
    "request_retry",
    "worker",
    "workflow",
]
