"""A batch whose tables were read before (``repeated``): only what has changed since is read, and checked."""

from typing import NamedTuple

from holdfast.ingest.frame.batch import NO_ALERTS, NO_HISTOGRAMS, NO_LOGS, Batch, Samples, Series
from holdfast.ingest.frame.columns import Groups, Ints, Reader
from holdfast.ingest.frame.counts import Counts
from holdfast.ingest.frame.envelope import Identity
from holdfast.ingest.frame.repeated import Beginning, Pattern, Repeated, Tables
from holdfast.ingest.frame.rules import check_numbers
from holdfast.ingest.frame.scales import Scaling
from holdfast.ingest.frame.times import read_table, read_times


class _Look(NamedTuple):
    """What can be said of numbers and times without reading them."""

    first: int
    """The sequence number that the others count from."""
    key: tuple[bytes, bytes, bytes, bytes, int]
    """Of the pattern."""
    table: Ints | None
    """Of times."""


def read_again(
    identity: Identity, reader: Reader, counts: Counts, tables: Tables, beginning: Beginning, repeated: Repeated
) -> Batch:
    reader.at = beginning.scales_at
    scaling = _scaling(reader, counts, tables, repeated)
    reader.at = beginning.end
    first, key, table = _look(reader, counts, tables)
    pattern = repeated.patterns.find(key)
    if pattern is None:
        reader.at = beginning.end
        groups = Groups(tables.lengths, counts.samples)
        seq = reader.grouped(groups, related=True)
        times, time_ns = read_times(reader, groups, counts.times)
    else:
        groups, times = pattern.groups, pattern.times
        seq = pattern.relative + first
        time_ns = reader.grouped(groups, related=True) if table is None or times is None else table[times]
    value, exact = scaling.values(reader.grouped(groups, related=False))
    reader.finish()
    series = Series(tables.kind, scaling.whole, tables.name, tables.labels, tables.lengths)
    samples = Samples(series, seq, time_ns, value, exact)
    texts = (tables.texts, counts.text_bytes)
    batch = Batch(identity, *texts, tables.label_sets, samples, NO_HISTOGRAMS, NO_LOGS, NO_ALERTS)
    if pattern is None or not pattern.fits(identity, first):
        check_numbers(batch)
    if pattern is None:
        kept = Pattern.of(groups, seq, times)
        repeated.patterns.keep(key, kept, kept.nbytes + sum(map(len, key[:4])))
    return batch


def _look(reader: Reader, counts: Counts, tables: Tables) -> _Look:
    series, rest = counts.series, counts.samples - counts.series
    firsts = reader.steps(series)
    first = int(firsts[0])
    firsts -= first
    steps = reader.column(rest)
    if not counts.times:
        return _Look(first, (tables.shape, firsts.tobytes(), steps, b"", 0), None)
    table = read_table(reader, counts.times)
    order = reader.column(series) + reader.column(rest)
    return _Look(first, (tables.shape, firsts.tobytes(), steps, order, counts.times), table)


def _scaling(reader: Reader, counts: Counts, tables: Tables, repeated: Repeated) -> Scaling:
    at = reader.at
    key = (reader.column(counts.series), tables.shape)
    found = repeated.scalings.find(key)
    if found is None:
        reader.at = at
        found = Scaling(reader.ints(counts.series), tables.lengths, counts.samples)
        repeated.scalings.keep(key, found, found.nbytes + len(key[0]) + len(key[1]))
    return found
