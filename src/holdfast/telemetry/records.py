"""The records of telemetry: gauges, counters, histograms, logs and alerts.

A record has values and a time. Its sequence number and its agent belong to the batch. Every record is checked when it
is made (``Invalid``), so that every existing record can be encoded and is decoded as it was: each float64 to its last
bit, whole numbers as ``int``, text unchanged. Labels are an unordered set of pairs.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from math import isfinite

from holdfast.base.errors import Invalid

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MOST_OBSERVATIONS = 2**53
Labels = Mapping[str, str]


class Kind(IntEnum):
    """What a metric's value means. The numbers are part of the frame format."""

    GAUGE = 0
    """Goes up and down."""
    COUNTER = 1
    """Only grows, until what counts is restarted."""
    HISTOGRAM = 2


class State(IntEnum):
    """Of an alert. The numbers are part of the frame format."""

    PENDING = 0
    FIRING = 1
    RESOLVED = 2


class Severity(IntEnum):
    """Common severities of a log. Any number from 0 (not given) to 24 is allowed, on OpenTelemetry's scale."""

    NOT_GIVEN = 0
    TRACE = 1
    DEBUG = 5
    INFO = 9
    WARN = 13
    ERROR = 17
    FATAL = 21


HIGHEST_SEVERITY = 24


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    value: float | int
    time_ns: int
    labels: Labels = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("metric name", self.name, empty=False)
        check_labels(self.name, self.labels)
        check_whole(f"{self.name}: time_ns", self.time_ns, INT64_MIN)
        check_number(f"{self.name}: value", self.value)


@dataclass(frozen=True, slots=True)
class Gauge(_Sample):
    """A value that goes up and down."""


@dataclass(frozen=True, slots=True)
class Counter(_Sample):
    """A value that only grows, until what counts is restarted."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many observations are in each bucket: ``counts[i]`` is the number of those up to ``bounds[i]`` and above the
    bound before it; the last one is the number above every bound. Counts are per bucket, of the observations since the
    previous histogram of the series. With ``cumulative`` they are of all observations since the sender started;
    ``Client`` then sends the differences, because batches have only those."""

    name: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    time_ns: int
    labels: Labels = field(default_factory=dict)
    cumulative: bool = False

    def __post_init__(self) -> None:
        check_text("metric name", self.name, empty=False)
        check_labels(self.name, self.labels)
        check_whole(f"{self.name}: time_ns", self.time_ns, INT64_MIN)
        # Adding zero makes -0.0 and 0.0 one bound: they divide observations at the same place.
        object.__setattr__(self, "bounds", tuple(float(bound) + 0.0 for bound in self.bounds))
        object.__setattr__(self, "counts", tuple(self.counts))
        object.__setattr__(self, "sum", float(self.sum))
        if not all(map(isfinite, self.bounds)) or any(low >= high for low, high in pairwise(self.bounds)):
            raise Invalid(f"{self.name}: bounds of a histogram are finite and grow, these are {self.bounds}")
        if len(self.counts) != len(self.bounds) + 1:
            raise Invalid(
                f"{self.name}: {len(self.bounds)} bounds make {len(self.bounds) + 1} buckets, "
                f"but there are {len(self.counts)} counts"
            )
        for count in self.counts:
            check_whole(f"{self.name}: a count", count, 0)
        check_whole(f"{self.name}: the count of observations", self.count, 0, MOST_OBSERVATIONS)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def since(self, before: "Histogram") -> "Histogram":
        """The observations since an earlier cumulative histogram of the series; all of them if the source restarted."""
        steps = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        if min(steps) < 0:
            return replace(self, cumulative=False)
        return replace(self, counts=tuple(steps), sum=self.sum - before.sum, cumulative=False)


@dataclass(frozen=True, slots=True)
class Log:
    message: str
    time_ns: int
    severity: int = Severity.INFO
    attributes: Labels = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("log message", self.message)
        check_labels("log", self.attributes)
        check_whole("log: time_ns", self.time_ns, INT64_MIN)
        check_whole("log: severity", self.severity, 0, HIGHEST_SEVERITY)


@dataclass(frozen=True, slots=True)
class Alert:
    """A change of an alert's state. ``value`` is the value that caused the change, if there is one."""

    name: str
    state: State
    time_ns: int
    labels: Labels = field(default_factory=dict)
    value: float | None = None
    message: str = ""

    def __post_init__(self) -> None:
        check_text("alert name", self.name, empty=False)
        check_text(f"{self.name}: message", self.message)
        check_labels(self.name, self.labels)
        check_whole(f"{self.name}: time_ns", self.time_ns, INT64_MIN)
        if self.state not in State.__members__.values():
            raise Invalid(f"{self.name}: {self.state!r} is not a state of an alert")
        object.__setattr__(self, "state", State(self.state))
        if self.value is not None:
            object.__setattr__(self, "value", float(self.value))


Record = Gauge | Counter | Histogram | Log | Alert


Cumulative = dict[tuple[object, ...], Histogram]
"""The latest cumulative histogram of each series."""


def differences(records: Iterable[Record], latest: Cumulative) -> tuple[list[Record], Cumulative]:
    """The records to send, with the differences in place of cumulative histograms; and the latest cumulative histogram
    of each series in ``records``. Of the first histogram of a series, and the first with other bounds, there is no
    difference yet."""
    sent: list[Record] = []
    seen: Cumulative = {}
    for record in records:
        if isinstance(record, Histogram) and record.cumulative:
            key = (record.name, tuple(sorted(record.labels.items())), record.bounds)
            before = seen.get(key, latest.get(key))
            seen[key] = record
            if before is not None:
                sent.append(record.since(before))
        else:
            sent.append(record)
    return sent, seen


def same(one: Record, other: Record) -> bool:
    """Whether two records are the same to the last bit: unlike ``==``, equal NaNs are the same, and 0.0 is not -0.0."""
    return type(one) is type(other) and _bits(one) == _bits(other)


def check_text(what: str, text: object, *, empty: bool = True) -> None:
    if not isinstance(text, str):
        raise Invalid(f"{what}: {text!r} is not text")
    if not text and not empty:
        raise Invalid(f"{what}: must not be empty")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"{what}: {text!r} has no UTF-8 form ({error.reason})") from error


def check_labels(what: str, labels: Labels) -> None:
    for name, value in labels.items():
        check_text(f"{what}: label name", name, empty=False)
        check_text(f"{what}: label {name}", value)


def check_whole(what: str, number: object, lowest: int, highest: int = INT64_MAX) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not lowest <= number <= highest:
        raise Invalid(f"{what}: {number!r} is not a whole number from {lowest} to {highest}")


def check_number(what: str, number: object) -> None:
    if isinstance(number, float):
        return
    if not isinstance(number, int) or isinstance(number, bool):
        raise Invalid(f"{what}: {number!r} is not a number", remedy="convert it to float or int")
    if not INT64_MIN <= number <= INT64_MAX:
        raise Invalid(f"{what}: {number} does not fit 64 bits", remedy="pass a float")


def _bits(record: Record) -> list[object]:
    values = [getattr(record, name) for name in record.__dataclass_fields__]
    return [struct.pack("<d", value) if isinstance(value, float) else value for value in values]
