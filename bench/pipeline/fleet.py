"""A fleet of busy hosts for one hour: the same samples as frames in a store and as ideal Parquet.

Every host reports the 91 series of ``bench.frames.hosts`` every ten seconds. Frames are made column by column, since
ten million records as Python objects would take longer than everything that is measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.frames.hosts import INTERVAL_NS, Trace, records, traces
from holdfast.telemetry.frame import Batch, encode, pack
from holdfast.telemetry.identity import BatchIdentity

SERIES = 91
SCRAPES = 360
"""Of one hour."""
FRAME_SCRAPES = 120
HOUR = 488_888
"""2025-10-09T08:00 UTC, in hours since 1970."""
HOUR_NS = 3_600_000_000_000
SEEDS = 16
"""Hosts with the same number modulo this walk alike: what is drawn costs more than what is measured otherwise."""
IDEAL = pa.schema([("series", pa.int32()), ("time_us", pa.int64()), ("value", pa.float64())])


@dataclass(frozen=True)
class Fleet:
    hosts: int
    frame_scrapes: int = FRAME_SCRAPES

    @property
    def samples(self) -> int:
        return self.hosts * SERIES * SCRAPES

    @classmethod
    def of(cls, samples: int) -> "Fleet":
        """At least so many samples."""
        return cls(-(-samples // (SERIES * SCRAPES)))

    @classmethod
    def of_batches(cls, batches: int) -> "Fleet":
        """At least so many batches, of one scrape each."""
        return cls(-(-batches // SCRAPES), 1)

    def frames(self) -> Iterator[tuple[BatchIdentity, bytes]]:
        for host in range(self.hosts):
            for first in range(0, SCRAPES, self.frame_scrapes):
                batch = _batch(host, first, self.frame_scrapes)
                yield batch.identity, encode(batch)

    def write_ideal(self, path: Path) -> None:
        """One file: series as a number, sorted by series and time, nothing else to read."""
        with pq.ParquetWriter(path, IDEAL, compression="zstd") as writer:
            for host in range(self.hosts):
                times, values = _columns(host)
                series = np.repeat(np.arange(SERIES, dtype=np.int32) + host * SERIES, SCRAPES)
                moments = pa.array(np.tile(times // 1000, SERIES))
                writer.write_table(
                    pa.Table.from_arrays([pa.array(series), moments, pa.array(values.reshape(-1))], schema=IDEAL),
                    row_group_size=1 << 20,
                )


def frame(host: int, first: int, scrapes: int) -> tuple[BatchIdentity, bytes]:
    """One batch of a host: so many scrapes of the hour, from the first on."""
    batch = _batch(host, first, scrapes)
    return batch.identity, encode(batch)


@cache
def _traces(seed: int) -> tuple[npt.NDArray[np.int64], list[Trace]]:
    times, found = traces(SCRAPES, seed)
    # From the clock of the generator to the middle of nowhere: all of an hour, the first scrape at its beginning.
    return times - times[0] // INTERVAL_NS * INTERVAL_NS + HOUR * HOUR_NS, found


@cache
def _values(seed: int) -> npt.NDArray[np.float64]:
    """Series by scrapes."""
    return np.array([trace.values for trace in _traces(seed)[1]], np.float64)


@cache
def _exact(seed: int) -> npt.NDArray[np.int64]:
    whole = [
        trace.values if trace.values.dtype == np.int64 else np.zeros(SCRAPES, np.int64) for trace in _traces(seed)[1]
    ]
    return np.array(whole, np.int64)


@cache
def _template() -> Batch:
    """One scrape, for its tables: those of every other batch are the same."""
    return pack("template", "boot", records(1), seq_start=0)


def _columns(host: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    return _traces(host % SEEDS)[0], _values(host % SEEDS)


def _batch(host: int, first: int, scrapes: int) -> Batch:
    template, seed = _template(), host % SEEDS
    chosen = slice(first, first + scrapes)
    start = first * SERIES
    seq = start + np.arange(SERIES)[:, None] + np.arange(scrapes)[None, :] * SERIES
    samples = replace(
        template.samples,
        series=replace(template.samples.series, lengths=np.full(SERIES, scrapes)),
        seq=seq.reshape(-1),
        time_ns=np.tile(_traces(seed)[0][chosen], SERIES),
        value=_values(seed)[:, chosen].reshape(-1),
        exact=_exact(seed)[:, chosen].reshape(-1),
    )
    identity = BatchIdentity(f"host-{host:05d}", "boot-1", start, start + SERIES * scrapes - 1)
    return replace(template, identity=identity, samples=samples)
