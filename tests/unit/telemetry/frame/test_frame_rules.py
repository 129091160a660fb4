"""Each rule of a batch, broken alone: encoding refuses it, and so does decoding when another program encoded it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame import Batch, FrameInvalid, Reason, Sequenced, decode, encode, pack, pack_sequenced
from holdfast.telemetry.frame.envelope import wrap
from holdfast.telemetry.frame.write import payload_of
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Alert, Counter, Gauge, Histogram, Log, Record, State
from tests.unit.telemetry.frame.frame_kit import EVERY_SORT

BATCH = pack("a", "b", EVERY_SORT, seq_start=10)


def ints(column: Any, at: int, value: int) -> Any:
    changed = column.copy()
    changed[at] = value
    return changed


def samples(**columns: Any) -> Batch:
    return replace(BATCH, samples=replace(BATCH.samples, **columns))


def series(**columns: Any) -> Batch:
    return samples(series=replace(BATCH.samples.series, **columns))


def histograms(**columns: Any) -> Batch:
    return replace(BATCH, histograms=replace(BATCH.histograms, **columns))


def labels(**columns: Any) -> Batch:
    return replace(BATCH, label_sets=replace(BATCH.label_sets, **columns))


def logs(**columns: Any) -> Batch:
    return replace(BATCH, logs=replace(BATCH.logs, **columns))


def alerts(**columns: Any) -> Batch:
    return replace(BATCH, alerts=replace(BATCH.alerts, **columns))


def not_utf8() -> pa.StringArray:
    offsets = np.array([0, 1, 2], np.int32)
    return pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(b"\xff\xfe"))


SAMPLES, HISTOGRAMS, SETS = BATCH.samples, BATCH.histograms, BATCH.label_sets
BROKEN: dict[str, tuple[Callable[[], Batch], Reason]] = {
    "a kind that is none": (lambda: series(kind=ints(SAMPLES.series.kind, 0, 3)), Reason.VALUE),
    "a histogram among samples": (lambda: series(kind=ints(SAMPLES.series.kind, 0, 2)), Reason.VALUE),
    "sequence numbers of a series out of order": (
        lambda: samples(seq=ints(ints(SAMPLES.seq, 0, 11), 1, 10)),
        Reason.SEQUENCE,
    ),
    "a sequence number twice": (lambda: logs(seq=ints(BATCH.logs.seq, 0, 10)), Reason.SEQUENCE),
    "a sequence number below the first": (lambda: samples(seq=ints(SAMPLES.seq, 0, 9)), Reason.SEQUENCE),
    "a range that is too wide": (lambda: replace(BATCH, identity=BatchIdentity("a", "b", 10, 99)), Reason.SEQUENCE),
    "logs out of order": (lambda: logs(seq=BATCH.logs.seq[::-1].copy()), Reason.SEQUENCE),
    "alerts out of order": (lambda: alerts(seq=BATCH.alerts.seq[::-1].copy()), Reason.SEQUENCE),
    "a severity that is none": (lambda: logs(severity=ints(BATCH.logs.severity, 0, 25)), Reason.VALUE),
    "a negative severity": (lambda: logs(severity=ints(BATCH.logs.severity, 0, -1)), Reason.VALUE),
    "a state that is none": (lambda: alerts(state=ints(BATCH.alerts.state, 0, 3)), Reason.VALUE),
    "a value where there is none": (lambda: alerts(value=np.array([97.5, 1.0])), Reason.VALUE),
    "a message that is not UTF-8": (lambda: logs(message=not_utf8()), Reason.TEXT),
    "an alert's message that is not UTF-8": (lambda: alerts(message=not_utf8()), Reason.TEXT),
    "a name that is no text": (lambda: series(name=ints(SAMPLES.series.name, 0, 99)), Reason.COLUMN),
    "a negative name": (lambda: series(name=ints(SAMPLES.series.name, 0, -1)), Reason.COLUMN),
    "a label set that is none": (lambda: series(labels=ints(SAMPLES.series.labels, 0, 99)), Reason.COLUMN),
    "an unused text": (lambda: replace(BATCH, texts=(*BATCH.texts, "unused")), Reason.COLUMN),
    "a text twice": (lambda: replace(BATCH, texts=(*BATCH.texts[:-1], BATCH.texts[0])), Reason.TEXT),
    "an empty name": (lambda: replace(BATCH, texts=("", *(text or "x" for text in BATCH.texts[1:]))), Reason.TEXT),
    "a label twice": (lambda: labels(names=ints(SETS.names, 1, int(SETS.names[0]))), Reason.COLUMN),
    "a layout that is none": (lambda: histograms(layout=ints(HISTOGRAMS.layout, 0, 1)), Reason.COLUMN),
    "bounds that fall": (lambda: histograms(layouts=(np.array([1.0, 0.5, 2.0]), np.zeros(0))), Reason.VALUE),
    "a bound that is no number": (lambda: histograms(layouts=(np.array([0, 1, np.nan]), np.zeros(0))), Reason.VALUE),
    "an infinite bound": (lambda: histograms(layouts=(np.array([0, 1, np.inf]), np.zeros(0))), Reason.VALUE),
    "a bound of -0.0": (lambda: histograms(layouts=(np.array([-0.0, 1, 2]), np.zeros(0))), Reason.VALUE),
    "a negative count": (lambda: histograms(counts=(HISTOGRAMS.counts[0] - 5, HISTOGRAMS.counts[1])), Reason.VALUE),
    "too many observations": (
        lambda: histograms(counts=(HISTOGRAMS.counts[0], np.array([[2**53 + 1]]))),
        Reason.VALUE,
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_rule_is_found_on_both_sides(fault: str) -> None:
    make, reason = BROKEN[fault]
    batch = make()
    with pytest.raises(FrameInvalid) as encoding:
        encode(batch)
    assert encoding.value.reason == reason
    forged = wrap(batch.identity, len(batch), forged_payload(batch), level=None)
    with pytest.raises(FrameInvalid):
        decode(forged)


def forged_payload(batch: Batch) -> bytes:
    """The payload of a batch that encoding refuses. Arrow does not hand out text that is not UTF-8, so that is put in
    afterwards."""
    if batch.logs.message.type == pa.string() and batch.logs.message.buffers()[2].to_pybytes() == b"\xff\xfe":
        return payload_of(BATCH).replace(b"started", b"\xfftarted")
    if batch.alerts.message.buffers()[2].to_pybytes() == b"\xff\xfe":
        return payload_of(BATCH).replace(b"97.5 %", b"\xff7.5 %")
    return payload_of(batch)


def test_the_batch_that_is_changed_above_is_valid() -> None:
    assert len(decode(encode(BATCH))) == len(EVERY_SORT)
    assert len(decode(wrap(BATCH.identity, len(BATCH), forged_payload(BATCH), level=None))) == len(EVERY_SORT)


def test_a_batch_without_records_or_with_a_number_twice_is_refused() -> None:
    with pytest.raises(Invalid, match="at least one record"):
        pack("a", "b", [], seq_start=0)
    for numbers, names in (((1, 1), "xx"), ((0, 1, 2, 2, 4), "xxyyz")):
        records = [Sequenced(number, Gauge(name, 1.0, 0)) for number, name in zip(numbers, names, strict=True)]
        with pytest.raises(FrameInvalid, match="sequence"):
            encode(pack_sequenced("a", "b", records))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gauge("", 1.0, 0),
        lambda: Gauge("x", True, 0),
        lambda: Gauge("x", 2**63, 0),
        lambda: Gauge("x", "1", 0),  # type: ignore[arg-type]  # what a careless caller does
        lambda: Gauge("x", 1.0, 2**63),
        lambda: Gauge("x", 1.0, 1.5),  # type: ignore[arg-type]  # as above
        lambda: Counter("x", 1, 0, {"": "v"}),
        lambda: Counter("x", 1, 0, {"a": 1}),  # type: ignore[dict-item]  # as above
        lambda: Counter("\ud800", 1, 0),
        lambda: Histogram("x", (1.0,), (1,), 0.0, 0),
        lambda: Histogram("x", (1.0, 1.0), (1, 1, 1), 0.0, 0),
        lambda: Histogram("x", (float("inf"),), (1, 1), 0.0, 0),
        lambda: Histogram("x", (-0.0, 0.0), (1, 1, 1), 0.0, 0),
        lambda: Histogram("x", (), (-1,), 0.0, 0),
        lambda: Histogram("x", (1.0,), (2**53, 1), 0.0, 0),
        lambda: Log("x", 0, 25),
        lambda: Log("\udfff", 0),
        lambda: Alert("x", 7, 0),  # type: ignore[arg-type]  # as above
        lambda: Alert("", State.FIRING, 0),
    ],
)
def test_a_record_that_could_not_be_encoded_is_never_made(make: Callable[[], Record]) -> None:
    with pytest.raises(Invalid):
        make()
