"""Answers a question from rows of rollups with DuckDB. The rows are in Parquet files: chunks of the store, or rows made
from batches for this answer.

Each boot of a series has rows of its own, which are joined here. Boots that follow each other are one series. If two
overlap in time, two senders use one agent id: counters and histograms of both are added, each compared only with its
own boot; of gauges the boot that began last counts in every step in which both have samples.

The answer does not depend on what has been rolled up, except that sums of floats may be added in another order.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.sql.duck import Duck
from holdfast.telemetry.query.answer import AnsweredSeries
from holdfast.telemetry.query.question import Aggregate, Question
from holdfast.telemetry.rollup import chunk, sketch
from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.columns import Floats, Ints, Lists, lengths_of
from holdfast.telemetry.rollup.layout import SECOND_NS
from holdfast.telemetry.rollup.matchers import AGENT, EXPORTED_AGENT, Matcher, shown_labels
from holdfast.telemetry.rollup.points import HISTOGRAM

COLUMNS = (
    "agent, labels, kind, boot, epoch_us(window_start) * 1000 AS start_ns, count, sum, min, max, "
    "first, first_time_ns, last, last_time_ns, increase, resets, nans, sketch_keys, sketch_counts, bounds, "
    "bucket_counts"
)
_SIMPLE = {
    Aggregate.AVG: "CASE WHEN sum(count) > 0 THEN sum(sum) / sum(count) END",
    Aggregate.SUM: "CASE WHEN sum(count) > 0 THEN sum(sum) END",
    Aggregate.MIN: "min(min)",
    Aggregate.MAX: "max(max)",
    Aggregate.COUNT: "CASE WHEN kind = 'histogram' OR sum(count) > 0 THEN sum(count)::DOUBLE END",
    Aggregate.LAST: (
        'arg_max("last", struct_pack(at := last_time_ns, agent := agent, labels := labels::VARCHAR, boot := boot))'
    ),
}
_SEVERAL = "SELECT agent FROM picked GROUP BY agent HAVING count(DISTINCT boot) > 1"
"""Agents with several boots."""
_BOOTS = """
SELECT agent, labels, kind, boot, min(first_time_ns) AS begin_ns, max(last_time_ns) AS end_ns,
       arg_min("first", first_time_ns) AS "first", arg_max("last", last_time_ns) AS "last"
