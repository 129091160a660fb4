"""Chunks of rollups as a task reads them: those that were current when the query was planned, or what took their place.

A query may run for longer than garbage collection leaves superseded chunks in their place. A task that misses one looks
up the current generation of the hour. Its inputs contain those of every earlier one, so it has all that is missed; of
what it says, the rows of the bucket of agents that was planned are taken, however the hour is divided by then.

Errors: ``Corrupt`` for a chunk that is current and missing, or not what was written.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.telemetry.rollup import chunk
from holdfast.telemetry.rollup.layout import HOUR_NS
from holdfast.telemetry.rollup.manifest import MAKE_ANEW, ChunkRef, Generation, Kind, Table, bucket_of, read_generation
from holdfast.telemetry.rollup.matchers import AGENT

LOOKS = 4
"""How often it is looked up what is current."""
READS = 4


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
        return sum(ref.bytes for ref in self.refs)

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
            tables = await map_bounded(refs, lambda ref: _table(store, ref), limit=READS)
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
        raise Corrupt(f"{refs[0].key}: a chunk that is current is missing, it or one beside it", remedy=MAKE_ANEW)
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
