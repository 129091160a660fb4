"""Questions about metrics: ``hf.metrics()``. Answers come from rollups where these cover all accepted batches, and from
the batches elsewhere; so they are complete without a pipeline, and the same with one.

Times are nanoseconds since 1970, a ``datetime``, or text: ``2h`` for so long ago, or ISO 8601.

Errors: ``Invalid`` for a question that makes no sense; ``NotFound`` for a metric without samples, with similar names;
``Corrupt`` for a chunk that cannot be read. Batches that cannot be read are named in ``read.unreadable``.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from math import gcd, lcm
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.sql.duck import MissingFile
from holdfast.sql.session import Session
from holdfast.telemetry.batches import BatchCache
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.answer import Answer, Listing, Read
from holdfast.telemetry.query.question import Moment, Question, ask, range_ns, span_ns
from holdfast.telemetry.query.sources import HourSources, Sources, Superseded, is_usable, retry_superseded
from holdfast.telemetry.query.statements import LABELS, METRICS, answer, kinds
from holdfast.telemetry.rollup import chunk, index
from holdfast.telemetry.rollup.layout import HOUR_NS, window_name
from holdfast.telemetry.rollup.manifest import ChunkRef, Generation, Table, UnitRef
from holdfast.telemetry.rollup.matchers import (
    AGENT,
    EXPORTED_AGENT,
    AgentFilter,
    Conditions,
    Matcher,
    matchers_of,
    may_match,
    of_glob,
)
from holdfast.telemetry.rollup.rows import rows_of_points

READS = 16
MAX_GUESS, MAX_GUESSES = 100, 2_000
"""Characters of names, and names, that are compared to find similar ones: the time grows with the square of both."""


@dataclass(slots=True)
class Workspace:
    """The files of one answer, in a temporary directory that a DuckDB reads."""

    session: Session
    sources: Sources

    async def fetch(self, refs: Sequence[ChunkRef]) -> list[Path]:
        """The chunks as files."""
        read = self.sources.read
        numbers = range(read.chunks, read.chunks + len(refs))
        read.chunks += len(refs)

        async def one(pair: tuple[int, ChunkRef]) -> Path:
            number, ref = pair
            try:
                path = await self.session.files.place(ref.key, f"chunk-{number}.parquet", ref.size)
            except MissingFile as error:
                raise Superseded(ref.key) from error
            ref.check(await blocking(path.read_bytes))
            return path

        return await map_bounded(zip(numbers, refs, strict=True), one, limit=READS)

    async def write(self, table: pa.Table, name: str) -> Path:
        """A table as a file beside those of chunks."""
        path = self.session.duck.folder / f"{name}.parquet"
        await blocking(lambda: path.write_bytes(chunk.to_parquet(table)))
        return path


class Metrics:
    def __init__(self, store: Store, ambient: Ambient, limits: Limits, *, memory_limit: str = "256MB") -> None:
        """``limits`` are those of frames, ``memory_limit`` is DuckDB's."""
        self._store = store
        self._ambient = ambient
        self._limits = limits
        self._memory_limit = memory_limit
        self._cache = BatchCache()

    async def query(
        self,
        metric: str,
        *,
        since: Moment = "1h",
        until: Moment | None = None,
        step: int | str | None = None,
        aggregate: str = "avg",
        where: Conditions = None,
        agent: str | None = None,
        by: str | Iterable[str] | None = None,
        q: float | None = None,
    ) -> Answer:
        """The metric's values, step by step. ``by`` groups series: by labels, or all into one with ``[]``."""
        now = self._ambient.clock.wall_ns()
        since_ns, until_ns = range_ns(since, until, now)
        step_ns = None if step is None else span_ns(step)
        question = ask(metric, since_ns, until_ns, step_ns, aggregate, matchers_of(where, agent), by, q, now)

        async def attempt() -> Answer:
            async with self._workspace() as workspace:
                return await _Answering(question, workspace).answer()

        return await retry_superseded(attempt)

    async def list(
        self, pattern: str = "*", *, since: Moment = "1h", until: Moment | None = None, agent: str | None = None
    ) -> Listing:
        """The metrics that have samples in the range, by name. ``pattern`` is one of the shell."""
        return await self._series(METRICS, {"pattern": of_glob(pattern)}, since, until, agent)

    async def labels(
        self, metric: str, *, since: Moment = "1h", until: Moment | None = None, agent: str | None = None
    ) -> Listing:
        """The labels of a metric, with their values and how many series have each."""
        found = await self._series(LABELS, {"metric": metric}, since, until, agent)
        if not found.rows:
            others = await self.list(since=since, until=until, agent=agent)
            raise await _not_found(metric, {row["metric"] for row in others.rows}, found.read, matchers_of(None, agent))
        return found

    async def _series(
        self, statement: str, params: dict[str, Any], since: Moment, until: Moment | None, agent: str | None
    ) -> Listing:
        """The rows of a statement over the index of series."""
        since_ns, until_ns = range_ns(since, until, self._ambient.clock.wall_ns())

        async def attempt() -> Listing:
            async with self._workspace() as workspace:
                sources = workspace.sources
                hours = await sources.hours(since_ns, until_ns, AgentFilter.of(matchers_of(None, agent)))
                units = [unit for hour in hours for unit in hour.units]
                files = await workspace.fetch(
                    [ref for unit in units for ref in unit.chunks if ref.table is Table.SERIES]
                )
                for hour in hours:
                    for raw in hour.raw:
                        table = index.series_table(await sources.telemetry(hour.hour, raw))
                        files.append(await workspace.write(table, f"series-{hour.hour}-{raw.bucket}"))
                rows = []
                if files:
                    asked = {"files": [str(path) for path in files], "since": since_ns, "until": until_ns}
                    found = await workspace.session.duck.table(statement, {**asked, "agent": agent, **params})
                    rows = found.to_pylist()
                return Listing(rows, sources.finished())

        return await retry_superseded(attempt)

    @asynccontextmanager
    async def _workspace(self) -> AsyncIterator[Workspace]:
        session = await Session.open(self._store, self._memory_limit)
        try:
            yield Workspace(session, Sources(self._store, self._limits, self._cache))
        finally:
            await session.close()


