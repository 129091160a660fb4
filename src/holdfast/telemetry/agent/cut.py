"""Records cut into frames that a collector with default limits takes: by count, by the bytes of messages, and exactly.

How small a frame gets is known once it is made, so the first two only avoid work in vain; what is too large all the
same is cut in two and made again. ``Invalid`` names the record that is too large by itself. Pure: numbers are given by
the caller, and a call that fails has given none.
"""

from collections.abc import Iterator, Sequence

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame import Identity, Limits, encode, inspect, pack
from holdfast.telemetry.frame.batch import Batch
from holdfast.telemetry.records import Alert, Counter, Gauge, Histogram, Log, Record

SHOWN = 40
"""Letters of a log by which it is named."""
_RECORDS = (Gauge, Counter, Histogram, Log, Alert)
_WORDED = (Log, Alert)


def cut(
    agent_id: str, boot_id: str, records: Sequence[Record], seq_start: int, *, most_records: int, limits: Limits
) -> list[tuple[Identity, bytes]]:
    for number, record in enumerate(records):
        if not isinstance(record, _RECORDS):
            raise Invalid(f"record {number}: {type(record).__name__} is no Gauge, Counter, Histogram, Log or Alert")
    Identity(agent_id, boot_id, seq_start, seq_start + max(0, len(records) - 1))
    made: list[tuple[Identity, bytes]] = []
    waiting = list(_portions(records, most_records, limits.frame_bytes))[::-1]
    while waiting:
        first, end = waiting.pop()
        try:
            batch = pack(agent_id, boot_id, records[first:end], seq_start=seq_start + first)
            made.append((batch.identity, _frame(batch, limits)))
        except Invalid as error:  # each record is valid by itself: together they are too much for one frame
            if end - first == 1:
                raise Invalid(
                    f"record {first}, {_named(records[first])}, is too large to be sent: {error}",
                    remedy="shorten it; nothing of this call was sent",
                ) from error
            middle = (first + end) // 2
            waiting += [(middle, end), (first, middle)]
    return made


def _portions(records: Sequence[Record], most_records: int, most_letters: int) -> Iterator[tuple[int, int]]:
    first = letters = 0
    for number, record in enumerate(records):
        size = len(record.message) if isinstance(record, _WORDED) else 0
        if number - first == most_records or (letters + size > most_letters and number > first):
            yield first, number
            first, letters = number, 0
        letters += size
    if records:
        yield first, len(records)


def _frame(batch: Batch, limits: Limits) -> bytes:
    labels = len(batch.label_sets.names)
    buckets = sum(counts.size for counts in batch.histograms.counts)
    if max(labels, buckets) > limits.elements:
        raise Invalid(f"{labels} labels and {buckets} buckets, of each {limits.elements} are allowed in a batch")
    frame = encode(batch)
    inspect(frame, limits)
    return frame


def _named(record: Record) -> str:
    if isinstance(record, Log):
        return f"the log {record.message[:SHOWN]!r}"
    return f"the {type(record).__name__.lower()} {record.name[:SHOWN]!r}"
