"""From the records of a unit to its chunks: what a task does between reading batches and writing objects. Pure.

Every name follows from the unit, so that whoever does it again creates what is there already.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.telemetry.rollup import chunk, index, layout, rollup
from holdfast.telemetry.rollup.labels import label_values
from holdfast.telemetry.rollup.manifest import ChunkRef, Table, Unit, UnitManifest
from holdfast.telemetry.rollup.points import HistogramPoints, Points, Telemetry
from holdfast.telemetry.rollup.rollup import Rows
from holdfast.telemetry.rollup.windows import Windows


@dataclass(frozen=True, slots=True)
class Chunk:
    ref: ChunkRef
    body: bytes


def rollup_version(windows: Windows) -> str:
    return windows.version("rollup", rollup.VERSION)


def daily_version(windows: Windows) -> str:
    return windows.version("daily", rollup.VERSION)


def is_current(version: str) -> bool:
    """Whether rows of this version are what the same batches give now, in whatever windows."""
    return version.partition(" ")[0] in (f"rollup.{rollup.VERSION}", f"daily.{rollup.VERSION}")


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


@dataclass(slots=True)
class Rolled:
    """Rows of every window up to an hour, share by share. No series is in two shares."""

    windows: Windows
    _parts: dict[tuple[int, bool], list[Rows]] = field(default_factory=dict)

    def add(self, telemetry: Telemetry) -> None:
        for rows in rolled(telemetry.points, telemetry.histograms, self.windows.hourly):
            self._parts.setdefault((rows.window_ns, rows.buckets is not None), []).append(rows)

    def chunks(self, unit: Unit) -> Iterator[Chunk]:
        """Of every metric and window, once: the same ones in whatever shares they came."""
        while self._parts:
            (window_ns, _), parts = self._parts.popitem()
            yield from chunks_of(unit, parts[0] if len(parts) == 1 else rollup.joined(parts, window_ns))


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


@dataclass(slots=True)
class Counted:
    """Records that a unit counts, and those that it leaves out."""

    records: int = 0
    repeated: int = 0
    doubtful: int = 0

    def add(self, telemetry: Telemetry) -> None:
        self.records += telemetry.records
        self.repeated += telemetry.repeated
        self.doubtful += telemetry.doubtful


def manifest(unit: Unit, counted: Counted, chunks: Iterable[ChunkRef], unreadable: Iterable[str] = ()) -> UnitManifest:
    """The record of what a unit gave, whatever the order in which its chunks were written."""
    refs = tuple(sorted(chunks, key=lambda ref: ref.key))
    return UnitManifest(unit, refs, counted.records, counted.repeated, counted.doubtful, tuple(sorted(unreadable)))


def chunks_of(unit: Unit, rows: Rows) -> Iterator[Chunk]:
    part = "histograms" if rows.buckets is not None else "samples"
    for metric, own in chunk.by_metric(rows):
        chunk_id = unit.chunk_id(Table.ROLLUP, metric, rows.window_ns, part)
        key = layout.rollup_key(rows.window_ns, unit.hour, metric, chunk_id)
        body = chunk.encode(own)
        size, values = len(own.series), label_values(own.series)
        ref = ChunkRef(Table.ROLLUP, key, len(own), len(body), size, metric, rows.window_ns, values, zlib.crc32(body))
        yield Chunk(ref, body)
