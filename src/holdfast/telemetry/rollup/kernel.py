"""Computes the chunks of a unit from its records. Pure: the caller reads the batches and writes the objects.

One pass over the batches computes everything that is derived for an hour: rows of every window up to an hour, the
series, and the words of its logs. Batches are added in shares of whole agents, so no series is in two shares; memory
holds the records of one share and the rows of all. The result does not depend on how batches are divided into shares.

Every name follows from the unit, so deriving it again creates objects that exist already.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.telemetry.frame import Batch
from holdfast.telemetry.rollup import chunk, index, layout
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import ChunkRef, Kind, Ranges, Table, Unit, UnitManifest, ranges_of
from holdfast.telemetry.rollup.matchers import label_values
from holdfast.telemetry.rollup.points import NO_EXCLUSIONS, Exclusions, Telemetry, telemetry_of
from holdfast.telemetry.rollup.rows import Rows, join_rows, merge_rows, rows_of_points

VERSION = 3
"""The version of the derivation; increased when the same batches give other rows."""


@dataclass(frozen=True, slots=True)
class Chunk:
    ref: ChunkRef
    body: bytes


def version_of(kind: Kind, windows: Windows) -> str:
    return windows.version(str(kind), VERSION)


def is_current(version: str) -> bool:
    """Whether this code gives the same rows for the same batches, in any windows."""
    return version.partition(" ")[0] in {f"{kind}.{VERSION}" for kind in Kind}


def rolled(telemetry: Telemetry, windows: Sequence[int]) -> Iterator[Rows]:
    """Rows of each window, the finest first; gauges and counters, then histograms."""
    for points in (telemetry.samples, telemetry.histograms):
        if len(points):
            yield (rows := rows_of_points(points, windows[0]))
            for window_ns in windows[1:]:
                yield (rows := merge_rows(rows, window_ns))


@dataclass(slots=True)
class Derived:
    """One unit of an hour while it is derived."""

    unit: Unit
    windows: Windows
    excluded: Exclusions = NO_EXCLUSIONS
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
        telemetry = telemetry_of(batches, start_ns, start_ns + layout.HOUR_NS, self.excluded)
        self._count(telemetry)
        for rows in rolled(telemetry, self.windows.hourly):
            self._rows.setdefault((rows.window_ns, rows.buckets is not None), []).append(rows)
        self._series.append(index.series_table(telemetry))
        self._words.append(index.word_table(telemetry))

    def _count(self, telemetry: Telemetry) -> None:
        self.records += telemetry.records
        self.repeated += telemetry.repeated
        self.doubtful += telemetry.doubtful
        self.numbers |= {source: ranges_of(seqs) for source, seqs in telemetry.seqs.items() if len(seqs)}

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of every metric and window, and of the index. It can be called once."""
        while self._rows:
            (window_ns, _), parts = self._rows.popitem()
            yield from chunks_of(self.unit, parts[0] if len(parts) == 1 else join_rows(parts, window_ns))
        for table, parts in ((Table.SERIES, self._series), (Table.WORDS, self._words)):
            found = index.joined(table, parts)
            if found.num_rows:
                body = index.encode(table, found)
                key = layout.index_key(self.unit.hour, self.unit.chunk_id(table))
                yield Chunk(ChunkRef(table, key, found.num_rows, len(body), zlib.crc32(body)), body)

    def manifest(self, chunks: Iterable[ChunkRef], unreadable: Iterable[str] = ()) -> UnitManifest:
        """The unit's manifest; the order of the chunks does not matter."""
        counts = (self.records, self.repeated, self.doubtful)
        return UnitManifest(self.unit, in_order(chunks), *counts, tuple(sorted(unreadable)), self.numbers)


def in_order(chunks: Iterable[ChunkRef]) -> tuple[ChunkRef, ...]:
    return tuple(sorted(chunks, key=lambda ref: ref.key))


def daily_chunks(unit: Unit, hours: Iterable[Rows], windows: Windows) -> Iterator[Chunk]:
    """Chunks of every window above an hour, from the rows of the largest window of the day's hours."""
    parts = list(hours)
    for chosen in ([each for each in parts if each.buckets is None], [each for each in parts if each.buckets]):
        rows = join_rows(chosen, windows.hourly[-1])
        for window_ns in windows.daily:
            rows = merge_rows(rows, window_ns)
            yield from chunks_of(unit, rows)


def chunks_of(unit: Unit, rows: Rows) -> Iterator[Chunk]:
    part = "histograms" if rows.buckets is not None else "samples"
    for metric, own in chunk.by_metric(rows):
        chunk_id = unit.chunk_id(Table.ROLLUP, metric, rows.window_ns, part)
        key = layout.rollup_key(rows.window_ns, unit.hour, metric, chunk_id)
        body = chunk.encode(own)
        values = label_values(own.series)
        ref = ChunkRef(Table.ROLLUP, key, len(own), len(body), zlib.crc32(body), metric, rows.window_ns, values)
        yield Chunk(ref, body)
