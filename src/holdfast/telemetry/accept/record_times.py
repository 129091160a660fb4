"""Which times the records of a batch may have. This is decided once, when the batch is accepted.

A batch with a record that is too old, or too far ahead of the collector's clock, is refused, and so is one whose
records are of too many hours: each hour is work for everything that is derived. So every record that is accepted counts
everywhere. The limits are written into the manifest, because later changes of the settings must not change any number.

Batches without recorded limits (older versions, plain writers) are taken as they are; records dated more than a day
after their acceptance are in no hour.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame import Batch

HOUR_NS = 3_600 * 1_000_000_000
DAY_NS = 24 * HOUR_NS
AHEAD_NS = DAY_NS
"""How far ahead of its acceptance a record may be dated; beyond it the clock of its host is wrong."""
MAX_AGE_NS = 60 * DAY_NS


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Times that records may have, in nanoseconds since 1970: whole hours, so that an hour is inside or outside."""

    from_ns: int | None
    """None for no limit."""
    until_ns: int
    """Exclusive."""

    @classmethod
    def by_default(cls, accepted_at_ns: int) -> "TimeLimits":
        """Of a batch without recorded limits."""
        return cls(None, _up(accepted_at_ns + AHEAD_NS))


@dataclass(frozen=True, slots=True)
class RecordTimes:
    """The settings of a collector."""

    max_age_ns: int | None = MAX_AGE_NS
    """None for a collector that loads old data (``ingest.backfill``)."""
    hours_per_batch: int = 168

    def limits(self, accepted_at_ns: int) -> TimeLimits:
        oldest = None if self.max_age_ns is None else (accepted_at_ns - self.max_age_ns) // HOUR_NS * HOUR_NS
        return TimeLimits(oldest, _up(accepted_at_ns + AHEAD_NS))

    def check(self, batch: Batch, now_ns: int) -> None:
        """``Invalid`` for a batch that must not be accepted."""
        times = batch.times_ns
        limits = self.limits(now_ns)
        oldest, newest = int(times.min()), int(times.max())
        if newest >= limits.until_ns:
            raise Invalid(
                f"a record is dated {_iso(newest)}, more than a day ahead of the collector's clock",
                remedy="set the clock of the sender's host",
            )
        if limits.from_ns is not None and oldest < limits.from_ns:
            days = (self.max_age_ns or 0) // DAY_NS
            raise Invalid(
                f"a record is dated {_iso(oldest)}, more than {days} days ago (ingest.max_age_s)",
                remedy="set the clock of the sender's host; to load old data, start a collector with ingest.backfill",
            )
        hours = len(np.unique(times // HOUR_NS)) if newest - oldest >= self.hours_per_batch * HOUR_NS else 0
        if hours > self.hours_per_batch:
            raise Invalid(
                f"the records lie in {hours:,} hours, and {self.hours_per_batch} are allowed (ingest.hours_per_batch)",
                remedy="send records of fewer hours in one batch",
            )


BY_DEFAULT = RecordTimes()


def _up(time_ns: int) -> int:
    return -(-time_ns // HOUR_NS) * HOUR_NS


def _iso(time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(time_ns / 1_000_000_000, UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return f"{time_ns} ns after 1970"
