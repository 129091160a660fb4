"""A question about one metric over a range of time. Pure.

Steps begin at multiples of their length since 1970, and the range is widened to whole steps. The value of a step is:

    avg, sum, min, max, count   of all samples; of histograms avg, sum and count, of their observations
    last                        the latest sample; of several series, that of the series with the latest one
    increase, rate              of counters, what they grew by across resets, and that per second; of histograms, how
                                many observations there were; of several series, the sum
    quantile                    the part ``q`` of samples does not exceed it, within 1 %; of histograms, by linear
                                interpolation in the bucket

What a counter grew by between two samples is spread evenly over the time between them, if they are at most ``reach_ns``
apart: an hour, or a step if that is longer. So a rate does not depend on where steps begin and samples are, and the
increases of parts add up to that of the whole. The same holds for the observations of a histogram since the one before
it. The rate of a step that has not ended is divided by the time up to its newest sample.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from holdfast.base.clock import parse_moment, parse_span
from holdfast.base.errors import Invalid
from holdfast.telemetry.rollup.layout import DAY_NS, SECOND_NS, window_name
from holdfast.telemetry.rollup.matchers import Matcher

REACH_NS = 3600 * SECOND_NS
MAX_STEPS = 11_000
"""Of one answer."""
MAX_STEP = 36_500 * DAY_NS
DEFAULT_STEPS = 60
"""The approximate number of steps of an answer, if the question does not give their length."""
NICE_SECONDS = (10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400)


Moment = int | str | datetime
"""Nanoseconds since 1970; text such as ``2h`` for so long ago, or ISO 8601; or a ``datetime``, UTC without a zone."""

_EARLIEST, _LATEST = -(2**62), 2**62


def moment_ns(moment: Moment, now_ns: int) -> int:
    if isinstance(moment, datetime):
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        found = round(zoned.timestamp() * 1_000_000) * 1_000
    elif isinstance(moment, str):
        found = parse_moment(moment, now_ns)
    else:
        found = int(moment)
    if not _EARLIEST < found < _LATEST:
        raise Invalid(f"{moment!r} is not a time that samples can have", remedy="give nanoseconds since 1970, or 2h")
    return found


def range_ns(since: Moment, until: Moment | None, now_ns: int) -> tuple[int, int]:
    since_ns, until_ns = moment_ns(since, now_ns), now_ns if until is None else moment_ns(until, now_ns)
    if until_ns <= since_ns:
        raise Invalid("the range ends before it begins", remedy="give a time for until that is after since")
    return since_ns, until_ns


def span_ns(span: int | str) -> int:
    """Nanoseconds, or text such as ``5m``."""
    return parse_span(span) if isinstance(span, str) else int(span)


class Aggregate(StrEnum):
    AVG = "avg"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    COUNT = "count"
    LAST = "last"
    RATE = "rate"
    INCREASE = "increase"
    QUANTILE = "quantile"

    @property
    def grows(self) -> bool:
        return self in (Aggregate.RATE, Aggregate.INCREASE)


@dataclass(frozen=True, slots=True)
class Question:
    metric: str
    since_ns: int
    until_ns: int
    """Exclusive."""
    step_ns: int
    aggregate: Aggregate = Aggregate.AVG
    matchers: tuple[Matcher, ...] = ()
    by: tuple[str, ...] | None = None
    """Labels by which series are grouped; None keeps every series apart, an empty tuple groups all of them."""
    q: float = 0.5
    now_ns: int | None = None
    """When it was asked: a step that has not ended by then is unfinished. None if all steps count as finished."""

    @property
    def reach_ns(self) -> int:
        """How far apart two neighbouring samples may be."""
        return max(self.step_ns, REACH_NS)

    @property
    def from_ns(self) -> int:
        """Where reading begins: at a whole step, because windows of any length up to a step begin there."""
        return self.since_ns - self._steps_of_reach if self.aggregate.grows else self.since_ns

    @property
    def to_ns(self) -> int:
        """Where reading ends, exclusive: the last step of a counter needs the sample after it."""
        return self.until_ns + self._steps_of_reach if self.aggregate.grows else self.until_ns

    @property
    def _steps_of_reach(self) -> int:
        return -(-self.reach_ns // self.step_ns) * self.step_ns

    @property
    def unfinished_ns(self) -> int | None:
        """Where the unfinished step begins; None if all steps have ended."""
        if self.now_ns is None or not self.since_ns <= self.now_ns < self.until_ns:
            return None
        return self.now_ns // self.step_ns * self.step_ns

    def widened(self, window_ns: int) -> "Question":
        """With steps of the next multiple of this window."""
        step = -(-self.step_ns // window_ns) * window_ns
        since, until = self.since_ns // step * step, -(-self.until_ns // step) * step
        return replace(self, step_ns=step, since_ns=since, until_ns=until)

    def window(self, windows: Iterable[int]) -> int | None:
        """The largest of these windows that divides the step; None if none does."""
        return max((each for each in windows if self.step_ns % each == 0), default=None)


def ask(
    metric: str,
    since_ns: int,
    until_ns: int,
    step_ns: int | None = None,
    aggregate: str = "avg",
    matchers: Iterable[Matcher] = (),
    by: str | Iterable[str] | None = None,
    q: float | None = None,
    now_ns: int | None = None,
) -> Question:
    """A valid question; raises ``Invalid``."""
    if not metric:
        raise Invalid("the name of the metric is missing", remedy="holdfast metrics list shows the names")
    try:
        chosen = Aggregate(aggregate)
    except ValueError:
        names = ", ".join(Aggregate)
        raise Invalid(f"{aggregate!r} is not an aggregate", remedy=f"use one of {names}") from None
    if (q is not None) != (chosen is Aggregate.QUANTILE):
        raise Invalid("q is for the aggregate quantile, which needs it", remedy="ask for quantile with q = 0.95")
    if q is not None and not 0.0 <= q <= 1.0:
        raise Invalid(f"q is {q}; it must be from 0 to 1", remedy="such as 0.95 for the 95th percentile")
    step = default_step(until_ns - since_ns) if step_ns is None else step_ns
    if step > MAX_STEP:
        longest = MAX_STEP // DAY_NS
        raise Invalid(f"a step is longer than {longest:,} days", remedy="ask for shorter steps, such as 1d")
    if step <= 0 or step % SECOND_NS:
        raise Invalid(f"a step of {step} ns is not a number of whole seconds", remedy="such as 10s, 1m or 1h")
    since, until = since_ns // step * step, -(-until_ns // step) * step
    if (until - since) // step > MAX_STEPS:
        raise Invalid(
            f"{(until - since) // step:,} steps of {window_name(step)} are more than {MAX_STEPS:,}",
            remedy="ask for longer steps or a shorter range",
        )
    return Question(metric, since, until, step, chosen, tuple(matchers), _grouped(by), 0.5 if q is None else q, now_ns)


def _grouped(by: Any) -> tuple[str, ...] | None:
    if by is None or isinstance(by, str):
        return None if by is None else (by,)
    names = tuple(by) if isinstance(by, Iterable) else None
    if names is None or not all(isinstance(each, str) for each in names):
        raise Invalid(f"by is {by!r}; it must be labels", remedy='such as by="cpu" or by=["cpu", "mode"]')
    return tuple(dict.fromkeys(names))


def default_step(length_ns: int) -> int:
    """The shortest of ``NICE_SECONDS`` that gives at most about ``DEFAULT_STEPS`` steps, or else whole days."""
    for seconds in NICE_SECONDS:
        if length_ns <= DEFAULT_STEPS * seconds * SECOND_NS:
            return seconds * SECOND_NS
    return -(-length_ns // (DEFAULT_STEPS * DAY_NS)) * DAY_NS
