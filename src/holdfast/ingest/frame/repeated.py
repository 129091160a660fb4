"""What agents repeat: the tables of a frame, which are the same from scrape to scrape while values and times change.

Texts, label sets and series make up half of the work on a small frame. ``Repeated`` keeps those of frames that were
found valid, by their exact bytes, and hands them to the next frame that has the same bytes there. So nothing is valid
here that would not be valid anyway, and equal bytes give equal tables. It holds so many bytes and no more; what was
not asked for longest goes first. Only frames of samples alone take part: in others, further sections refer to the
tables, and whether they do so rightly is a question about the whole frame.

Arrays that are kept are shared by many batches, and read-only.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.ingest.frame.batch import Batch, LabelSets
from holdfast.ingest.frame.columns import Ints, Reader
from holdfast.ingest.frame.counts import Counts

MOST_BYTES = 8 << 20
"""Of payloads that are kept; what is made of them takes some times as much."""
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

    @classmethod
    def of(cls, batch: Batch) -> "Tables":
        sets, series = batch.label_sets, batch.samples.series
        columns = (series.kind, series.name, series.labels, series.lengths)
        for each in (sets.lengths, sets.names, sets.values, *columns):
            each.flags.writeable = False
        return cls(batch.texts, sets, *columns)


class Beginning(NamedTuple):
    """Where the tables of a frame stand."""

    key: bytes
    """All of them, without the scales."""
    scales_at: int
    end: int


class Repeated:
    """Not for several threads at a time."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[bytes, Tables] = OrderedDict()
        self.held_bytes = 0
        """Of payloads."""

    def __len__(self) -> int:
        return len(self._kept)

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

    def find(self, beginning: Beginning) -> Tables | None:
        found = self._kept.get(beginning.key)
        if found is not None:
            self._kept.move_to_end(beginning.key)
        return found

    def keep(self, beginning: Beginning, batch: Batch) -> None:
        """Those of a batch that is valid as a whole."""
        self._kept[beginning.key] = Tables.of(batch)
        self.held_bytes += len(beginning.key)
        while self.held_bytes > self._most_bytes:
            gone, _ = self._kept.popitem(last=False)
            self.held_bytes -= len(gone)
