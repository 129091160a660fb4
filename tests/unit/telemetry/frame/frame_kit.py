"""Records for tests of frames: drawn, or all sorts at once; and frames as the plain reader shows them."""

import struct
from typing import Any

from hypothesis import strategies as st

from holdfast.telemetry.frame import Batch, Sequenced
from holdfast.telemetry.records import Alert, Counter, Gauge, Histogram, Log, Record, State

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAME = st.sampled_from(["up", "cpu", "größe"]) | TEXT.filter(bool)
LABELS = st.dictionaries(NAME, TEXT, max_size=3)


def from_bits(bits: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    assert isinstance(value, float)
    return value


FLOATS = (
    st.integers(0, 2**64 - 1).map(from_bits)
    | st.floats()
    | st.sampled_from([0.0, -0.0, float("inf"), float("-inf"), 2.0**53, 2.0**53 - 1, 5e-324, 0.1 + 0.2])
    | st.builds(
        lambda number, divisor: number / divisor, st.integers(-(10**9), 10**9), st.sampled_from([1, 10, 100, 2048])
    )
)
TIMES = st.sampled_from([1_760_000_000_000_000_000, 1_760_000_010_000_000_000]) | INT64
BOUNDS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4, unique_by=lambda bound: bound + 0.0)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    bounds = tuple(sorted(draw(BOUNDS)))
    counts = draw(st.lists(st.integers(0, 2**50), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    return Histogram(draw(NAME), bounds, tuple(counts), draw(FLOATS), draw(TIMES), draw(LABELS))


SAMPLES: st.SearchStrategy[Record] = st.one_of(
    st.builds(Gauge, NAME, FLOATS | INT64, TIMES, LABELS), st.builds(Counter, NAME, FLOATS | INT64, TIMES, LABELS)
)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    SAMPLES,
    histograms(),
    st.builds(Log, TEXT, TIMES, st.integers(0, 24), LABELS),
    st.builds(Alert, NAME, st.sampled_from(State), TIMES, LABELS, st.none() | FLOATS, TEXT),
)


@st.composite
def sequenced(draw: st.DrawFn, sort: st.SearchStrategy[Record] = RECORDS) -> list[Sequenced]:
    records = draw(st.lists(sort, min_size=1, max_size=30))
    gaps = draw(st.lists(st.just(1) | st.integers(1, 2**40), min_size=len(records), max_size=len(records)))
    found, seq = [], draw(st.integers(0, 2**50))
    for record, gap in zip(records, gaps, strict=True):
        seq += gap
        found.append(Sequenced(seq, record))
    return draw(st.permutations(found))


EVERY_SORT: list[Record] = [
    Gauge("temperature", 21.5, 1_760_000_000_000_000_001, {"room": "küche", "rack": ""}),
    Gauge("temperature", 21.6, 1_760_000_010_000_000_003, {"room": "küche", "rack": ""}),
    Gauge("temperature", from_bits(0x7FF8_0000_0000_002A), 1_760_000_005_000_000_000, {"room": "küche", "rack": ""}),
    Gauge("balance", -0.0, -1, {}),
    Gauge("load", 4.47119140625, 1_760_000_010_000_000_003, {}),
    Counter("bytes_total", 2**62 + 1, 1_760_000_010_000_000_003, {"device": "eth0"}),
    Counter("bytes_total", 2**62 + 1500, 1_760_000_020_000_000_003, {"device": "eth0"}),
    Counter("seconds_total", 12345.67, 1_760_000_010_000_000_003, {"mode": "user", "cpu": "0"}),
    Histogram("latency", (0.1, 0.5, 1.0), (5, 3, 1, 0), 1.75, 1_760_000_010_000_000_003, {"route": "/"}),
    Histogram("latency", (0.1, 0.5, 1.0), (6, 3, 1, 1), 3.25, 1_760_000_020_000_000_003, {"route": "/"}),
    Histogram("size", (), (7,), float("inf"), 1_760_000_020_000_000_003, {}),
    Log("started\nwith two lines", 1_760_000_000_000_000_000, 9, {"unit": "web"}),
    Log("", -(2**63), 0, {}),
    Alert("disk_full", State.FIRING, 1_760_000_030_000_000_000, {"device": "sda"}, 97.5, "97.5 % of /var is used"),
    Alert("disk_full", State.RESOLVED, 2**63 - 1, {"device": "sda"}),
]


def shown(batch: Batch) -> dict[str, Any]:
    """A batch in the form that the plain reader gives."""
    identity = batch.identity
    return {
        "identity": [identity.agent_id, identity.boot_id, identity.seq_start, identity.seq_end],
        "records": [[each.seq, show(each.record)] for each in batch.records()],
    }


def show(record: Record) -> list[Any]:
    match record:
        case Gauge() | Counter():
            return [type(record).__name__.lower(), record.name, record.labels, record.time_ns, _number(record.value)]
        case Histogram():
            bounds = [_number(bound) for bound in record.bounds]
            total = _number(record.sum)
            return ["histogram", record.name, bounds, list(record.counts), total, record.labels, record.time_ns]
        case Log():
            return ["log", record.message, record.severity, record.attributes, record.time_ns]
        case Alert():
            value = None if record.value is None else _number(record.value)
            return ["alert", record.name, int(record.state), record.labels, record.time_ns, value, record.message]


def _number(value: float | int) -> int | str:
    return value if isinstance(value, int) else struct.pack("<d", value).hex()
