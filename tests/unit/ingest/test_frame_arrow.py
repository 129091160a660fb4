"""Arrow sees what the records say."""

from datetime import UTC, datetime

from holdfast.ingest.frame import decode, encode, pack
from holdfast.ingest.frame.arrow import SAMPLES, samples_of, series_of
from holdfast.ingest.records import Counter, Gauge, Log, Record
from tests.unit.ingest.frame_kit import EVERY_SORT

RECORDS: list[Record] = [
    Counter("bytes", 5, 1_760_000_000_000_000_000, {"nic": "eth0", "host": "a"}),
    Gauge("load", 0.5, 1_760_000_000_000_000_000),
    Log("nothing to see", 0),
    Counter("bytes", 9, 1_760_000_010_000_000_000, {"host": "a", "nic": "eth0"}),
]


def test_samples_and_series_as_arrow() -> None:
    batch = decode(encode(pack("a", "b", RECORDS, seq_start=10)))
    first, second = (datetime.fromtimestamp(seconds, UTC) for seconds in (1_760_000_000, 1_760_000_010))
    rows = samples_of(batch)
    assert rows.schema == SAMPLES
    assert rows.column("time").to_pandas().tolist() == [first, second, first]
    assert rows.drop_columns(["time"]).to_pylist() == [
        {"series": 0, "value": 5.0, "seq": 10},
        {"series": 0, "value": 9.0, "seq": 13},
        {"series": 1, "value": 0.5, "seq": 11},
    ]
    assert series_of(batch).to_pylist() == [
        {"series": 0, "kind": "counter", "name": "bytes", "labels": [("host", "a"), ("nic", "eth0")]},
        {"series": 1, "kind": "gauge", "name": "load", "labels": []},
    ]


def test_every_sort_as_arrow() -> None:
    batch = decode(encode(pack("a", "b", EVERY_SORT, seq_start=0)))
    samples_of(batch).validate(full=True)
    rows = series_of(batch, batch.histograms.samples)
    rows.validate(full=True)
    assert rows.column("name").to_pylist() == ["latency", "size"]
    assert rows.column("kind").to_pylist() == ["histogram", "histogram"]


def test_a_batch_without_samples_has_an_empty_table() -> None:
    batch = decode(encode(pack("a", "b", [Log("x", 0)], seq_start=0)))
    assert (samples_of(batch).num_rows, series_of(batch).num_rows) == (0, 0)
