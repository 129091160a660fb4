"""Answers a question from rows of rollups with DuckDB. The rows lie in Parquet files, wherever they came from:
chunks of the store, or rows that were made from batches just now.

A sum of floats is the same whatever has been rolled up, but for the order of addition; everything else is the same.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.sql.duck import Duck
from holdfast.telemetry.query.question import Aggregate, Question
from holdfast.telemetry.rollup import chunk, sketch
from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.columns import Floats, Ints, Lists, lengths_of
from holdfast.telemetry.rollup.layout import SECOND_NS
from holdfast.telemetry.rollup.matchers import AGENT, Matcher
from holdfast.telemetry.rollup.points import HISTOGRAM

COLUMNS = (
    "agent, labels, kind, epoch_us(window_start) * 1000 AS start_ns, count, sum, min, max, first, first_time_ns, last, "
    "last_time_ns, increase, resets, nans, sketch_keys, sketch_counts, bounds, bucket_counts"
)
_SIMPLE = {
    Aggregate.AVG: "CASE WHEN sum(count) > 0 THEN sum(sum) / sum(count) END",
    Aggregate.SUM: "CASE WHEN sum(count) > 0 THEN sum(sum) END",
    Aggregate.MIN: "min(min)",
    Aggregate.MAX: "max(max)",
    Aggregate.COUNT: "sum(count)::DOUBLE",
    Aggregate.LAST: 'first("last" ORDER BY last_time_ns DESC, agent, labels::VARCHAR) FILTER ("last" IS NOT NULL)',
}


@dataclass(slots=True)
class AnsweredSeries:
    labels: dict[str, str]
    """Those by which series were put together; of a series on its own all, and ``agent``."""
    kind: str
    times_ns: list[int] = field(default_factory=list)
    """Where steps begin. A step in which nothing was seen is left out."""
    values: list[float] = field(default_factory=list)


async def answer(
    duck: Duck, files: Sequence[Path], question: Question, *, layered: bool = False
) -> list[AnsweredSeries]:
    """Series by labels, with their steps in order. ``layered``, a series may have a window in several rows."""
    if not files:
        return []
    params: dict[str, Any] = {"files": [str(path) for path in files]}
    picked = f"SELECT {COLUMNS} FROM read_parquet($files) WHERE {_conditions(question, params)}"
    group = _group(question, params)
    step = f"start_ns - ((start_ns % {question.step_ns}) + {question.step_ns}) % {question.step_ns}"
    if question.aggregate is Aggregate.QUANTILE:
        text = f"WITH picked AS ({picked}) SELECT {group}, {step} AS step_ns, * FROM picked ORDER BY g, kind, step_ns"
        return _series(_quantiles(await duck.table(text, params), question.q), question)
    if question.aggregate.grows:
        text = _growth(_once(picked) if layered else picked, group, step, question)
    else:
        value = _SIMPLE[question.aggregate]
        text = (
            f"WITH picked AS ({picked}) SELECT {group}, kind, {step} AS step_ns, {value} AS value FROM picked "
            "GROUP BY g, kind, step_ns"
        )
    # A row per series: rows per value would be taken apart in Python.
    text = (
        "SELECT g, kind, list(step_ns ORDER BY step_ns) AS times, list(value ORDER BY step_ns) AS numbers "
        f"FROM ({text}) WHERE value IS NOT NULL GROUP BY g, kind ORDER BY g, kind"
    )
    return _series((await duck.table(text, params)).to_pylist(), question)


def _once(picked: str) -> str:
    """Rows of one window as one, as ``rollup.joined`` has it: nothing is known of the steps between them."""
    return (
        "SELECT agent, labels, kind, start_ns, sum(count) AS count, sum(increase) AS increase, "
        'arg_min("first", first_time_ns) AS "first", min(first_time_ns) AS first_time_ns, '
        'arg_max("last", last_time_ns) AS "last", max(last_time_ns) AS last_time_ns '
        f"FROM ({picked}) WHERE count > 0 GROUP BY agent, labels, kind, start_ns"
    )


def _growth(picked: str, group: str, step: str, question: Question) -> str:
    """The step from the value before belongs to the later of the two, if they are near enough."""
    per = question.step_ns / SECOND_NS if question.aggregate is Aggregate.RATE else 1
    joined = (
        'SELECT *, lag("last") OVER w AS before, lag(last_time_ns) OVER w AS before_ns FROM picked '
        "WHERE count > 0 WINDOW w AS (PARTITION BY agent, labels, kind ORDER BY start_ns, first_time_ns)"
    )
    grown = (
        "CASE WHEN kind = 'histogram' THEN count::DOUBLE ELSE increase + CASE "
        f'WHEN before IS NULL OR first_time_ns - before_ns > {question.reach_ns} OR "first" = before THEN 0.0 '
        'WHEN "first" < before THEN "first" ELSE "first" - before END END'
    )
    return (
        f"WITH picked AS ({picked}), joined AS ({joined}) "
        f"SELECT {group}, kind, {step} AS step_ns, sum({grown}) / {per!r} AS value FROM joined "
        f"WHERE start_ns >= {question.since_ns} GROUP BY g, kind, step_ns"
    )


def _conditions(question: Question, params: dict[str, Any]) -> str:
    params["since"], params["until"] = question.from_ns // 1000, question.until_ns // 1000
    parts = ["epoch_us(window_start) >= $since", "epoch_us(window_start) < $until"]
    parts += [_condition(matcher, number, params) for number, matcher in enumerate(question.matchers)]
    return " AND ".join(parts)


def _condition(matcher: Matcher, number: int, params: dict[str, Any]) -> str:
    name, value = f"name{number}", f"value{number}"
    column = "agent"
    if matcher.name != AGENT:
        params[name] = matcher.name
        column = f"coalesce(labels[${name}], '')"
    params[value] = matcher.anchored if matcher.by_pattern else matcher.value
    test = f"regexp_matches({column}, ${value})" if matcher.by_pattern else f"{column} = ${value}"
    return f"NOT {test}" if matcher.negative else test


def _group(question: Question, params: dict[str, Any]) -> str:
    """A list of texts: the values of the labels, or agent and labels of a series on its own."""
    if question.by is None:
        return "[agent] || flatten([[entry.key, entry.value] FOR entry IN map_entries(labels)]) AS g"
    columns = []
    for number, name in enumerate(question.by):
        if name == AGENT:
            columns.append("agent")
        else:
            params[f"by{number}"] = name
            columns.append(f"coalesce(labels[$by{number}], '')")
    return f"[{', '.join(columns)}]::VARCHAR[] AS g"


def _series(found: Iterable[dict[str, Any]], question: Question) -> list[AnsweredSeries]:
    answered = []
    for row in found:
        group = row["g"]
        if question.by is None:
            labels = {**dict(zip(group[1::2], group[2::2], strict=True)), AGENT: group[0]}
        else:
            labels = dict(zip(question.by, group, strict=True))
        answered.append(AnsweredSeries(labels, row["kind"], row["times"], row["numbers"]))
    return answered


def _quantiles(table: pa.Table, q: float) -> Iterator[dict[str, Any]]:
    """Of rows in the order of group, kind and step: what each (group, kind) gives, step by step."""
    heads = table.select(["g", "kind", "step_ns"]).to_pylist()
    starts = np.array([at for at, head in enumerate(heads) if not at or head != heads[at - 1]], np.int64)
    sampled = np.array([head["kind"] != HISTOGRAM for head in heads], np.bool_)
    group = np.repeat(np.arange(len(starts)), lengths_of(starts, len(heads)))
    values = np.full(len(starts), np.nan)
    if sampled.any():
        _sampled(table, np.flatnonzero(sampled), group, q, values)
    if not sampled.all():
        _observed(table, np.flatnonzero(~sampled), group, q, values)
    steps = [(heads[start], value) for start, value in zip(starts.tolist(), values.tolist(), strict=True)]
    for (labels, kind), own in groupby(steps, key=lambda step: (step[0]["g"], step[0]["kind"])):
        points = [(head["step_ns"], value) for head, value in own if not math.isnan(value)]
        if points:
            times, numbers = zip(*points, strict=True)
            yield {"g": labels, "kind": kind, "times": list(times), "numbers": list(numbers)}


def _sampled(table: pa.Table, places: Ints, group: Ints, q: float, values: Floats) -> None:
    rows = chunk.samples_of(table.take(pa.array(places)))
    group = group[places]
    plain = sketch.is_plain(rows.count, rows.min, rows.max)
    simple, full = np.flatnonzero(plain), np.flatnonzero(~plain)
    lists = Lists.joined(
        [sketch.of_plain(rows.count[simple], rows.min[simple], rows.max[simple]), rows.sketch.take(full)]
    )
    merged = sketch.merged(np.concatenate([group[simple], group[full]]), lists, len(values))
    low, high = np.full(len(values), np.inf), np.full(len(values), -np.inf)
    there = rows.count > 0
    np.minimum.at(low, group[there], rows.min[there])
    np.maximum.at(high, group[there], rows.max[there])
    offsets = merged.offsets.tolist()
    for number in np.flatnonzero(merged.lengths).tolist():
        inside = slice(offsets[number], offsets[number + 1])
        keys, counts = merged.keys[inside], merged.counts[inside]
        values[number] = sketch.quantile(keys, counts, q, float(low[number]), float(high[number]))


def _observed(table: pa.Table, places: Ints, group: Ints, q: float, values: Floats) -> None:
    buckets: Buckets = chunk.buckets_of(table.take(pa.array(places)))
    own = group[places]
    starts = np.flatnonzero(np.diff(own, prepend=-1))
    added = buckets.added(starts)
    for place, number in enumerate(own[starts].tolist()):
        bounds, counts = added.at(place)
        values[number] = observed_quantile(bounds, counts, q)


def observed_quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float:
    """In the bucket where the part ``q`` ends, by linear interpolation. Below the first bound the bucket begins at zero
    if that bound is positive; above the last bound nothing more is known than that bound."""
    total = sum(counts)
    if not total or not bounds:
        return math.nan
    wanted, below = q * total, 0
    for place, count in enumerate(counts[:-1]):
        if count and below + count >= wanted:
            high = bounds[place]
            low = bounds[place - 1] if place else min(0.0, high)
            return low + (high - low) * max(0.0, wanted - below) / count
        below += count
    return bounds[-1]
