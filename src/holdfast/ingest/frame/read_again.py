"""A batch whose tables were read before (``repeated``): only what has changed since is read, and checked."""

from typing import NamedTuple

from holdfast.ingest.frame.batch import (
    NO_ALERTS,
    NO_HISTOGRAMS,
    NO_LOGS,
    Batch,
    Columns,
    Samples,
    Series,
    Unread,
)
from holdfast.ingest.frame.columns import Groups, Reader
from holdfast.ingest.frame.counts import Counts
from holdfast.ingest.frame.envelope import Identity, Packed
from holdfast.ingest.frame.repeated import Beginning, Pattern, Repeated, Tables
from holdfast.ingest.frame.rules import check_numbers
from holdfast.ingest.frame.scales import Scaling
from holdfast.ingest.frame.times import read_table, read_times

Shape = tuple[tuple[int, bytes], ...]


class _Look(NamedTuple):
    """What can be said of numbers and times without reading them."""

    first: int
    """The sequence number that the others count from."""
    key: tuple[bytes, Shape, bytes, bytes, int]
    """Of the pattern."""
    times_at: int
    """Where the table of times begins, if there is one, which is known to be in order; else the times themselves."""
    times: int
    """How many there are in the table."""


def read_again(
    packed: Packed, reader: Reader, counts: Counts, tables: Tables, beginning: Beginning, repeated: Repeated
) -> Batch:
    identity = packed.header.identity
    reader.at = beginning.scales_at
    scaling = _scaling(reader, counts, tables, repeated)
    series = Series(tables.kind, scaling.whole, tables.name, tables.labels, tables.lengths)
    reader.at = beginning.end
    look = _look(reader, counts, tables)
    pattern = repeated.patterns.find(look.key)
    if pattern is not None:
        samples = _Rest(packed.kept(reader.whole), reader.at, look, pattern, scaling).samples(reader, series, counts)
        batch = _batch(identity, counts, tables, samples)
        if not pattern.fits(identity, look.first):
            check_numbers(batch)
        return batch
    reader.at = beginning.end
    groups = Groups(tables.lengths, counts.samples)
    seq = reader.grouped(groups, related=True)
    times, time_ns = read_times(reader, groups, counts.times)
    samples = Samples(series, seq, time_ns, *scaling.values(reader.grouped(groups, related=False)))
    reader.finish()
    batch = _batch(identity, counts, tables, samples)
    check_numbers(batch)
    kept = Pattern.of(groups, seq, times)
    repeated.patterns.keep(look.key, kept, kept.nbytes + _bytes_in(look))
    return batch


def _bytes_in(look: _Look) -> int:
    shape, firsts, steps, order, _ = look.key
    return len(shape) + sum(len(plane) for _, plane in firsts) + len(steps) + len(order)


def _batch(identity: Identity, counts: Counts, tables: Tables, samples: Samples) -> Batch:
    texts = (tables.texts, counts.text_bytes)
    return Batch(identity, *texts, tables.label_sets, samples, NO_HISTOGRAMS, NO_LOGS, NO_ALERTS)


class _Rest(NamedTuple):
    """Times and values of a frame whose samples are numbered as some before: all that is left to read.

    It holds on to the frame and not to its payload, which is some times as large: to unpack that once more takes less
    than to look at it.
    """

    packed: Packed
    at: int
    """In the payload."""
    look: _Look
    pattern: Pattern
    scaling: Scaling

    def samples(self, reader: Reader, series: Series, counts: Counts) -> Samples:
        """Most are never looked at here, and to see that they are right takes few of their bytes."""
        if self._is_right(reader, counts):
            return Unread(series, counts.samples, self._read)
        columns = self._columns(reader)
        reader.finish()
        return Samples(series, *columns)

    def _is_right(self, reader: Reader, counts: Counts) -> bool:
        """Any number is a time, and it is a value if it does not have too many bits."""
        both = (counts.series, counts.samples - counts.series)
        values_at = self.at if self.look.times else reader.after(self.at, *both)
        return reader.after(values_at, *both) == reader.size and self.scaling.within(reader, values_at)

    def _read(self) -> Columns:
        reader = Reader(self.packed.payload())
        reader.at = self.at
        return self._columns(reader)

    def _columns(self, reader: Reader) -> Columns:
        groups, times = self.pattern.groups, self.pattern.times
        if times is None:
            time_ns = reader.grouped(groups, related=True)
        else:
            time_ns = reader.again(self.look.times_at).steps(self.look.times)[times]
        value, exact = self.scaling.values(reader.grouped(groups, related=False))
        return self.pattern.relative + self.look.first, time_ns, value, exact


def _look(reader: Reader, counts: Counts, tables: Tables) -> _Look:
    series, rest, times = counts.series, counts.samples - counts.series, counts.times
    first, firsts = reader.shape_of_steps(series)
    steps, at, order = reader.column(rest), reader.at, b""
    if times:
        if times > 1:
            read_table(reader, times)
        else:
            reader.column(times)
        order = reader.column(series) + reader.column(rest)
    return _Look(first, (tables.shape, firsts, steps, order, times), at, times)


def _scaling(reader: Reader, counts: Counts, tables: Tables, repeated: Repeated) -> Scaling:
    at = reader.at
    key = (reader.column(counts.series), tables.shape)
    found = repeated.scalings.find(key)
    if found is None:
        reader.at = at
        found = Scaling(reader.ints(counts.series), tables.lengths, counts.samples)
        repeated.scalings.keep(key, found, found.nbytes + len(key[0]) + len(key[1]))
    return found
