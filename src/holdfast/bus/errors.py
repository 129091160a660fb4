"""Errors of the bus.

Invalid
├── UnknownEventType   no class in this program declares the event's type
├── BadPayload         a payload does not fit its event's class
├── TypeTaken          two event classes would have the same type
├── ChainTooDeep       an event would be too many emissions away from its root
├── BadHandler         a handler cannot be imported, or is declared wrongly
└── BadSchedule        a cron expression, a time zone or a policy that means nothing
Fenced
└── ClaimLost          another worker has the event now
"""

import math

from holdfast.base.errors import Fenced, Invalid

MAX_SECONDS = 10**9


class UnknownEventType(Invalid):
    """No class in this program declares the type."""


class BadPayload(Invalid):
    """A payload does not fit its event's class."""


class TypeTaken(Invalid):
    """Two event classes would have the same type."""


class ChainTooDeep(Invalid):
    """Events that emit events have gone on for too long: probably a loop."""

    default_remedy = "break the loop of handlers, or raise bus.event_max_chain_depth"


class BadHandler(Invalid):
    """A handler cannot be imported, or is declared wrongly."""


class BadSchedule(Invalid):
    """A schedule that would never fire as it says."""


class ClaimLost(Fenced):
    """The lease ran out and another worker has claimed the event, or it was cleaned up."""

    default_remedy = "nothing: the other worker handles the event, and this attempt is ignored"


class Abandoned(Exception):
    """An event that no worker has come back from: it may be what kills them."""

    def __init__(self, times: int) -> None:
        super().__init__(f"no worker has answered for it {times} times in a row: it may be what ends them")


class TimedOut(Exception):
    """A handler took longer than it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the handler was not done after {seconds:g} s")


class Cancelled(Exception):
    """A handler was cancelled, and not by its worker."""

    def __init__(self) -> None:
        super().__init__("the handler was cancelled from within")


class Later(Exception):
    """Raised by a handler to hand its event back until a time, or the next poll. It does not count as a failure."""

    def __init__(self, *, seconds: float = 0.0, until_ns: int | None = None) -> None:
        if not math.isfinite(seconds) or not 0 <= seconds < MAX_SECONDS:
            raise Invalid(f"an event cannot come back in {seconds!r} s", remedy="give seconds from now on, 0 or more")
        super().__init__(f"in {seconds} s" if until_ns is None else "at a set time")
        self.seconds = seconds
        self.until_ns = until_ns


class DeadLetter(Exception):
    """Raised by a handler: trying again cannot help, bury the event now."""
