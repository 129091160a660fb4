"""Rows of windows: count, sum, extremes, first and last, increase of counters, histograms and a sketch, per series.

The finest window is made from points, each larger one from the rows of the next finer one, in order of time. Everything
is a few passes over columns; nothing loops over samples.

* A **NaN** is no value: it is counted in ``nans`` and nowhere else. A window of nothing but NaN has a row with count 0.
* **Infinities** are values. A sum of both is NaN, as IEEE has it. -0.0 counts as 0.0.
* ``increase`` of a counter is what it grew by from the first to the last value of the window. Where a value is below
  the one before it, the counter was reset and has grown by that value; ``resets`` counts that. The step from the last
  value of one window to the first of the next is in neither row: merging adds it, as a query does.
* Of **histograms** ``count`` is the number of observations and ``sum`` theirs; ``first`` is how many of them came with
  the first histogram, which were made since the histogram before it; there is no min, max, last.
* Each **boot** of a series has rows of its own, so that two senders under one agent id do not look like resets.

Equal times keep the order of points; see ``points``. Of two windows that are merged in any division, only ``sum`` and
``increase`` may differ, in their last bits.
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
from holdfast.telemetry.rollup.points import COUNTER, HistogramPoints, Points, SeriesKey, in_order

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

    def take(self, places: Ints) -> "Rows":
        """Some of the rows."""
        return Rows(
            self.series,
            self.window_ns,
            self.series_id[places],
            **{name: getattr(self, name)[places] for name in COLUMNS},
            sketch=self.sketch.take(places),
            buckets=None if self.buckets is None else self.buckets.take(places),
        )

    def cut(self, begin: int, end: int, series: Sequence[SeriesKey], shift: int, offsets: Ints) -> "Rows":
        """The same of neighbours, without a copy; ``offsets`` are those of all sketches."""
        return Rows(
            series,
            self.window_ns,
            self.series_id[begin:end] - shift,
            **{name: getattr(self, name)[begin:end] for name in COLUMNS},
            sketch=self.sketch.cut(begin, end, offsets),
            buckets=None if self.buckets is None else self.buckets.take(np.arange(begin, end)),
        )


def from_points(points: Points, window_ns: int) -> Rows:
    """Rows of gauges and counters."""
    if not len(points):
        return Rows.empty(window_ns)
    order = order_by_time(points.series_id, points.time_ns, len(points.series))
    series_id, time_ns, value = points.series_id, points.time_ns, points.value
    if order is not None:
        series_id, time_ns, value = series_id[order], time_ns[order], value[order]
    start_ns = _floor(time_ns, window_ns)
    value = value + 0.0
    missing = np.isnan(value)
    if not missing.any():
        return _of_values(points.series, window_ns, series_id, start_ns, time_ns, value)
    there = np.flatnonzero(~missing)
    found = _of_values(points.series, window_ns, series_id[there], start_ns[there], time_ns[there], value[there])
    return _spread(found, series_id, start_ns, missing.astype(np.int64))


def from_histograms(points: HistogramPoints, window_ns: int) -> Rows:
    if not len(points):
        return replace(Rows.empty(window_ns), buckets=Buckets.empty())
    order = order_by_time(points.series_id, points.time_ns, len(points.series))
    series_id, time_ns, total, buckets = points.series_id, points.time_ns, points.sum, points.buckets
    if order is not None:
        series_id, time_ns, total, buckets = series_id[order], time_ns[order], total[order], buckets.take(order)
    start_ns = _floor(time_ns, window_ns)
    starts = starts_of_groups(series_id, start_ns)
    first = buckets.totals().astype(np.float64)
    times = (time_ns, time_ns)
    return _of_histograms(points.series, window_ns, series_id, start_ns, times, first, total, buckets, starts)


def merge(rows: Rows, window_ns: int) -> Rows:
    """Rows of a larger window."""
    check(window_ns % rows.window_ns == 0, f"rows of {rows.window_ns} ns do not merge into windows of {window_ns} ns")
    start_ns = _floor(rows.start_ns, window_ns)
    if rows.buckets is not None:
        starts = starts_of_groups(rows.series_id, start_ns)
        times = (rows.first_ns, rows.last_ns)
        return _of_histograms(
            rows.series, window_ns, rows.series_id, start_ns, times, rows.first, rows.sum, rows.buckets, starts
        )
    full = np.flatnonzero(rows.count > 0)
    if len(full) == len(rows):
        found = _of_rows(rows, window_ns, start_ns)
        starts = starts_of_groups(rows.series_id, start_ns)
        return replace(found, nans=np.add.reduceat(rows.nans, starts) if len(starts) else NO_INTS)
    found = _of_rows(rows.take(full), window_ns, start_ns[full])
    return _spread(found, rows.series_id, start_ns, rows.nans)


def joined(parts: Sequence[Rows], window_ns: int) -> Rows:
    """Rows of one window from several places, in order. All of gauges and counters, or all of histograms; a series has
    each window once.
    """
    parts = [part for part in parts if len(part)]
    if not parts:
        return Rows.empty(window_ns)
    check(all(part.window_ns == window_ns for part in parts), "rows of different windows do not join")
    known: dict[SeriesKey, int] = {}
    ids = [np.array([known.setdefault(key, len(known)) for key in part.series], np.int64) for part in parts]
    series, numbers = in_order(list(known))
    series_id = np.concatenate([numbers[own[part.series_id]] for own, part in zip(ids, parts, strict=True)])
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
    order = np.lexsort((together.start_ns, series_id))
    return together.take(order)


def _floor(time_ns: Ints, window_ns: int) -> Ints:
    found: Ints = time_ns - time_ns % window_ns
    return found


def _of_values(
    series: Sequence[SeriesKey], window_ns: int, series_id: Ints, start_ns: Ints, time_ns: Ints, value: Floats
) -> Rows:
    starts = starts_of_groups(series_id, start_ns)
    if not len(starts):
        return replace(Rows.empty(window_ns), series=series)
    count = lengths_of(starts, len(value))
    ends = starts + count - 1
    of = series_id[starts]
    low, high = np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
    increase, resets = _increase(_counters(series)[of], value[:-1], value[1:], starts, None)
    kept = np.flatnonzero(~sketch.is_plain(count, low, high))
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(value, starts)
    return Rows(
        series, window_ns, of, start_ns[starts], count, np.zeros(len(starts), np.int64), total, low, high,
        value[starts], value[ends], time_ns[starts], time_ns[ends], increase, resets,
        _sketches(value, starts, count, kept),
    )  # fmt: skip


def _sketches(value: Floats, starts: Ints, count: Ints, kept: Ints) -> Lists:
    if not len(kept):
        return Lists.empty(len(starts))
    wanted = np.zeros(len(starts), np.bool_)
    wanted[kept] = True
    group = np.repeat(np.arange(len(starts)), count)
    if len(kept) < len(starts):
        chosen = wanted[group]
        group, value = group[chosen], value[chosen]
    return sketch.of_values(group, value, len(starts))


def _of_rows(rows: Rows, window_ns: int, start_ns: Ints) -> Rows:
    """Of rows that all have values. Their NaNs are for the caller to count."""
    starts = starts_of_groups(rows.series_id, start_ns)
    if not len(starts):
        return replace(Rows.empty(window_ns), series=rows.series)
    ends = starts + lengths_of(starts, len(rows)) - 1
    of = rows.series_id[starts]
    count = np.add.reduceat(rows.count, starts)
    low, high = np.minimum.reduceat(rows.min, starts), np.maximum.reduceat(rows.max, starts)
    increase, resets = _increase(_counters(rows.series)[of], rows.last[:-1], rows.first[1:], starts, rows)
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(rows.sum, starts)
    return Rows(
        rows.series, window_ns, of, start_ns[starts], count, np.zeros(len(starts), np.int64), total, low, high,
        rows.first[starts], rows.last[ends], rows.first_ns[starts], rows.last_ns[ends], increase, resets,
        _merged_sketches(rows, starts, sketch.is_plain(count, low, high)),
    )  # fmt: skip


def _merged_sketches(rows: Rows, starts: Ints, plain: Flags) -> Lists:
    group = np.repeat(np.arange(len(starts)), lengths_of(starts, len(rows)))
    wanted = ~plain[group]
    if not wanted.any():
        return Lists.empty(len(starts))
    own = sketch.is_plain(rows.count, rows.min, rows.max)
    simple, full = np.flatnonzero(wanted & own), np.flatnonzero(wanted & ~own)
    lists = [
        sketch.of_plain(rows.count[simple], rows.min[simple], rows.max[simple]),
        rows.sketch.take(full),
    ]
    return sketch.merged(np.concatenate([group[simple], group[full]]), Lists.joined(lists), len(starts))


def _increase(counters: Flags, before: Floats, after: Floats, starts: Ints, rows: Rows | None) -> tuple[Floats, Ints]:
    """Of each group: the steps between neighbours in it, and what is in its rows already."""
    if not counters.any():
        return np.full(len(starts), np.nan), np.zeros(len(starts), np.int64)
    steps, fell = np.zeros(len(before) + 1), np.zeros(len(before) + 1, np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        down = after < before
        steps[1:] = np.where(down, after, after - before)
        steps[np.isnan(steps)] = 0.0  # an infinity after the same infinity
        fell[1:] = down
        steps[starts], fell[starts] = 0.0, 0
        if rows is not None:
            steps, fell = steps + rows.increase, fell + rows.resets
        increase = np.add.reduceat(steps, starts)
    increase[~counters] = np.nan
    return increase, np.where(counters, np.add.reduceat(fell, starts), 0)


def _counters(series: Sequence[SeriesKey]) -> Flags:
    return np.fromiter((key.kind == COUNTER for key in series), np.bool_, len(series))


def _of_histograms(
    series: Sequence[SeriesKey],
    window_ns: int,
    series_id: Ints,
    start_ns: Ints,
    times: tuple[Ints, Ints],
    first: Floats,
    total: Floats,
    buckets: Buckets,
    starts: Ints,
) -> Rows:
    ends = starts + lengths_of(starts, len(series_id)) - 1
    added = buckets.added(starts)
    none, zeros = np.full(len(starts), np.nan), np.zeros(len(starts), np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.add.reduceat(total, starts) if len(starts) else NO_FLOATS
    return Rows(
        series, window_ns, series_id[starts], start_ns[starts], added.totals(), zeros, sums, none, none,
        first[starts], none, times[0][starts], times[1][ends], none, zeros, Lists.empty(len(starts)), added,
    )  # fmt: skip


def _spread(found: Rows, series_id: Ints, start_ns: Ints, nans: Ints) -> Rows:
    """The rows among those of all windows, of which some have nothing but NaN."""
    starts = starts_of_groups(series_id, start_ns)
    total = len(starts)
    of, begin = series_id[starts], start_ns[starts]
    # Both are in order and every row that was found is among all: a merge by counting.
    both = np.lexsort(
        (
            np.concatenate([np.zeros(total, np.int64), np.ones(len(found), np.int64)]),
            np.concatenate([begin, found.start_ns]),
            np.concatenate([of, found.series_id]),
        )
    )
    places = np.cumsum(both < total)[both >= total] - 1

    def ints(column: Ints) -> Ints:
        spread = np.zeros(total, np.int64)
        spread[places] = column
        return spread

    def floats(column: Floats, missing: float = np.nan) -> Floats:
        spread = np.full(total, missing)
        spread[places] = column
        return spread

    return Rows(
        found.series, found.window_ns, of, begin, ints(found.count), np.add.reduceat(nans, starts),
        floats(found.sum, 0.0), floats(found.min), floats(found.max), floats(found.first), floats(found.last),
        ints(found.first_ns), ints(found.last_ns), floats(found.increase), ints(found.resets),
        Lists(ints(found.sketch.lengths), found.sketch.keys, found.sketch.counts),
    )  # fmt: skip
