"""What became of batches that a client sent: receipts, and errors with what is left in its hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from holdfast.base.errors import Denied, HoldfastError, Invalid, Refused, Unavailable
from holdfast.telemetry.frame import Identity


@dataclass(frozen=True, slots=True)
class Delivered:
    """One batch that is accepted. ``duplicate`` if it was before this request: an earlier try had landed."""

    identity: Identity
    duplicate: bool
    tries: int
    url: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The batches that one call delivered, those among them that an earlier call had left."""

    batches: tuple[Delivered, ...]

    @property
    def records(self) -> int:
        return sum(each.identity.seq_end - each.identity.seq_start + 1 for each in self.batches)


class Unfinished(HoldfastError):
    """The client has taken the records, and not all are delivered. Never pass them to ``send`` again: they would get
    other numbers, and those that had landed would count twice. ``resend`` sends the same bytes."""

    delivered: tuple[Delivered, ...] = ()
    """What this call did deliver."""
    frames: tuple[bytes, ...] = ()
    """What the client still holds, as its ``pending``. Each may have been accepted all the same."""
    _tally = ""

    def tally(self, delivered: Sequence[Delivered], frames: tuple[bytes, ...]) -> Self:
        self.delivered, self.frames = tuple(delivered), frames
        self._tally = f"; batches delivered by this call: {len(delivered)}, kept for resend: {len(frames)}"
        return self

    def __str__(self) -> str:
        return super().__str__() + self._tally


class Undelivered(Unfinished, Unavailable):
    """No collector took this batch in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_applied=True, remedy="call resend() later, or pass error.frames to send_frame")


class BatchDenied(Unfinished, Denied):
    """The token is not valid, or not for this agent; or an operator holds agent and boot."""


class _Refused(Unfinished):
    """The batch is handed over: the client holds it no more."""

    frame: bytes
    others: "tuple[_Refused, ...]" = ()
    """Errors of further batches of this client that were refused, each with its own."""


class BatchConflict(_Refused, Refused):
    """Other bytes were accepted under this identity. The batch is here; nobody will ever accept it."""

    def __init__(self, message: str, frame: bytes, details: dict[str, Any]) -> None:
        super().__init__(message, remedy="find out who else sends as this agent and boot")
        self.frame = frame
        self.details = details


class BatchRejected(_Refused, Invalid):
    """A collector says that these bytes will never do. The batch is here."""

    def __init__(self, message: str, frame: bytes, *, remedy: str | None) -> None:
        super().__init__(message, remedy=remedy)
        self.frame = frame


class PendingFull(Unavailable):
    """So much is left from earlier calls, and cannot be delivered, that the records of this one were not taken."""

    def __init__(self, message: str, delivered: Sequence[Delivered] = ()) -> None:
        super().__init__(message, remedy="pass them to send again once resend() goes through, or raise pending_bytes=")
        self.delivered = tuple(delivered)
        """What this call did deliver of what was left."""
