"""Questions about metrics: ``hf.metrics()``. Answers come from rollups where these cover all known batches, and from
the batches elsewhere; so they are complete without a pipeline, and the same with one.

Times are nanoseconds since 1970, a ``datetime``, or text: ``2h`` for so long ago, or ISO 8601.

Errors: ``Invalid`` for a question that makes no sense, ``NotFound`` for a metric that is not there, with names like
it, ``Corrupt`` for a chunk that cannot be read. Batches that cannot be read are counted in ``read.unreadable``.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import gcd, lcm
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.answer import answer, kinds
from holdfast.telemetry.query.found import Answer, Listing
from holdfast.telemetry.query.fresh import Batches, Memory
from holdfast.telemetry.query.known import Hour, Looked, is_ours, resolved
from holdfast.telemetry.query.question import Moment, Question, ask, moment_ns, span_ns, wants_bucket
from holdfast.telemetry.query.reading import Reading, reading
from holdfast.telemetry.rollup import chunk, index, rollup
from holdfast.telemetry.rollup.layout import HOUR_NS, window_name
from holdfast.telemetry.rollup.manifest import ChunkRef, Current, Generation, Kind, Table
from holdfast.telemetry.rollup.matchers import AGENT, EXPORTED_AGENT, Matcher, Operator, may_match, of_glob
from holdfast.telemetry.rollup.points import HistogramPoints, Points, SeriesKey, Telemetry

LONGEST_GUESS, MOST_GUESSES = 100, 2_000
"""Characters that are compared to find similar names: the time grows with the square of their number."""
_Found = list[dict[str, Any]]
Matching = Mapping[str, str] | Iterable[str | Matcher] | None

# Statements over the index of series. Its tables are per hour: a series counts if its samples in an hour reach into the
# range.
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


class Metrics:
    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        limits: Limits,
        *,
        memory_limit: str = "256MB",
    ) -> None:
        """``limits`` are those of frames, ``memory_limit`` is DuckDB's."""
        self._store = store
        self._ambient = ambient
        self._limits = limits
        self._memory_limit = memory_limit
        self._memory = Memory()

    async def query(
        self,
        metric: str,
        *,
        since: Moment = "1h",
        until: Moment | None = None,
        step: int | str | None = None,
        aggregate: str = "avg",
        where: Matching = None,
        agent: str | None = None,
        by: str | Iterable[str] | None = None,
        q: float | None = None,
    ) -> Answer:
        """The metric's values, step by step. ``by`` puts series together: by labels, or all into one with ``[]``."""
        now = self._ambient.clock.wall_ns()
        question = ask(
            metric,
            moment_ns(since, now),
            now if until is None else moment_ns(until, now),
            None if step is None else span_ns(step),
            aggregate,
            matchers_of(where, agent),
            by,
            q,
            now,
        )

        async def attempt(asked: Question) -> Answer:
            batches = self._batches()
            async with reading(self._store, batches, self._memory_limit) as workshop:
                return await _Asked(asked, workshop, Looked(self._store, batches)).answer()

        try:
            return await resolved(lambda: attempt(question))
        except _TooFine as error:
            wider = question.widened(error.window_ns)
            kept = window_name(error.window_ns)
        answer = await resolved(lambda: attempt(wider))
        answer.read.warnings.append(
            f"steps of {window_name(question.step_ns)} were widened to {window_name(wider.step_ns)}: batches of some "
            f"hours have expired, and the smallest window that is kept of them is {kept}"
        )
        return answer

    async def list(
        self, pattern: str = "*", *, since: Moment = "1h", until: Moment | None = None, agent: str | None = None
    ) -> Listing:
        """The metrics that have samples in the range, by name; ``pattern`` is one as of the shell."""
        rows, workshop = await self._series(METRICS, {"pattern": of_glob(pattern)}, since, until, agent)
        return Listing(rows, workshop.finished())

    async def labels(
        self, metric: str, *, since: Moment = "1h", until: Moment | None = None, agent: str | None = None
    ) -> Listing:
        """The labels of a metric, with their values and how many series have each."""
        rows, workshop = await self._series(LABELS, {"metric": metric}, since, until, agent)
        if not rows:
            known, _ = await self._series(METRICS, {"pattern": of_glob("*")}, since, until, agent)
            names = {row["metric"] for row in known}
            raise await unknown(metric, names, len(workshop.finished().unreadable), matchers=matchers_of(None, agent))
        return Listing(rows, workshop.finished())

    def _batches(self) -> Batches:
        return Batches(self._store, self._limits, self._memory)

    async def _series(
        self, text: str, params: dict[str, Any], since: Moment, until: Moment | None, agent: str | None
    ) -> tuple[_Found, Reading]:
        """Rows of a statement over the series of some hours."""
        return await resolved(lambda: self._series_once(text, params, since, until, agent))

    async def _series_once(
        self, text: str, params: dict[str, Any], since: Moment, until: Moment | None, agent: str | None
    ) -> tuple[_Found, Reading]:
        matchers = matchers_of(None, agent)
        now = self._ambient.clock.wall_ns()
        since_ns, until_ns = moment_ns(since, now), now if until is None else moment_ns(until, now)
        if until_ns <= since_ns:
            raise Invalid("the range ends before it begins", remedy="give a time for until that is after since")
        batches = self._batches()
        async with reading(self._store, batches, self._memory_limit) as workshop:
            looked = Looked(self._store, batches)
            hours = await looked.hours(
                Kind.ROLLUP,
                since_ns,
                until_ns,
                wants_agent=agent_test(matchers),
                wants_bucket=lambda bucket, buckets: wants_bucket(matchers, bucket, buckets),
            )
            refs = [ref for hour in hours for unit in hour.units for ref in unit.chunks if ref.table is Table.SERIES]
            files = await workshop.fetch(refs)
            for hour in hours:
                for place, rows in enumerate(hour.raw):
                    found = await workshop.telemetry(hour.hour, rows)
                    files.append(await workshop.keep(index.series_table(found), f"series-{hour.hour}-{place}"))
            workshop.read.hours = len(hours)
            workshop.lacks(hours)
            if not files:
                return [], workshop
            paths = [str(path) for path in files]
            asked = {"files": paths, "since": since_ns, "until": until_ns, "agent": agent, **params}
            return (await workshop.duck.table(text, asked)).to_pylist(), workshop


