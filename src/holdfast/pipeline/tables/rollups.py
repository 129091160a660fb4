"""Rollups: rows of one window (``window``, such as ``1m``), complete whatever has been derived.

Where a chunk was made from all that is known of its agents and its hour, it is read; elsewhere the rows are computed
from the batches themselves, by the same functions. A condition on ``metric`` or ``agent``, a range of time, and
conditions on labels (``where``, such as ``cpu=0,mode!=idle``) leave out chunks before anything is read.

Each boot of a series has a window in one row (``query.statements`` says how boots are put together).

A query may run for longer than garbage collection leaves superseded chunks in their place. A task that misses one looks
up the current generation of the hour. Its inputs contain those of every earlier one, so it has all that is missed; of
what it says, the rows of the bucket of agents that was planned are excluded, however the hour is divided by then.
``Corrupt`` for a chunk that is current and missing, or not what was written.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.errors import Corrupt, Invalid, NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.tables.batches import UNREADABLE, Unreadable
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.records import span_of
from holdfast.pipeline.tables.table import LAST_NS, Tables, TimeSpan, Wanted, groups
from holdfast.telemetry.batches import BatchReader
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.sources import HourSources, Sources, is_usable
from holdfast.telemetry.rollup import chunk
from holdfast.telemetry.rollup.kernel import rolled
from holdfast.telemetry.rollup.layout import (
    DAY_NS,
    DEFAULT_WINDOWS,
    HOUR_NS,
    Windows,
    hour_path,
    hour_start_ns,
    window_name,
    window_of,
)
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import (
    ChunkRef,
    Generation,
    Kind,
    Table,
    bucket_of,
    derive_again,
    read_generation,
)
from holdfast.telemetry.rollup.matchers import AGENT, AgentFilter, Matcher, matchers_of, matching, may_match
from holdfast.telemetry.rollup.points import NO_EXCLUSIONS, Exclusions, telemetry_of
from holdfast.telemetry.rollup.rows import Rows, join_rows, merge_rows

PART_BYTES = 8 << 20
READS = 8
LOOKS = 4
"""How often it is looked up what is current."""
CHUNKS_AT_ONCE = 4
SCHEMA = pa.schema([each.with_nullable(True) for each in chunk.SCHEMA])


@dataclass(frozen=True)
class Pieces:
    """The chunks of one metric and window in one bucket of an hour: what is missed of one is found for all of them."""

    hour: int
    buckets: int
    bucket: int
    metric: str
    window_ns: int
    refs: tuple[ChunkRef, ...]

    @property
    def bytes(self) -> int:
        return sum(ref.size for ref in self.refs)

    @property
    def kind(self) -> Kind:
        return Kind.DAILY if self.window_ns > HOUR_NS else Kind.ROLLUP

    def now(self, generation: Generation | None) -> Iterator[ChunkRef]:
        """The chunks of a generation that have rows of these agents."""
        for unit in () if generation is None else generation.units:
            mask = min(self.buckets, generation.buckets if generation is not None else 1) - 1
            if unit.bucket & mask == self.bucket & mask:
                for ref in unit.chunks:
                    if (ref.table, ref.metric, ref.window_ns) == (Table.ROLLUP, self.metric, self.window_ns):
                        yield ref


@dataclass(frozen=True)
class Fetched:
    tables: list[pa.Table]
    moved: bool
    """They are other chunks than those that were planned: a series may have a window in several of them."""


async def fetch(store: Store, pieces: Pieces) -> Fetched:
    refs = pieces.refs
    for _ in range(LOOKS):
        try:
            tables = await map_bounded(refs, lambda ref: _table(store, ref), limit=CHUNKS_AT_ONCE)
        except NotFound:
            refs = await _resolved(store, pieces, refs)
            continue
        moved = refs != pieces.refs
        return Fetched([_of_bucket(each, pieces) for each in tables] if moved else tables, moved)
    raise Corrupt(f"{pieces.refs[0].key}: superseded again and again while it was read", remedy="read the table again")


async def _resolved(store: Store, pieces: Pieces, refs: tuple[ChunkRef, ...]) -> tuple[ChunkRef, ...]:
    """What is current instead of these."""
    try:
        found = tuple(pieces.now(await read_generation(store, pieces.kind, pieces.hour)))
    except NotFound:  # it was superseded between two looks
        return refs
    if found == refs:
        detail = f"{refs[0].key}: a chunk that is current is missing, it or one beside it"
        raise Corrupt(detail, remedy=derive_again(refs[0].key))
    if not found:
        detail = f"{pieces.refs[0].key}: removed, and the hour has no such window any more"
        raise Corrupt(detail, remedy="read the table again")
    return found


async def _table(store: Store, ref: ChunkRef) -> pa.Table:
    body = (await store.get(ref.key)).body
    ref.check(body)
    return (await blocking(chunk.read, body, key=ref.key))[0]


def _of_bucket(table: pa.Table, pieces: Pieces) -> pa.Table:
    agents = table.column(AGENT).to_pylist()
    own = {agent for agent in set(agents) if bucket_of(agent, pieces.buckets) == pieces.bucket}
    return table.take(pa.array(np.flatnonzero([agent in own for agent in agents])))


_Joint = tuple[list[Pieces], list["Raw"]]
"""Chunks and batches whose rows belong together."""


@dataclass(frozen=True)
class Raw:
    """Batches of some agents that are to be rolled up for an hour."""

    hour: int
    rows: tuple[Listed, ...]
    excluded: Exclusions = NO_EXCLUSIONS
    """What closed hours have counted of them."""


@dataclass(frozen=True)
class RollupPart:
    chunks: tuple[Pieces, ...] = ()
    raw: tuple[Raw, ...] = ()
    joins_ns: int | None = None
    """The rows are those of this window, of one bucket of agents or of all; they are to be put together, one for each
    series, and merged into the table's window."""
    span: TimeSpan = field(default_factory=TimeSpan)


