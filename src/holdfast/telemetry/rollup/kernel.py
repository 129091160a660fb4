"""Computes the chunks of a unit from its records. Pure: a task reads the batches before, and writes the objects after.

One pass over the batches gives everything that an hour has: rows of every window up to an hour, the series, and the
words of its logs. Batches come share by share, each share with whole agents, so no series is in two shares; memory
holds the records of one share and the rows of all. The result does not depend on how batches are divided into shares.

Every name follows from the unit: deriving it again creates what is there already.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from holdfast.telemetry.frame import Batch
from holdfast.telemetry.rollup import chunk, index, layout, rollup
from holdfast.telemetry.rollup.counted import NOTHING, Taken
from holdfast.telemetry.rollup.extract import telemetry_of
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import ChunkRef, Kind, Ranges, Table, Unit, UnitManifest, ranges_of
from holdfast.telemetry.rollup.matchers import label_values
from holdfast.telemetry.rollup.points import HistogramPoints, Points, Telemetry
from holdfast.telemetry.rollup.rollup import Rows

VERSION = 3
"""The version of the derivation: it grows when the same batches give other rows."""


@dataclass(frozen=True, slots=True)
class Chunk:
    ref: ChunkRef
    body: bytes


def version_of(kind: Kind, windows: Windows) -> str:
    return windows.version(str(kind), VERSION)


def is_current(version: str) -> bool:
    """Whether rows of this version are what the same batches give now, in whatever windows."""
    return version.partition(" ")[0] in {f"{kind}.{VERSION}" for kind in Kind}


def rolled(points: Points, histograms: HistogramPoints, windows: Sequence[int]) -> Iterator[Rows]:
    """Rows of each window, the finest first; gauges and counters, then histograms."""
    for finest in (rollup.from_points(points, windows[0]), rollup.from_histograms(histograms, windows[0])):
        rows = finest
        if not len(rows):
            continue
        yield rows
        for window_ns in windows[1:]:
            rows = rollup.merge(rows, window_ns)
            yield rows


@dataclass(slots=True)
class Derived:
    """One unit of an hour while it is derived."""

    unit: Unit
    windows: Windows
    taken: Taken = NOTHING
    records: int = 0
    """Records that are counted."""
    repeated: int = 0
    """Records that are left out, because another batch or another hour counts their number."""
    doubtful: int = 0
    """Left-out records whose content differs from the counted one."""
    numbers: dict[tuple[str, str], Ranges] = field(default_factory=dict)
    _rows: dict[tuple[int, bool], list[Rows]] = field(default_factory=dict)
    _series: list[pa.Table] = field(default_factory=list)
    _words: list[pa.Table] = field(default_factory=list)

    def add(self, batches: Iterable[Batch]) -> None:
        """A share: all batches of some agents."""
        start_ns = layout.hour_start_ns(self.unit.hour)
        telemetry = telemetry_of(batches, start_ns, start_ns + layout.HOUR_NS, self.taken)
        self._count(telemetry)
        for rows in rolled(telemetry.points, telemetry.histograms, self.windows.hourly):
            self._rows.setdefault((rows.window_ns, rows.buckets is not None), []).append(rows)
        self._series.append(index.series_table(telemetry))
        self._words.append(index.word_table(telemetry))

    def _count(self, telemetry: Telemetry) -> None:
        self.records += telemetry.records
        self.repeated += telemetry.repeated
        self.doubtful += telemetry.doubtful
        for source, pieces in telemetry.seqs.items():
            if ranges := ranges_of(np.concatenate([np.zeros(0, np.int64), *pieces])):
                self.numbers[source] = ranges

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of every metric and window, and of the index. Can be called once."""
        while self._rows:
            (window_ns, _), parts = self._rows.popitem()
            yield from chunks_of(self.unit, parts[0] if len(parts) == 1 else rollup.joined(parts, window_ns))
        for table, parts in ((Table.SERIES, self._series), (Table.WORDS, self._words)):
            found = index.joined(table, parts)
            if found.num_rows:
                body = index.encode(table, found)
                key = layout.index_key(self.unit.hour, self.unit.chunk_id(table))
                rows = found.num_rows
                yield Chunk(ChunkRef(table, key, rows, len(body), rows, crc32=zlib.crc32(body)), body)

    def manifest(self, chunks: Iterable[ChunkRef], unreadable: Iterable[str] = ()) -> UnitManifest:
        """The record of what the unit gave, whatever the order in which its chunks were written."""
        counts = (self.records, self.repeated, self.doubtful)
        return UnitManifest(self.unit, in_order(chunks), *counts, tuple(sorted(unreadable)), self.numbers)


def in_order(chunks: Iterable[ChunkRef]) -> tuple[ChunkRef, ...]:
    return tuple(sorted(chunks, key=lambda ref: ref.key))


def daily_chunks(unit: Unit, hours: Iterable[Rows], windows: Windows) -> Iterator[Chunk]:
    """Chunks of every window above an hour, from the rows of the largest window of the day's hours; of any metrics."""
    parts = list(hours)
    for chosen in ([each for each in parts if each.buckets is None], [each for each in parts if each.buckets]):
        rows = rollup.joined(chosen, windows.hourly[-1])
        for window_ns in windows.daily:
            rows = rollup.merge(rows, window_ns)
            yield from chunks_of(unit, rows)


def chunks_of(unit: Unit, rows: Rows) -> Iterator[Chunk]:
    part = "histograms" if rows.buckets is not None else "samples"
    for metric, own in chunk.by_metric(rows):
        chunk_id = unit.chunk_id(Table.ROLLUP, metric, rows.window_ns, part)
        key = layout.rollup_key(rows.window_ns, unit.hour, metric, chunk_id)
        body = chunk.encode(own)
        size, values = len(own.series), label_values(own.series)
        ref = ChunkRef(Table.ROLLUP, key, len(own), len(body), size, metric, rows.window_ns, values, zlib.crc32(body))
        yield Chunk(ref, body)
