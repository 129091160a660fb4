"""Runs: work that survives crashes, journaled in the bucket."""

from holdfast.runs.context import Context
from holdfast.runs.control import delete, find, fork, purge, reindex, request_cancel, request_retry
from holdfast.runs.describe import Description, describe
from holdfast.runs.entry import Entry
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
from holdfast.runs.follow import follow
from holdfast.runs.outcome import Outcome, Retry
from holdfast.runs.summary import RunSummary
from holdfast.runs.values import register as register_codec
from holdfast.runs.worker import worker
from holdfast.runs.workflow import Workflow, deliver, workflow

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
    "purge",
    "register_codec",
    "reindex",
    "request_cancel",
    "request_retry",
    "worker",
    "workflow",
]
