"""Rows of windows: count, sum, extremes, first and last, increase of counters, histograms and a sketch, per series.

The finest window is made from points, each larger one from the rows of the next finer one, in order of time; a point is
a row of its own. Everything is a few passes over columns; nothing loops over samples.

* A **NaN** is no value: it is counted in ``nans`` and nowhere else. A window of nothing but NaN has a row with count 0.
* **Infinities** are values. A sum of both is NaN, as IEEE has it. -0.0 counts as 0.0.
* ``increase`` of a counter is what it grew by from the first to the last value of the window. Where a value is below
  the one before it, the counter was reset and has grown by that value; ``resets`` counts that. The step from the last
  value of one window to the first of the next is in neither row: merging adds it, as a query does.
* Of **histograms** ``count`` is the number of observations and ``sum`` their sum; ``first`` is how many of them came
  with the first histogram, which were made since the histogram before it; there is no min, max, last.
* Each **boot** of a series has rows of its own, so that two senders under one agent id do not look like resets.

Samples of equal times are in the order of their sequence numbers. However windows are merged from smaller ones, only
``sum`` and ``increase`` may differ, in their last bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.base.errors import check
from holdfast.telemetry.rollup import sketch
from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.columns import (
    NO_FLOATS,
    NO_INTS,
    Flags,
    Floats,
    Ints,
    Lists,
    lengths_of,
    order_by_time,
    starts_of_groups,
)
from holdfast.telemetry.rollup.points import COUNTER, Points, SeriesKey, in_order

COLUMNS = (
    "start_ns", "count", "nans", "sum", "min", "max", "first", "last", "first_ns", "last_ns", "increase", "resets",
)  # fmt: skip
"""Those that are one number per row."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One row per series and window, by series and time. All of gauges and counters, or all of histograms."""

    series: Sequence[SeriesKey]
    """In order."""
    window_ns: int
    series_id: Ints
    start_ns: Ints
    count: Ints
    nans: Ints
    sum: Floats
    min: Floats
    """NaN where there is none, as are ``max``, ``first``, ``last`` and ``increase``."""
    max: Floats
    first: Floats
    last: Floats
    first_ns: Ints
    last_ns: Ints
    increase: Floats
    resets: Ints
    sketch: Lists
    buckets: Buckets | None = None
    """Of histograms, one for each row."""

    def __len__(self) -> int:
        return len(self.series_id)

    @classmethod
    def empty(cls, window_ns: int) -> "Rows":
        ints, floats = NO_INTS, NO_FLOATS
        return cls(
            [], window_ns, ints, ints, ints, ints, floats, floats, floats, floats, floats, ints, ints, floats, ints,
            Lists.empty(0),
        )  # fmt: skip

    def take(self, places: Ints | slice) -> "Rows":
        """Some of the rows; of neighbours, given as a slice, without a copy."""
        return replace(
            self,
            series_id=self.series_id[places],
            **{name: getattr(self, name)[places] for name in COLUMNS},
            sketch=self.sketch.take(places),
            buckets=None if self.buckets is None else self.buckets.take(places),
        )


def rows_of_points(points: Points, window_ns: int) -> Rows:
    series_id, time_ns, value, buckets = points.series_id, points.time_ns, points.value, points.buckets
    order = order_by_time(series_id, time_ns, points.seq, len(points.series))
    if order is not None:
        series_id, time_ns, value = series_id[order], time_ns[order], value[order]
        buckets = None if buckets is None else buckets.take(order)
    zeros = np.zeros(len(points), np.int64)
    if buckets is not None:
        count, nans, total, first_ns = buckets.totals(), zeros, value, time_ns
        first, value = count.astype(np.float64), np.full(len(points), np.nan)
    else:
        value = value + 0.0
        missing = np.isnan(value)
        count, nans, first = (~missing).astype(np.int64), missing.astype(np.int64), value
        total, first_ns = np.where(missing, 0.0, value), np.where(missing, 0, time_ns)
    rows = Rows(
        points.series, 1, series_id, time_ns, count, nans, total, value, value, first, value, first_ns, first_ns,
        np.zeros(len(points)), zeros, Lists.empty(len(points)), buckets,
    )  # fmt: skip
    return merge_rows(rows, window_ns)


