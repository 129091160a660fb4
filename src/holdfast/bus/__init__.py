"""Bus: events with retries, dead letters and schedules, next to your data, in nothing but a bucket."""

from holdfast.bus.bus import Bus
from holdfast.bus.claim import Retry
from holdfast.bus.cleanup import Cleaned
from holdfast.bus.errors import (
    BadHandler,
    BadPayload,
    BadSchedule,
    ChainTooDeep,
    ClaimLost,
    DeadLetter,
    Later,
    TypeTaken,
    UnknownEventType,
)
from holdfast.bus.event import DeadLettered, Envelope, Event
from holdfast.bus.handler import AnyEvent, Context, Handler, on
from holdfast.bus.publish import Published
from holdfast.bus.schedule import Schedule
from holdfast.bus.worker.runner import Options, Worked

__all__ = [
    "AnyEvent",
    "BadHandler",
    "BadPayload",
    "BadSchedule",
    "Bus",
    "ChainTooDeep",
    "ClaimLost",
    "Cleaned",
    "Context",
    "DeadLetter",
    "DeadLettered",
    "Envelope",
    "Event",
    "Handler",
    "Later",
    "Options",
    "Published",
    "Retry",
    "Schedule",
    "TypeTaken",
    "UnknownEventType",
    "Worked",
    "on",
]