@dataclass(frozen=True)
class RollupTable:
    window_ns: int
    matchers: tuple[Matcher, ...]
    span: TimeSpan
    unreadable: Unreadable
    name: str = "rollup"
    schema: pa.Schema = SCHEMA

    @property
    def daily(self) -> bool:
        return self.window_ns > HOUR_NS

    async def plan(self, store: Store, wanted: Wanted) -> list[RollupPart]:
        span = self.span.within(wanted.conditions, "", "window_start")  # by the begin of windows
        since, until = max(0, span.since_ns or 0), LAST_NS if span.until_ns is None else span.until_ns
        if self.daily:
            since, until = since // DAY_NS * DAY_NS, -(-until // DAY_NS) * DAY_NS
        if until <= since:
            return []
        allowed, wants = wanted.conditions.allows(AGENT), AgentFilter.of(self.matchers).wants
        names = wanted.conditions.values(AGENT)
        agents = AgentFilter(
            lambda agent: allowed(agent) and wants(agent), None if names is None else [str(each) for each in names]
        )
        sources = Sources(store, Limits())
        hours = await sources.hours(since, until, agents, usable=self._usable, by_day=self.daily)
        for each in sources.finished().unreadable:
            self.unreadable.handle(each, Corrupt("its bytes are missing, or no frame that can be read"))
        return self._divided(hours, span, wanted)

    def _usable(self, generation: Generation) -> bool:
        if not is_usable(generation):
            return False
        windows = {ref.window_ns for unit in generation.units for ref in unit.chunks if ref.table is Table.ROLLUP}
        needed = HOUR_NS if self.daily and generation.kind is not Kind.DAILY else self.window_ns
        if generation.is_closed and windows and needed not in windows:
            kept = ", ".join(sorted({window_name(each) for each in windows}))
            raise Invalid(
                f"{hour_path(generation.hour)} is closed and has no windows of {window_name(needed)}",
                remedy=f"read later hours, or one of its windows: {kept}",
            )
        return not windows or needed in windows

    def _divided(self, hours: Iterable[HourSources], span: TimeSpan, wanted: Wanted) -> list[RollupPart]:
        metrics = wanted.conditions.allows("metric")
        whole: _Joint = ([], [])
        days: dict[int, _Joint] = defaultdict(lambda: ([], []))
        for hour in hours:
            refs = [(unit.bucket, ref) for unit in hour.units for ref in unit.chunks if ref.table is Table.ROLLUP]
            by_hour = self.daily and not any(ref.window_ns == self.window_ns for _, ref in refs)
            window_ns = HOUR_NS if by_hour else self.window_ns
            day = days[hour_start_ns(hour.hour) // DAY_NS] if by_hour else None
            chosen_refs: dict[tuple[int, str], list[ChunkRef]] = defaultdict(list)
            for bucket, ref in refs:
                if ref.window_ns == window_ns and metrics(ref.metric) and may_match(ref.labels, self._of_labels()):
                    chosen_refs[bucket, ref.metric].append(ref)
            for (bucket, metric), own in chosen_refs.items():
                joint = day or whole
                joint[0].append(Pieces(hour.hour, hour.buckets, bucket, metric, window_ns, tuple(own)))
            for each in hour.raw:
                joint = day or whole
                joint[1].append(Raw(hour.hour, tuple(each.rows), each.excluded))
        pieces = groups(whole[0], worth=PART_BYTES, most=wanted.partitions, weight=lambda each: each.bytes)
        parts = [RollupPart(chunks=group, span=span) for group in pieces]
        parts += [RollupPart(raw=(each,), span=span) for each in whole[1]]
        parts += [RollupPart(tuple(some), tuple(raw), HOUR_NS, span) for some, raw in days.values() if some or raw]
        return parts

    def _of_labels(self) -> list[Matcher]:
        return [each for each in self.matchers if each.name != AGENT]

    async def read(self, store: Store, part: RollupPart, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        async for table in self._tables(store, part):
            kept = self._chosen(table, part.span, wanted)
            for batch in pa.Table.from_arrays(kept.columns, schema=SCHEMA).select(list(wanted.columns)).to_batches():
                if batch.num_rows:
                    yield batch

    async def _tables(self, store: Store, part: RollupPart) -> AsyncIterator[pa.Table]:
        async def one(pieces: Pieces) -> tuple[int, Fetched]:
            return pieces.window_ns, await fetch(store, pieces)

        rows: list[Rows] = []
        async for window_ns, found in stream_bounded(part.chunks, one, limit=READS):
            if found.moved and part.raw:
                raise Corrupt("chunks were superseded while they were read", remedy="read the table again")
            if part.joins_ns is None and not found.moved:
                for table in found.tables:
                    yield table
                continue
            own = [await blocking(chunk.rows_of, table, window_ns) for table in found.tables]
            if part.joins_ns is not None:
                rows += own
            else:
                for each in await blocking(_joined, own, window_ns, window_ns):
                    yield chunk.table_of(each)
        for raw in part.raw:
            rolled_up = await self._rolled(store, raw, part.joins_ns or self.window_ns)
            if part.joins_ns is not None:
                rows += rolled_up
            else:
                for each in rolled_up:
                    yield chunk.table_of(each)
        if part.joins_ns is not None:
            for each in await blocking(_joined, rows, part.joins_ns, self.window_ns):
                yield chunk.table_of(each)

    async def _rolled(self, store: Store, raw: Raw, window_ns: int) -> list[Rows]:
        batches = BatchReader(store, Limits())
        found = await batches.load_rows(raw.rows)
        for each in sorted(batches.unreadable):
            self.unreadable.handle(each, Corrupt("its bytes are missing, or no frame that can be read"))
        start_ns = hour_start_ns(raw.hour)
        telemetry = await blocking(telemetry_of, found, start_ns, start_ns + HOUR_NS, raw.excluded)
        steps = _steps(window_ns)
        made = await blocking(lambda: list(rolled(telemetry, steps)))
        return [each for each in made if each.window_ns == window_ns]

    def _chosen(self, table: pa.Table, span: TimeSpan, wanted: Wanted) -> pa.Table:
        starts = table.column("window_start").cast(pa.int64())
        keep = pa.chunked_array([pa.repeat(pa.scalar(True), table.num_rows)])
        if span.since_ns is not None:
            keep = pc.and_(keep, pc.greater_equal(starts, -(-span.since_ns // 1000)))
        if span.until_ns is not None:
            keep = pc.and_(keep, pc.less(starts, -(-span.until_ns // 1000)))
        for name in ("metric", AGENT):
            values = wanted.conditions.values(name)
            if values is not None:
                texts = pa.array([each for each in values if isinstance(each, str)], pa.string())
                keep = pc.and_(keep, pc.is_in(table.column(name), texts))
        kept = table.filter(keep)
        if self.matchers and kept.num_rows:
            labels = [dict(each) for each in kept.column("labels").to_pylist()]
            fits = matching(kept.column(AGENT).to_pylist(), labels, self.matchers)
            kept = kept.take(pa.array(np.flatnonzero(fits)))
        return kept


def _steps(window_ns: int) -> Sequence[int]:
    """The windows through which rows are merged, as they are when they are published: sums come out the same."""
    standard = Windows.of(DEFAULT_WINDOWS).hourly
    return [each for each in standard if each <= window_ns] if window_ns in standard else [window_ns]


def _joined(rows: Sequence[Rows], joins_ns: int, window_ns: int) -> list[Rows]:
    plain, histograms = ([each for each in rows if (each.buckets is None) == flat] for flat in (True, False))
    once = [join_rows(each, joins_ns) for each in (plain, histograms) if any(map(len, each))]
    return once if joins_ns == window_ns else [merge_rows(each, window_ns) for each in once]


async def _rollup(store: Store, given: Given) -> RollupTable:
    window_ns = window_of(given.text("window") or "1m")
    Windows.of([*DEFAULT_WINDOWS, given.text("window") or "1m"])
    return RollupTable(window_ns, matchers_of(given.texts("where")), span_of(given), Unreadable.of(given))


TABLES: Tables = {"rollup": (_rollup, ("window", "where", "since", "until", UNREADABLE))}
