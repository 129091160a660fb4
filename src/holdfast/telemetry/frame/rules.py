"""The rules of a valid batch, checked before encoding and after decoding.

Each rule is a few numpy passes over columns. A batch that breaks a rule raises ``FrameInvalid``; nothing is repaired.
"""

import numpy as np
import pyarrow as pa

from holdfast.telemetry.frame.batch import Alerts, Batch, Histograms, LabelSets, Logs, Samples
from holdfast.telemetry.frame.columns import EXACT, MOST_BOUNDS, MOST_LAYOUTS, Ints, all_of, least, most, starts_of
from holdfast.telemetry.frame.envelope import FrameInvalid, Reason
from holdfast.telemetry.records import HIGHEST_SEVERITY, Kind, State


def check_batch(batch: Batch) -> None:
    """Check every rule. ``pack`` and ``decode`` make the columns of a section equally long, and series that add up to
    them."""
    _series(batch.samples, (Kind.GAUGE, Kind.COUNTER))
    if len(batch.histograms):
        _series(batch.histograms.samples, (Kind.HISTOGRAM, Kind.HISTOGRAM))
        _histograms(batch.histograms)
    if len(batch.logs):
        _logs(batch.logs)
    if len(batch.alerts):
        _alerts(batch.alerts)
    _sequence(batch)
    _references(batch)


def _series(samples: Samples, kinds: tuple[Kind, Kind]) -> None:
    series = samples.series
    _within("kind of a series", series.kind, *kinds)
    if kinds[0] == Kind.HISTOGRAM and series.whole.any():
        raise FrameInvalid(Reason.COLUMN, "the sum of a histogram is an int, it must be a float")
    if len(series) == len(samples):
        return
    grows = samples.seq[1:] > samples.seq[:-1]
    grows[starts_of(series.lengths)[1:] - 1] = True
    if not all_of(grows):
        raise FrameInvalid(Reason.SEQUENCE, "sequence numbers do not increase within a series")


def _histograms(found: Histograms) -> None:
    if len(found.layouts) > MOST_LAYOUTS:
        raise FrameInvalid(
            Reason.COLUMN, f"{len(found.layouts)} layouts of histograms, at most {MOST_LAYOUTS} are allowed"
        )
    _first_use("layout", found.layout, len(found.layouts))
    for bounds, counts in zip(found.layouts, found.counts, strict=True):
        if len(bounds) > MOST_BOUNDS:
            raise FrameInvalid(Reason.COLUMN, f"{len(bounds)} bounds of a histogram, at most {MOST_BOUNDS} are allowed")
        if not (np.isfinite(bounds).all() and (bounds[1:] > bounds[:-1]).all()):
            raise FrameInvalid(Reason.VALUE, "the bounds of a histogram are not finite and increasing")
        if (np.signbit(bounds) & (bounds == 0)).any():
            raise FrameInvalid(Reason.VALUE, "a bound of a histogram is -0.0, it must be 0.0")
        _within("count of a bucket", counts, 0, EXACT)
        _within("count of a histogram", counts.sum(axis=1), 0, EXACT)


def _logs(found: Logs) -> None:
    _within("severity", found.severity, 0, HIGHEST_SEVERITY)
    _ordered("logs", found.seq)
    _text("log message", found.message)


def _alerts(found: Alerts) -> None:
    _within("state of an alert", found.state, min(State), max(State))
    _ordered("alerts", found.seq)
    _text("alert message", found.message)
    if found.value.view(np.int64)[~found.valued].any():
        raise FrameInvalid(Reason.VALUE, "an alert is marked as having no value, but its value is not zero")


def _sequence(batch: Batch) -> None:
    """Every sequence number occurs once; the lowest and the highest are the bounds of the identity."""
    start, end = batch.identity.seq_start, batch.identity.seq_end
    parts = [batch.samples.seq, batch.histograms.samples.seq, batch.logs.seq, batch.alerts.seq]
    there = [part for part in parts if len(part)]
    seqs = there[0] if len(there) == 1 else np.concatenate(parts)
    if not len(seqs) or least(seqs) != start or most(seqs) != end:
        raise FrameInvalid(Reason.SEQUENCE, f"the sequence numbers of the records do not run from {start} to {end}")
    if len(seqs) == end - start + 1:
        seen = np.zeros(len(seqs), np.bool_)
        seen[seqs - start] = True
        once = all_of(seen)
    else:
        ordered = np.sort(seqs)
        once = all_of(ordered[1:] > ordered[:-1])
    if not once:
        raise FrameInvalid(Reason.SEQUENCE, "two records have the same sequence number")


def _references(batch: Batch) -> None:
    sets, texts = batch.label_sets, batch.texts
    series, histograms = batch.samples.series, batch.histograms.samples.series
    users = np.concatenate([series.labels, histograms.labels, batch.logs.attributes, batch.alerts.labels])
    _first_use("label set", users, len(sets.lengths))
    names = np.concatenate([series.name, histograms.name, batch.alerts.name, sets.names])
    _first_use("text", np.concatenate([names, sets.values]), len(texts))
    if len(set(texts)) != len(texts):
        raise FrameInvalid(Reason.TEXT, "the table of texts has a duplicate")
    if "" in texts and (names == texts.index("")).any():
        raise FrameInvalid(Reason.TEXT, "a name is empty")
    if len(sets.lengths):
        _label_sets(sets)


def _label_sets(sets: LabelSets) -> None:
    _within("length of a label set", sets.lengths, 0, len(sets.names))
    # The sum cannot wrap around: each length is below 2**32, and there are fewer than 2**31 of them.
    if int(np.add.reduce(sets.lengths)) != len(sets.names):
        raise FrameInvalid(Reason.COLUMN, f"the lengths of label sets do not add up to {len(sets.names)}")
    grows = sets.names[1:] > sets.names[:-1]
    begins = starts_of(sets.lengths)
    grows[begins[(begins > 0) & (begins < len(sets.names))] - 1] = True
    if not all_of(grows):
        raise FrameInvalid(Reason.COLUMN, "the label names of a label set are not in order, or one is a duplicate")


def _first_use(what: str, numbers: Ints, size: int) -> None:
    """Check that rows of a table are first used in ascending order, that all are used and that none is out of range."""
    if len(numbers):
        highest = np.maximum.accumulate(numbers)
        in_order = least(numbers) == int(numbers[0]) == 0 and all_of(numbers[1:] <= highest[:-1] + 1)
        if in_order and int(highest[-1]) == size - 1:
            return
    elif not size:
        return
    raise FrameInvalid(
        Reason.COLUMN,
        f"the {size} rows of the table of {what}s are not in the order of their first use, or one is unused",
    )


def _ordered(what: str, seq: Ints) -> None:
    if not (seq[1:] > seq[:-1]).all():
        raise FrameInvalid(Reason.SEQUENCE, f"sequence numbers of {what} do not increase")


def _within(what: str, numbers: Ints, low: int, high: int) -> None:
    if not numbers.size:
        return
    found = least(numbers), most(numbers)
    if found[0] < low or found[1] > high:
        wrong = found[0] if found[0] < low else found[1]
        raise FrameInvalid(Reason.VALUE, f"{what}: {wrong} is not between {low} and {high}")


def _text(what: str, texts: pa.StringArray) -> None:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise FrameInvalid(Reason.TEXT, f"{what}: {error}") from error
    if texts.null_count:
        raise FrameInvalid(Reason.TEXT, f"{what}: a text is null")
