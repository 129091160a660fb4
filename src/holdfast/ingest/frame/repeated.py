"""What agents repeat: the tables of a frame, which are the same from scrape to scrape while values and times change;
how its samples are numbered and which of its times each has; and the scales of its series.

All that is more than half of the work on a frame. ``Repeated`` keeps it of frames that were found valid, by their exact
bytes, and hands it to the next frame that has the same bytes there. So nothing is valid here that would not be valid
anyway, and equal bytes give equal columns. It holds so many bytes and no more. Only frames of samples alone take part:
in others, further sections refer to the tables, and whether they do so rightly is a question about the whole frame.

Arrays that are kept are shared by many batches, and read-only.
"""

from dataclasses import dataclass
from typing import NamedTuple

from holdfast.ingest.frame.batch import Batch, LabelSets
from holdfast.ingest.frame.columns import Groups, Ints, Reader, least, most
from holdfast.ingest.frame.counts import Counts
from holdfast.ingest.frame.envelope import Identity
from holdfast.ingest.frame.kept import Kept
from holdfast.ingest.frame.scales import Scaling

MOST_BYTES = 8 << 20
"""Of payloads whose tables are kept (what is made of them takes some times as much), of patterns, and of scalings."""
LARGEST = 64 << 10
"""The tables of one frame."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What stands before the samples of a frame, decoded; but for the scales, which follow from the values."""

    texts: tuple[str, ...]
    label_sets: LabelSets
    kind: Ints
    name: Ints
    labels: Ints
    lengths: Ints
    shape: bytes
    """The lengths once more, for keys."""

    @classmethod
    def of(cls, batch: Batch) -> "Tables":
        sets, series = batch.label_sets, batch.samples.series
        columns = (series.kind, series.name, series.labels, series.lengths)
        _read_only(sets.lengths, sets.names, sets.values, *columns)
        return cls(batch.texts, sets, *columns, series.lengths.tobytes())


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """How the samples of some series are numbered, counted from the first of them, and which of the times each has.

    Which numbers are there twice, or do not grow, does not depend on the first of them: it is known of a pattern that
    none are. What is left to see is whether it begins and ends where the identity says."""

    groups: Groups
    relative: Ints
    low: int
    high: int
    times: Ints | None
    """Numbers of times; None if each sample has a time of its own."""

    @classmethod
    def of(cls, groups: Groups, seq: Ints, times: Ints | None) -> "Pattern":
        """``seq`` is that of a valid batch."""
        relative = seq - seq[0]
        _read_only(relative, *(() if times is None else (times,)))
        return cls(groups, relative, least(relative), most(relative), times)

    @property
    def nbytes(self) -> int:
        return 3 * self.relative.nbytes + (0 if self.times is None else self.times.nbytes)

    def fits(self, identity: Identity, first: int) -> bool:
        return first + self.low == identity.seq_start and first + self.high == identity.seq_end


class Beginning(NamedTuple):
    """Where the tables of a frame stand."""

    key: bytes
    """All of them, without the scales."""
    scales_at: int
    end: int


class Repeated:
    """Not for several threads at a time."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.tables: Kept[Tables] = Kept(most_bytes)
        self.patterns: Kept[Pattern] = Kept(most_bytes)
        self.scalings: Kept[Scaling] = Kept(most_bytes)

    def beginning(self, reader: Reader, counts: Counts) -> Beginning | None:
        """None if the tables are not to be kept."""
        if counts.records != counts.samples or counts.layouts or counts.bounds or counts.buckets:
            return None
        texts = reader.after(reader.at, counts.texts) + counts.text_bytes
        scales_at = reader.after(texts, counts.label_sets, counts.pairs, counts.pairs, counts.series)
        scales_end = reader.after(scales_at, counts.series)
        end = reader.after(scales_end, counts.series, counts.series, counts.series)
        if end > min(LARGEST, reader.size):
            return None
        return Beginning(reader.between(0, scales_at) + reader.between(scales_end, end), scales_at, end)

    def keep(self, beginning: Beginning, batch: Batch) -> None:
        """The tables of a batch that is valid as a whole."""
        self.tables.keep(beginning.key, Tables.of(batch), len(beginning.key))


def _read_only(*arrays: Ints) -> None:
    for each in arrays:
        each.flags.writeable = False