FROM rows GROUP BY agent, labels, kind, boot
"""
"""The first and last time of each boot of a series."""
_OVERLAPPING = f"""
several AS ({_SEVERAL}),
rows AS (SELECT * FROM picked WHERE first_time_ns IS NOT NULL AND agent IN (FROM several)),
boots AS ({_BOOTS}),
reached AS (
    SELECT agent, begin_ns, max(end_ns) OVER (
        PARTITION BY agent, labels, kind ORDER BY begin_ns, boot ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS reached_ns FROM boots
)
SELECT DISTINCT agent FROM reached WHERE reached_ns >= begin_ns ORDER BY agent
"""
_LATEST_OF_GAUGES = f"""
SELECT picked.* FROM picked ANTI JOIN (
    WITH several AS ({_SEVERAL}),
    steps AS (
        SELECT agent, labels, boot, step_ns, min(first_time_ns) AS begin_ns, max(last_time_ns) AS end_ns
        FROM picked WHERE kind = 'gauge' AND count > 0 AND agent IN (FROM several)
        GROUP BY agent, labels, boot, step_ns
    ),
    begun AS (SELECT *, min(begin_ns) OVER (PARTITION BY agent, labels, boot) AS boot_ns FROM steps)
    SELECT agent, labels, boot, step_ns FROM begun QUALIFY end_ns >= min(begin_ns) OVER (
        PARTITION BY agent, labels, step_ns ORDER BY boot_ns, boot ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
    )
) AS replaced ON picked.kind = 'gauge' AND picked.agent = replaced.agent AND picked.labels = replaced.labels
    AND picked.boot = replaced.boot AND picked.step_ns = replaced.step_ns
"""
"""All rows, without those of a gauge's boot in steps in which a boot that began later has samples before its end."""
_JOINTS = """
WITH numbered AS (SELECT *, dense_rank() OVER (ORDER BY agent, labels, kind) AS series FROM boots),
ends AS (SELECT series, end_ns, arg_max("last", boot) AS "last" FROM numbered GROUP BY series, end_ns)
SELECT later.agent, later.labels, later.kind, later.begin_ns AS at_ns, later."first" AS value,
       earlier.end_ns AS before_ns, earlier."last" AS before
FROM numbered AS later ASOF JOIN ends AS earlier
ON later.series = earlier.series AND later.begin_ns > earlier.end_ns
QUALIFY row_number() OVER (
    PARTITION BY earlier.series, earlier.end_ns ORDER BY later.begin_ns, later.boot
) = 1
"""
"""For each boot, the first sample and the last sample of the boot before it, which is the one that ended last before.

Series are compared by number: an ASOF JOIN of DuckDB 1.5 finds nothing by columns of maps."""


# Statements over the index of series. It has one row per hour and series, which counts if its samples in the hour reach
# into the range.
_INSIDE = (
    "FROM read_parquet($files) WHERE last_time_ns >= $since AND first_time_ns < $until "
    "AND ($agent::VARCHAR IS NULL OR agent = $agent::VARCHAR)"
)
METRICS = f"""
SELECT metric, kind, count(DISTINCT (agent, labels)) AS series, count(DISTINCT agent) AS agents,
       sum(samples)::BIGINT AS samples, min(first_time_ns) AS first_time_ns, max(last_time_ns) AS last_time_ns
{_INSIDE} AND regexp_full_match(metric, $pattern)
GROUP BY metric, kind ORDER BY metric, kind
"""
LABELS = f"""
WITH found AS (SELECT DISTINCT agent, labels, kind {_INSIDE} AND metric = $metric),
pairs AS (
    SELECT 'agent' AS label, agent AS value FROM found
    UNION ALL
    SELECT CASE entry.key WHEN '{AGENT}' THEN '{EXPORTED_AGENT}' ELSE entry.key END AS label, entry.value AS value
    FROM (SELECT unnest(map_entries(labels)) AS entry FROM found)
)
SELECT label, value, count(*) AS series FROM pairs GROUP BY label, value ORDER BY label, value
"""


async def answer(duck: Duck, files: Sequence[Path], question: Question) -> tuple[list[AnsweredSeries], list[str]]:
    """Series by labels, with their steps in order; and the agent ids that several senders seem to use."""
    if not files:
        return [], []
    params: dict[str, Any] = {"files": [str(path) for path in files]}
    step = question.step_ns
    picked = (
        f"picked AS (SELECT {COLUMNS}, start_ns - ((start_ns % {step}) + {step}) % {step} AS step_ns "
        f"FROM read_parquet($files) WHERE {_conditions(question, params)})"
    )
    overlapping = await duck.table(f"WITH {picked}, {_OVERLAPPING}", params)
    agents: list[str] = overlapping.column("agent").to_pylist()
    if agents:
        picked = f"{picked}, latest AS ({_LATEST_OF_GAUGES})"
    rows = "latest" if agents else "picked"
    group = _group(question, params)
    if question.aggregate is Aggregate.QUANTILE:
        text = f"WITH {picked} SELECT {group}, * FROM {rows} ORDER BY g, kind, step_ns"
        return _series(_quantiles(await duck.table(text, params), question.q), question), agents
    if question.aggregate.grows:
        text = f"WITH {picked}, {_growth(group, question)}"
    else:
        value = _SIMPLE[question.aggregate]
        text = f"WITH {picked} SELECT {group}, kind, step_ns, {value} AS value FROM {rows} GROUP BY g, kind, step_ns"
    # An ordered aggregate would take a buffer of its own for every series, so points are put in order afterwards.
    text = (
        "SELECT g, kind, list(struct_pack(at := step_ns, value := value)) AS points "
        f"FROM ({text}) WHERE value IS NOT NULL GROUP BY g, kind ORDER BY g, kind"
    )
    return _series(_in_order(await duck.table(text, params)), question), agents


async def kinds(duck: Duck, files: Sequence[Path], question: Question) -> list[str]:
    """The kinds of the rows for which the conditions hold."""
    if not files:
        return []
    params: dict[str, Any] = {"files": [str(path) for path in files]}
    conditions = _conditions(question, params)
    text = f"SELECT DISTINCT kind FROM read_parquet($files) WHERE {conditions}"
    found: list[str] = (await duck.table(text, params)).column("kind").to_pylist()
    return found


def _growth(group: str, question: Question) -> str:
    """What series grew by within their rows, and from each row to the next one.

    The latter is spread over the time between the two samples. For histograms it is the count of the first histogram of
    a row; if no histogram comes before it, the count belongs to the step of that histogram.
    """
    step, unfinished = question.step_ns, question.unfinished_ns
    rows = "SELECT * FROM picked WHERE first_time_ns IS NOT NULL AND kind <> 'gauge'"
    near = f"at_ns - before_ns <= {question.reach_ns}"
    seconds = f"{step / SECOND_NS!r}"
    if unfinished is not None:
        covered = f"nullif(max(seen_ns) - {unfinished}, 0) / {SECOND_NS / 1!r}"
        seconds = f"CASE WHEN step_ns = {unfinished} THEN {covered} ELSE {seconds} END"
    value = f"sum(value) / ({seconds})" if question.aggregate is Aggregate.RATE else "sum(value)"
    return f"""
rows AS ({rows}),
boots AS ({_BOOTS}),
within AS (
    SELECT *, first_time_ns AS at_ns, lag(last_time_ns) OVER w AS before_ns, lag("last") OVER w AS before FROM rows
    WINDOW w AS (PARTITION BY agent, labels, kind, boot ORDER BY start_ns)
),
joints AS ({_JOINTS}),
pairs AS (
    SELECT agent, labels, kind, at_ns, before_ns, CASE
        WHEN kind = 'histogram' THEN value WHEN value = before THEN 0.0 WHEN value < before THEN value
        ELSE value - before END AS value
    FROM (
        SELECT agent, labels, kind, at_ns, "first" AS value, before_ns, before FROM within WHERE before_ns IS NOT NULL
        UNION ALL SELECT agent, labels, kind, at_ns, value, before_ns, before FROM joints WHERE kind = 'counter'
    ) WHERE {near} AND value IS NOT NULL
),
grown AS (
    SELECT agent, labels, kind, step_ns, last_time_ns AS seen_ns,
        CASE WHEN kind = 'histogram' THEN count - coalesce("first", 0.0) ELSE increase END AS value FROM rows
    UNION ALL
    SELECT agent, labels, kind, step_ns, NULL, "first" FROM within
    WHERE kind = 'histogram' AND coalesce(NOT {near}, true)
    UNION ALL
    SELECT agent, labels, kind, step.step_ns, NULL,
        value * (
            (least(at_ns, step.step_ns + {step}) - greatest(before_ns, step.step_ns))::DOUBLE / (at_ns - before_ns)
        )
    FROM pairs, unnest(range(before_ns - ((before_ns % {step}) + {step}) % {step}, at_ns, {step})) AS step(step_ns)
)
SELECT {group}, kind, step_ns, {value} AS value FROM grown
WHERE step_ns >= {question.since_ns} AND step_ns < {question.until_ns} GROUP BY g, kind, step_ns
"""


def _conditions(question: Question, params: dict[str, Any]) -> str:
    params["since"], params["until"] = question.from_ns // 1000, question.to_ns // 1000
    parts = ["epoch_us(window_start) >= $since", "epoch_us(window_start) < $until"]
    parts += [_condition(matcher, number, params) for number, matcher in enumerate(question.matchers)]
    return " AND ".join(parts)


def _condition(matcher: Matcher, number: int, params: dict[str, Any]) -> str:
    name, value = f"name{number}", f"value{number}"
    column = _column(matcher.name, name, params)
    params[value] = matcher.anchored if matcher.by_pattern else matcher.value
    test = f"regexp_matches({column}, ${value})" if matcher.by_pattern else f"{column} = ${value}"
    return f"NOT {test}" if matcher.negative else test


def _group(question: Question, params: dict[str, Any]) -> str:
    """A list of texts: the values of the labels, or agent and labels of a single series."""
    if question.by is None:
        return "[agent] || flatten([[entry.key, entry.value] FOR entry IN map_entries(labels)]) AS g"
    columns = [_column(name, f"by{number}", params) for number, name in enumerate(question.by)]
    return f"[{', '.join(columns)}]::VARCHAR[] AS g"


def _column(label: str, parameter: str, params: dict[str, Any]) -> str:
    """The value of a label, empty if a series does not have it."""
    if label == AGENT:
        return "agent"
    if label == EXPORTED_AGENT:
        return f"coalesce(labels['{AGENT}'], labels['{EXPORTED_AGENT}'], '')"
    params[parameter] = label
    return f"coalesce(labels[${parameter}], '')"


def _in_order(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table of series, with their points in order of time."""
    points = table.column("points").combine_chunks()
    starts, ends = points.offsets.to_numpy()[:-1], points.offsets.to_numpy()[1:]
    flat = points.values
    times, numbers = (pc.struct_field(flat, name).to_numpy(zero_copy_only=False) for name in ("at", "value"))
    heads = table.select(["g", "kind"]).to_pylist()
    for head, start, end in zip(heads, starts.tolist(), ends.tolist(), strict=True):
        order = start + np.argsort(times[start:end])
        yield {**head, "times": times[order].tolist(), "numbers": numbers[order].tolist()}


def _series(found: Iterable[dict[str, Any]], question: Question) -> list[AnsweredSeries]:
    answered = []
    for row in found:
        group = row["g"]
        if question.by is None:
            labels = {**shown_labels(zip(group[1::2], group[2::2], strict=True)), AGENT: group[0]}
        else:
            labels = dict(zip(question.by, group, strict=True))
        answered.append(AnsweredSeries(labels, row["kind"], row["times"], row["numbers"]))
    return answered


def _quantiles(table: pa.Table, q: float) -> Iterator[dict[str, Any]]:
    """The quantile of each step, by group and kind; rows are in the order of group, kind and step."""
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
    """Puts the quantiles of groups of samples into ``values``."""
    table, group = table.take(pa.array(places)), group[places]
    count = table.column("count").to_numpy()
    low, high = (pc.fill_null(table.column(name), np.nan).to_numpy() for name in ("min", "max"))
    plain = sketch.is_plain(count, low, high)
    simple, full = np.flatnonzero(plain), np.flatnonzero(~plain)
    lists = [sketch.of_plain(count[simple], low[simple], high[simple]), chunk.sketches_of(table).take(full)]
    merged = sketch.merged(np.concatenate([group[simple], group[full]]), Lists.joined(lists), len(values))
    least, greatest = np.full(len(values), np.inf), np.full(len(values), -np.inf)
    np.fmin.at(least, group, low)
    np.fmax.at(greatest, group, high)
    offsets = merged.offsets.tolist()
    for number in np.flatnonzero(merged.lengths).tolist():
        inside = slice(offsets[number], offsets[number + 1])
        keys, counts = merged.keys[inside], merged.counts[inside]
        values[number] = sketch.quantile(keys, counts, q, float(least[number]), float(greatest[number]))


def _observed(table: pa.Table, places: Ints, group: Ints, q: float, values: Floats) -> None:
    buckets: Buckets = chunk.buckets_of(table.take(pa.array(places)))
    own = group[places]
    starts = np.flatnonzero(np.diff(own, prepend=-1))
    added = buckets.added(starts)
    for place, number in enumerate(own[starts].tolist()):
        bounds, counts = added.at(place)
        values[number] = observed_quantile(bounds, counts, q)


def observed_quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float:
    """The quantile of a histogram, by linear interpolation in its bucket. The first bucket begins at zero if its bound
    is positive; for the last bucket the answer is the last bound.
    """
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
