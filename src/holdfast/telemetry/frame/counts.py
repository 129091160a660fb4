"""The head of a payload: the number of elements of every section, checked before any section is read."""

import struct
from dataclasses import dataclass, fields
from typing import Self

from holdfast.telemetry.frame.columns import Reader
from holdfast.telemetry.frame.envelope import Limits
from holdfast.telemetry.frame.errors import FrameInvalid, Reason


@dataclass(frozen=True, slots=True)
class Counts:
    """In the order of the format, each a u32."""

    texts: int
    text_bytes: int
    label_sets: int
    pairs: int
    """Labels (name and value) of all label sets together."""
    series: int
    samples: int
    times: int
    """Rows in the table of times; zero if the time of each sample is written out."""
    histogram_series: int
    histograms: int
    histogram_times: int
    layouts: int
    bounds: int
    """Of all layouts together."""
    buckets: int
    """Of all histograms together."""
    logs: int
    log_bytes: int
    alerts: int
    alert_bytes: int

    @classmethod
    def read(cls, reader: Reader, records: int, limits: Limits) -> Self:
        counts = cls(*_COUNTS.unpack(reader.raw(_COUNTS.size).tobytes()))
        counts._check(records, limits)
        return counts

    def to_bytes(self) -> bytes:
        return _COUNTS.pack(*(getattr(self, name) for name in _NAMES))

    @property
    def records(self) -> int:
        return self.samples + self.histograms + self.logs + self.alerts

    def _check(self, records: int, limits: Limits) -> None:
        """Each count is limited by a count that was checked before it, so none allows an allocation beyond the
        limits."""
        if self.records != records:
            raise FrameInvalid(Reason.COLUMN, f"the payload has {self.records} records, the head declares {records}")
        users = self.series + self.histogram_series + self.logs + self.alerts
        for count, most, what in (
            (self.series, self.samples, "series"),
            (self.times, self.samples, "times"),
            (self.histogram_series, self.histograms, "series of histograms"),
            (self.histogram_times, self.histograms, "times of histograms"),
            (self.layouts, min(self.histograms, MOST_LAYOUTS), "layouts"),
            (self.label_sets, users, "label sets"),
            (self.pairs, limits.elements, "labels"),
            (self.texts, self.series + self.histogram_series + self.alerts + 2 * self.pairs, "texts"),
            (self.bounds, limits.elements, "bounds"),
            (self.buckets, limits.elements, "buckets"),
        ):
            if count > most:
                raise FrameInvalid(Reason.COLUMN, f"the payload declares {count} {what}; at most {most} are possible")
        if (self.samples and not self.series) or (self.histograms and not self.histogram_series):
            raise FrameInvalid(Reason.COLUMN, "there are samples without a series")


MOST_LAYOUTS = 1024
"""Decoding takes one Python loop turn per layout, so their number is limited."""
MOST_BOUNDS = 1000
"""Bounds of one layout."""
_NAMES = [field.name for field in fields(Counts)]
_COUNTS = struct.Struct(f"<{len(_NAMES)}I")