class _TooFine(Exception):
    """The numbers of a closed hour are known in windows of this length at least, which does not divide the step."""

    def __init__(self, window_ns: int) -> None:
        super().__init__()
        self.window_ns = window_ns


class _Asked:
    """One question while it is answered."""

    def __init__(self, question: Question, workshop: Reading, looked: Looked) -> None:
        self._question = question
        self._workshop = workshop
        self._looked = looked
        self._names: set[str] = set()
        """Metrics that have samples in what was read."""
        self._labels: set[str] | None = {AGENT, EXPORTED_AGENT}
        """Of the metric; None if a chunk does not list its labels."""
        self._coarse_ns = 1
        """A multiple of this is a step that every closed hour can answer which was rejected for its windows."""

    async def answer(self) -> Answer:
        question = self._question
        hours = await self._looked.hours(
            Kind.ROLLUP,
            question.from_ns,
            question.to_ns,
            wants_agent=agent_test(question.matchers),
            wants_bucket=question.wants_bucket,
            usable=self._usable,
            by_day=question.step_ns % HOUR_NS == 0 and question.step_ns > HOUR_NS,
        )
        if self._coarse_ns > 1:
            raise _TooFine(self._coarse_ns)
        files = await self._workshop.fetch([ref for hour in hours for unit in hour.units for ref in self._refs(unit)])
        for hour in hours:
            files += await self._raw(hour)
        self._workshop.read.hours = len(hours)
        self._workshop.lacks(hours)
        if files:  # chunks of an older version have fewer columns
            files.append(await self._workshop.keep(chunk.SCHEMA.empty_table(), "columns"))
        series, agents = await answer(self._workshop.duck, files, question)
        if not series:
            await self._check_question(files)
        if unknown_labels := self._unknown_labels():
            self._workshop.read.warnings.append(unknown_labels)
        if agents:
            self._workshop.read.warnings.append(
                f"several senders use one agent id at the same time: {', '.join(agents)}. Their counters are added up, "
                "and of gauges the one that began last counts. Give each sender an id of its own"
            )
        return Answer(question, series, self._workshop.finished())

    def _usable(self, generation: Generation) -> bool:
        """Whether its rows are those of this version, if they can be made anew, and its windows divide the step."""
        if not is_ours(generation):
            return False
        of_units = ({ref.window_ns for ref in unit.chunks if ref.table is Table.ROLLUP} for unit in generation.units)
        coarse = [min(windows) for windows in of_units if windows and self._question.window(windows) is None]
        if generation.is_closed:
            self._coarse_ns = lcm(self._coarse_ns, *coarse)
        return not coarse

    def _refs(self, unit: Current) -> list[ChunkRef]:
        """The chunks of the metric, of the largest window that divides the step."""
        rolled = [ref for ref in unit.chunks if ref.table is Table.ROLLUP]
        self._names |= {ref.metric for ref in rolled}
        window = self._question.window({ref.window_ns for ref in rolled})
        own = [ref for ref in rolled if ref.metric == self._question.metric and ref.window_ns == window]
        for ref in own:
            self._learn_labels(None if ref.labels is None else [name for name, _ in ref.labels])
        return [ref for ref in own if may_match(ref.labels, self._question.matchers)]

    def _learn_labels(self, names: Iterable[str] | None) -> None:
        self._labels = None if names is None or self._labels is None else self._labels.union(names)

    def _unknown_labels(self) -> str | None:
        """A warning of labels in the question that no series has, which are probably misspelt."""
        if self._labels is None:
            return None
        asked = [*(each.name for each in self._question.matchers), *(self._question.by or ())]
        missing = [name for name in dict.fromkeys(asked) if name not in self._labels]
        if not missing:
            return None
        known = ", ".join(sorted(self._labels - {EXPORTED_AGENT}))
        return f"no series of {self._question.metric} has the label {', '.join(missing)}; its labels are {known}"

    async def _raw(self, hour: Hour) -> list[Path]:
        """Rows made from batches that no chunk covers."""
        window_ns = gcd(self._question.step_ns, HOUR_NS)
        files = []
        for place, batches in enumerate(hour.raw):
            found = await self._workshop.telemetry(hour.hour, batches)
            points, histograms = _only(self._question.metric, found, self._names)
            self._learn_labels({name for key in (*points.series, *histograms.series) for name, _ in key.labels})
            for rows in (rollup.from_points(points, window_ns), rollup.from_histograms(histograms, window_ns)):
                if len(rows):
                    name = f"rows-{hour.hour}-{place}-{'samples' if rows.buckets is None else 'histograms'}"
                    files.append(await self._workshop.keep(chunk.table_of(rows), name))
        return files

    async def _check_question(self, files: Sequence[Path]) -> None:
        """Raise an error if an empty answer is the question's mistake.

        Only batches of the wanted agents are read, so with a condition on the agent nothing is known of other agents,
        and a metric is there only if rows fulfil the conditions."""
        question = self._question
        found = await kinds(self._workshop.duck, files, question)
        of_agents = any(each.name == AGENT for each in question.matchers)
        if not (found if of_agents else files or question.metric in self._names):
            read = self._workshop.finished()
            matchers = question.matchers if of_agents else ()
            raise await unknown(question.metric, self._names, len(read.unreadable), len(read.expired), matchers)
        if question.aggregate.grows and found == ["gauge"]:
            raise Invalid(
                f"{question.metric} is a gauge: it goes up and down, and has no {question.aggregate}",
                remedy="ask for avg, min, max or last",
            )


