"""From the records of a unit to its chunks: what a task does between reading batches and writing objects. Pure.

Every name follows from the unit, so that whoever does it again creates what is there already.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.metrics import chunk, index, layout, rollup
from holdfast.metrics.labels import label_values
from holdfast.metrics.manifest import ChunkRef, Table, Unit, UnitManifest
from holdfast.metrics.points import HistogramPoints, Points, Telemetry
from holdfast.metrics.rollup import Rows
from holdfast.metrics.windows import Windows


@dataclass(frozen=True, slots=True)
class Chunk:
    ref: ChunkRef
    body: bytes


def rollup_version(windows: Windows) -> str:
    return windows.version("rollup", rollup.VERSION)


def daily_version(windows: Windows) -> str:
    return windows.version("daily", rollup.VERSION)


def index_version() -> str:
    return f"index.{index.VERSION}"


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


def rollup_chunks(unit: Unit, telemetry: Telemetry, windows: Windows) -> Iterator[Chunk]:
    """Chunks of every metric and window up to an hour."""
    for rows in rolled(telemetry.points, telemetry.histograms, windows.hourly):
        yield from chunks_of(unit, rows)


def daily_chunks(unit: Unit, hours: Iterable[Rows], windows: Windows) -> Iterator[Chunk]:
    """Chunks of every window above an hour, from the rows of the largest window of the day's hours; of any metrics."""
    parts = list(hours)
    for chosen in ([each for each in parts if each.buckets is None], [each for each in parts if each.buckets]):
        rows = rollup.joined(chosen, windows.hourly[-1])
        for window_ns in windows.daily:
            rows = rollup.merge(rows, window_ns)
            yield from chunks_of(unit, rows)


def index_chunks(unit: Unit, telemetry: Telemetry) -> Iterator[Chunk]:
    """The tables of series and of words, where there is anything in them."""
    for table, found in ((Table.SERIES, index.series_table(telemetry)), (Table.WORDS, index.word_table(telemetry))):
        if found.num_rows:
            body = index.encode(table, found)
            key = layout.index_key(unit.hour, unit.chunk_id(table))
            rows = found.num_rows
            yield Chunk(ChunkRef(table, key, rows, len(body), rows, crc32=zlib.crc32(body)), body)


def manifest(
    unit: Unit, telemetry: Telemetry, chunks: Iterable[ChunkRef], unreadable: Iterable[str] = ()
) -> UnitManifest:
    """The record of what a unit gave, whatever the order in which its chunks were written."""
    refs = tuple(sorted(chunks, key=lambda ref: ref.key))
    return UnitManifest(
        unit, refs, telemetry.records, telemetry.repeated, telemetry.doubtful, tuple(sorted(unreadable))
    )


def chunks_of(unit: Unit, rows: Rows) -> Iterator[Chunk]:
    part = "histograms" if rows.buckets is not None else "samples"
    for metric, own in chunk.by_metric(rows):
        chunk_id = unit.chunk_id(Table.ROLLUP, metric, rows.window_ns, part)
        key = layout.rollup_key(rows.window_ns, unit.hour, metric, chunk_id)
        body = chunk.encode(own)
        size, values = len(own.series), label_values(own.series)
        ref = ChunkRef(Table.ROLLUP, key, len(own), len(body), size, metric, rows.window_ns, values, zlib.crc32(body))
        yield Chunk(ref, body)
