"""The first thing in a payload: how many of everything there is, checked before any of it is read."""

import struct
from dataclasses import dataclass, fields
from typing import Self

from holdfast.ingest.frame.columns import Reader
from holdfast.ingest.frame.envelope import Limits
from holdfast.ingest.frame.errors import FrameInvalid, Reason


@dataclass(frozen=True, slots=True)
class Counts:
    """In the order of the format, each as u32."""

    texts: int
    text_bytes: int
    label_sets: int
    pairs: int
    """Of a label's name and value, over all label sets."""
    series: int
    samples: int
    times: int
    """Different times of samples, if each is written once; zero if each sample has its own."""
    histogram_series: int
    histograms: int
    histogram_times: int
    layouts: int
    bounds: int
    """Over all layouts."""
    buckets: int
    """Over all histograms."""
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
        """Each count is bounded by one that is bounded already, so that none makes us allocate more than is there."""
        if self.records != records:
            raise FrameInvalid(Reason.COLUMN, f"{self.records} records in the payload, {records} in the head")
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
                raise FrameInvalid(Reason.COLUMN, f"{count} {what} are more than the {most} that there can be")
        if (self.samples and not self.series) or (self.histograms and not self.histogram_series):
            raise FrameInvalid(Reason.COLUMN, "samples belong to no series")


MOST_LAYOUTS = 1024
"""Layouts are handled one by one, so there are few."""
MOST_BOUNDS = 1000
"""Of one layout."""
_NAMES = [field.name for field in fields(Counts)]
_COUNTS = struct.Struct(f"<{len(_NAMES)}I")