def _only(metric: str, found: Telemetry, names: set[str]) -> tuple[Points, HistogramPoints]:
    """The records of one metric; the names of all metrics are added to ``names``."""
    points, histograms = found.points, found.histograms
    names |= {key.name for key in points.series} | {key.name for key in histograms.series}
    low, high = _span(metric, points.series)
    at = np.flatnonzero((points.series_id >= low) & (points.series_id < high))
    some = Points(points.series[low:high], points.series_id[at] - low, points.time_ns[at], points.value[at])
    low, high = _span(metric, histograms.series)
    at = np.flatnonzero((histograms.series_id >= low) & (histograms.series_id < high))
    series = histograms.series[low:high]
    of, times = histograms.series_id[at] - low, histograms.time_ns[at]
    return some, HistogramPoints(series, of, times, histograms.sum[at], histograms.buckets.take(at))


def _span(metric: str, series: Sequence[SeriesKey]) -> tuple[int, int]:
    """The places of the series of a metric: first, and one after the last."""
    return bisect_left(series, metric, key=lambda key: key.name), bisect_right(series, metric, key=lambda key: key.name)


def matchers_of(where: Matching, agent: str | None = None) -> tuple[Matcher, ...]:
    """Conditions from a mapping of labels, from texts such as ``cpu=0``, or as they are; and the agent's."""
    found: list[Matcher] = []
    if isinstance(where, Mapping):
        found = [Matcher(name, Operator.IS, value) for name, value in where.items()]
    elif isinstance(where, str):
        found = [Matcher.parse(where)]
    elif where is not None:
        found = [each if isinstance(each, Matcher) else Matcher.parse(each) for each in where]
    if agent is not None:
        found.append(Matcher(AGENT, Operator.IS, agent))
    return tuple(found)


def agent_test(matchers: Iterable[Matcher]) -> Callable[[str], bool]:
    """Whether the batches of an agent can fulfil the conditions."""
    conditions = [each for each in matchers if each.name == AGENT]
    return lambda agent: all(bool(each.fits([agent])[0]) for each in conditions)


async def unknown(
    metric: str, names: set[str], unreadable: int = 0, expired: int = 0, matchers: Iterable[Matcher] = ()
) -> NotFound:
    near = await blocking(get_close_matches, metric[:LONGEST_GUESS], sorted(names - {metric})[:MOST_GUESSES], 3)
    series = f"metric {metric!r}" + "".join(f"{', ' if at else ' with '}{each}" for at, each in enumerate(matchers))
    if expired and not near:
        return NotFound(
            f"no {series} has samples in this range that are still kept: the bytes of {expired} batches have expired",
            remedy="holdfast metrics list shows what there is",
        )
    if unreadable and not near:
        return NotFound(
            f"no {series} has samples in this range, as far as can be read: batches that cannot be are {unreadable}",
            remedy="holdfast pipeline run reconcile --full, then holdfast pipeline status, say what is wrong with them",
        )
    remedy = f"did you mean {' or '.join(near)}?" if near else "holdfast metrics list shows what there is"
    return NotFound(f"no {series} has samples in this range", remedy=remedy)
