"""Errors of runs, and what a dispatcher should do with a message that led to one.

``acknowledge(error)`` is the rule for queues, webhooks and cron jobs: True means that delivering the same message again
cannot help (fix the cause first); False means deliver it again later.
"""

from holdfast.base.errors import (
    Conflict,
    Corrupt,
    Fenced,
    HoldfastError,
    Incompatible,
    Invalid,
    NotFound,
    Refused,
)


def explained(error_type: str, message: str) -> str:
    """Type and message, or the type alone: many exceptions have no message."""
    return f"{error_type}: {message}" if message else error_type


def recorded_error(error: object) -> tuple[str, str]:
    """Type and message of a recorded error; other writers call the type ``name``."""
    if not isinstance(error, dict):
        return "Error", str(error or "")
    return str(error.get("type") or error.get("name") or "Error"), str(error.get("message") or "")


def no_run(run_id: str) -> NotFound:
    return NotFound(f"run {run_id} does not exist", remedy="check the id and the store")


class RunFinished(Refused):
    """The run has ended; it takes no further work under this id."""


class InputMismatch(Invalid):
    """The run id is taken by a run with another input."""


class ParentMismatch(Invalid):
    """The run id is taken by a run with another parent: a child run where none was meant, or the other way round."""


class WrongWorkflow(Invalid):
    """The run id is taken by a run of another workflow."""


class WrongEvent(Invalid):
    """The run is not waiting for this event."""


class VersionMismatch(Incompatible):
    """The run was started by another version of the workflow."""


class ReplayMismatch(Incompatible):
    """The code asks for other steps than those that the journal holds."""


class ConcurrentSteps(Invalid):
    """Two steps of one name were in flight at once, so that their order would decide who gets which result."""


class NotJson(Invalid):
    """A value has no form in which it can be written down."""


class UnknownKind(Invalid, AttributeError):
    """A recorded value is used as an object of a class that this program has not imported."""


class UnreadableValue(Corrupt):
    """A recorded value does not fit the class or the codec that it names."""


class StepFailed(HoldfastError):
    """A step failed for good. The same on the first run and on every replay, so it may be caught."""

    def __init__(self, step_id: str, error_type: str, message: str) -> None:
        super().__init__(f"step {step_id} failed: {explained(error_type, message)}")
        self.step_id = step_id
        self.error_type = error_type
        self.message = message


class Cancelled(BaseException):
    """Raised inside a workflow whose run is being cancelled, at the first thing that has not been done yet.

    Clean up in ``finally`` or ``except runs.Cancelled``: steps asked for there still run. Not an ``Exception``, so that
    code which handles failures does not mistake it for one.
    """


# Denied is not one of them: credentials are corrected later, and the messages must still be there.
_POINTLESS = (Invalid, NotFound, Incompatible, Refused, Fenced, Corrupt)


def acknowledge(error: BaseException) -> bool:
    """Whether a dispatcher should take the message off its queue (True) or deliver it again later (False)."""
    return isinstance(error, _POINTLESS) and not isinstance(error, Conflict)