def merge_rows(rows: Rows, window_ns: int) -> Rows:
    """Rows of a larger window."""
    check(window_ns % rows.window_ns == 0, f"rows of {rows.window_ns} ns do not merge into windows of {window_ns} ns")
    start_ns = rows.start_ns - rows.start_ns % window_ns
    starts = starts_of_groups(rows.series_id, start_ns)
    if not len(starts):
        return replace(Rows.empty(window_ns), series=rows.series, buckets=rows.buckets)
    of = rows.series_id[starts]
    buckets = None if rows.buckets is None else rows.buckets.added(starts)
    count = np.add.reduceat(rows.count, starts) if buckets is None else buckets.totals()
    first, last, before = _neighbours(rows.count > 0 if buckets is None else np.ones(len(rows), np.bool_), starts)
    low, high = np.fmin.reduceat(rows.min, starts), np.fmax.reduceat(rows.max, starts)
    counters = np.fromiter((key.kind == COUNTER for key in rows.series), np.bool_, len(rows.series))[of]
    increase, resets = _growth(rows, starts, before, counters & (count > 0))
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(rows.sum, starts)
    return Rows(
        rows.series, window_ns, of, start_ns[starts], count, np.add.reduceat(rows.nans, starts), total, low, high,
        rows.first[first], rows.last[last], rows.first_ns[first], rows.last_ns[last], increase, resets,
        _merged_sketches(rows, starts, sketch.is_plain(count, low, high)), buckets,
    )  # fmt: skip


def join_rows(parts: Sequence[Rows], window_ns: int) -> Rows:
    """Rows of one window from several places, in order. All of gauges and counters, or all of histograms; a series has
    each window once.
    """
    parts = [part for part in parts if len(part)]
    if not parts:
        return Rows.empty(window_ns)
    check(all(part.window_ns == window_ns for part in parts), "rows of different windows do not join")
    numbers: dict[SeriesKey, int] = {}
    ids = [np.array([numbers.setdefault(key, len(numbers)) for key in part.series], np.int64) for part in parts]
    series, renumbered = in_order(list(numbers))
    series_id = np.concatenate([renumbered[own[part.series_id]] for own, part in zip(ids, parts, strict=True)])
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    buckets = [part.buckets for part in parts if part.buckets is not None]
    together = Rows(
        series,
        window_ns,
        series_id,
        **columns,
        sketch=Lists.joined([part.sketch for part in parts]),
        buckets=Buckets.joined(buckets) if len(buckets) == len(parts) else None,
    )
    return together.take(np.lexsort((together.start_ns, series_id)))


def _neighbours(valued: Flags, starts: Ints) -> tuple[Ints, Ints, Ints]:
    """The places of the first and of the last row with a value in each group (in a group without values, of the first
    and the last row); and for each row the place of the row with a value before it, -1 if there is none.
    """
    places = np.arange(len(valued))
    ends = np.append(starts[1:], len(valued)) - 1
    if valued.all():
        return starts, ends, places - 1
    until = np.maximum.accumulate(np.where(valued, places, -1))
    since = np.minimum.accumulate(np.where(valued, places, len(valued))[::-1])[::-1]
    first, last = since[starts], until[ends]
    empty = first > ends
    return np.where(empty, starts, first), np.where(empty, ends, last), np.append(-1, until[:-1])


def _growth(rows: Rows, starts: Ints, before: Ints, counters: Flags) -> tuple[Floats, Ints]:
    """``increase`` and ``resets`` of each group: what its rows have, and the steps from each of them to the next."""
    if not counters.any():
        return np.full(len(starts), np.nan), np.zeros(len(starts), np.int64)
    inside = (rows.count > 0) & (before >= np.repeat(starts, lengths_of(starts, len(rows))))
    previous = rows.last[before]
    with np.errstate(invalid="ignore", over="ignore"):
        down = rows.first < previous
        steps = np.where(down, rows.first, rows.first - previous)
        steps[~inside | np.isnan(steps)] = 0.0  # NaN: an infinity after the same infinity
        increase = np.add.reduceat(steps + np.where(rows.count > 0, rows.increase, 0.0), starts)
    resets = np.add.reduceat(rows.resets + (down & inside), starts)
    return np.where(counters, increase, np.nan), np.where(counters, resets, 0)


def _merged_sketches(rows: Rows, starts: Ints, plain: Flags) -> Lists:
    """The sketch of each group that is not plain."""
    group = np.repeat(np.arange(len(starts)), lengths_of(starts, len(rows)))
    wanted = ~plain[group]
    if rows.buckets is not None or not wanted.any():
        return Lists.empty(len(starts))
    if rows.window_ns == 1:
        samples = np.flatnonzero(wanted & (rows.count > 0))
        return sketch.of_values(group[samples], rows.min[samples], len(starts))
    own = sketch.is_plain(rows.count, rows.min, rows.max)
    simple, full = np.flatnonzero(wanted & own), np.flatnonzero(wanted & ~own)
    lists = [sketch.of_plain(rows.count[simple], rows.min[simple], rows.max[simple]), rows.sketch.take(full)]
    return sketch.merged(np.concatenate([group[simple], group[full]]), Lists.joined(lists), len(starts))