class _Answering:
    """One question while it is answered."""

    def __init__(self, question: Question, workspace: Workspace) -> None:
        self._question = question
        self._workspace = workspace
        self._sources = workspace.sources
        self._names: set[str] = set()
        """Metrics that have samples in what was read."""
        self._labels: set[str] | None = {AGENT, EXPORTED_AGENT}
        """Labels of the metric; None if a chunk does not list its labels."""

    async def answer(self) -> Answer:
        hours = await self._hours()
        units = [unit for hour in hours for unit in hour.units]
        files = await self._workspace.fetch([ref for unit in units for ref in self._refs(unit)])
        for hour in hours:
            files += await self._raw(hour)
        duck, warnings = self._workspace.session.duck, self._sources.read.warnings
        series, agents = await answer(duck, files, self._question)
        if not series:
            await self._check_question(files, await kinds(duck, files, self._question))
        self._warn_of_unknown_labels()
        if agents:
            warnings.append(
                f"several senders use one agent id at the same time: {', '.join(agents)}. Their counters are added up, "
                "and of gauges the one that began last counts. Give each sender an id of its own"
            )
        return Answer(self._question, series, self._sources.finished())

    async def _hours(self) -> list[HourSources]:
        """What answers for each hour. If only larger windows are kept of a closed hour, the steps are widened."""
        asked, kept_ns, needed_ns = self._question, 0, 1
        hours: list[HourSources] = []

        def usable(generation: Generation) -> bool:
            nonlocal needed_ns
            windows = ({ref.window_ns for ref in unit.chunks if ref.window_ns} for unit in generation.units)
            larger = [min(each) for each in windows if each and self._question.window(each) is None]
            if generation.is_closed:
                needed_ns = lcm(needed_ns, *larger)
            return is_usable(generation) and not larger

        while needed_ns != kept_ns:
            kept_ns = needed_ns
            self._question = question = asked.widened(kept_ns)
            by_day = question.step_ns % HOUR_NS == 0 and question.step_ns > HOUR_NS
            agents = AgentFilter.of(question.matchers)
            hours = await self._sources.hours(question.from_ns, question.to_ns, agents, usable=usable, by_day=by_day)
        if self._question.step_ns > asked.step_ns:
            self._sources.read.warnings.append(
                f"steps of {window_name(asked.step_ns)} were widened to {window_name(self._question.step_ns)}: batches "
                f"of some hours have expired, and the smallest window that is kept of them is {window_name(kept_ns)}"
            )
        return hours

    def _refs(self, unit: UnitRef) -> list[ChunkRef]:
        """The chunks of the metric, of the largest window that divides the step."""
        rolled = [ref for ref in unit.chunks if ref.table is Table.ROLLUP]
        self._names |= {ref.metric for ref in rolled}
        window = self._question.window({ref.window_ns for ref in rolled})
        own = [ref for ref in rolled if ref.metric == self._question.metric and ref.window_ns == window]
        for ref in own:
            self._add_labels(ref.labels)
        return [ref for ref in own if may_match(ref.labels, self._question.matchers)]

    async def _raw(self, hour: HourSources) -> list[Path]:
        """Rows made from batches that no chunk covers."""
        window_ns = gcd(self._question.step_ns, HOUR_NS)
        files = []
        for raw in hour.raw:
            found = await self._sources.telemetry(hour.hour, raw)
            for part, points in (("samples", found.samples), ("histograms", found.histograms)):
                self._names |= {key.name for key in points.series}
                own = points.of_metric(self._question.metric)
                self._add_labels({name for key in own.series for name, _ in key.labels})
                if len(own):
                    table = chunk.table_of(rows_of_points(own, window_ns))
                    files.append(await self._workspace.write(table, f"rows-{hour.hour}-{raw.bucket}-{part}"))
        return files

    def _add_labels(self, names: Iterable[str] | None) -> None:
        self._labels = None if names is None or self._labels is None else self._labels.union(names)

    def _warn_of_unknown_labels(self) -> None:
        """A label in the question that no series has is probably misspelt."""
        asked = [*(each.name for each in self._question.matchers), *(self._question.by or ())]
        missing = [name for name in dict.fromkeys(asked) if self._labels is not None and name not in self._labels]
        if missing and self._labels is not None:
            names = ", ".join(sorted(self._labels - {EXPORTED_AGENT}))
            self._sources.read.warnings.append(
                f"no series of {self._question.metric} has the label {', '.join(missing)}; its labels are {names}"
            )

    async def _check_question(self, files: Sequence[Path], found: Sequence[str]) -> None:
        """Raise an error if an empty answer is the question's mistake. ``found`` are the kinds of matching series.

        Only batches of the wanted agents are read, so with a condition on the agent nothing is known of other agents,
        and a metric exists only if rows fulfil the conditions.
        """
        question = self._question
        of_agents = any(each.name == AGENT for each in question.matchers)
        if not (found if of_agents else files or question.metric in self._names):
            matchers = question.matchers if of_agents else ()
            raise await _not_found(question.metric, self._names, self._sources.finished(), matchers)
        if question.aggregate.grows and found == ["gauge"]:
            raise Invalid(
                f"{question.metric} is a gauge: it goes up and down, and has no {question.aggregate}",
                remedy="ask for avg, min, max or last",
            )


async def _not_found(metric: str, names: set[str], read: Read, matchers: Iterable[Matcher]) -> NotFound:
    similar = await blocking(get_close_matches, metric[:MAX_GUESS], sorted(names - {metric})[:MAX_GUESSES], 3)
    conditions = ", ".join(map(str, matchers))
    message = f"no metric {metric!r}{f' with {conditions}' if conditions else ''} has samples in this range"
    remedy = "holdfast metrics list shows what there is"
    if similar:
        remedy = f"did you mean {' or '.join(similar)}?"
    elif read.expired:
        message += f"; the bytes of {len(read.expired)} batches have expired"
    elif read.unreadable:
        message += f"; {len(read.unreadable)} batches could not be read"
        remedy = "holdfast pipeline run reconcile --full, then holdfast pipeline status, say what is wrong with them"
    return NotFound(message, remedy=remedy)
