"""The index of an hour: its series with their labels, and which batches have which words, labels and severities in
logs.

Two tables of a unit, Parquet with zstd inside. ``series`` has one row per series. ``words`` has one row per word of a
log message, per label of a log and per severity, with the manifest ids of the batches in which records have it: a
search opens those and no others. Only records that count are in it.

Words are runs of letters, digits and underscores, in lower case, cut after 64 characters. The index and searches split
messages here: what one finds the other does.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.telemetry.rollup import chunk
from holdfast.telemetry.rollup.columns import Ints, starts_of_groups
from holdfast.telemetry.rollup.manifest import Table
from holdfast.telemetry.rollup.points import LogLines, SeriesKey, Telemetry, in_order

NAMES = {Table.SERIES: "holdfast.series_index.v1", Table.WORDS: "holdfast.word_index.v1"}

SERIES = pa.schema(
    [
        pa.field("metric", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("labels", chunk.LABELS, nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("samples", pa.int64(), nullable=False),
        pa.field("first_time_ns", pa.int64(), nullable=False),
        pa.field("last_time_ns", pa.int64(), nullable=False),
    ]
)
WORDS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("batches", pa.list_(pa.string()), nullable=False),
    ]
)
_SCHEMAS = {Table.SERIES: SERIES, Table.WORDS: WORDS}
LONGEST_WORD = 64
_BETWEEN = r"[^\p{L}\p{N}_]+"
WORD, LABEL, SEVERITY = "word", "label", "severity"


def series_table(telemetry: Telemetry) -> pa.Table:
    known: dict[SeriesKey, int] = {}
    parts = []
    for part in (telemetry.points, telemetry.histograms):
        own = np.array([known.setdefault(key._replace(boot=""), len(known)) for key in part.series], np.int64)
        parts.append((own[part.series_id] if len(part) else part.series_id, part.time_ns))
    series, numbers = in_order(list(known))
    of = numbers[np.concatenate([each for each, _ in parts])] if known else np.zeros(0, np.int64)
    times = np.concatenate([each for _, each in parts])
    first = np.full(len(series), np.iinfo(np.int64).max)
    last = np.full(len(series), np.iinfo(np.int64).min)
    np.minimum.at(first, of, times)
    np.maximum.at(last, of, times)
    count = np.bincount(of, minlength=len(series)).astype(np.int64)
    columns = [
        pa.array([key.name for key in series], pa.string()),
        pa.array([key.agent for key in series], pa.string()),
        chunk.label_maps([key.labels for key in series]),
        pa.array([key.kind for key in series], pa.string()),
        pa.array(count),
        pa.array(first),
        pa.array(last),
    ]
    table = pa.Table.from_arrays(columns, schema=SERIES)
    return table.filter(pa.array(count > 0))


def word_table(telemetry: Telemetry) -> pa.Table:
    logs = telemetry.logs
    if not len(logs):
        return WORDS.empty_table()
    return pa.concat_tables([_labels(logs), _severities(logs), _words(logs)])


def joined(table: Table, parts: Sequence[pa.Table]) -> pa.Table:
    """Join the tables of several shares; no agent is in two shares."""
    there = [part for part in parts if part.num_rows]
    if len(there) < 2:  # nothing to put together
        return there[0] if there else _SCHEMAS[table].empty_table()
    together = pa.concat_tables(there).combine_chunks()
    names = ("metric", "agent") if table is Table.SERIES else ("kind", "name", "text")
    ranks = [_ranks(together.column(name)) for name in names]
    order = np.lexsort(ranks[::-1])
    ordered = together.take(pa.array(order))
    if table is Table.SERIES:
        return ordered
    starts = starts_of_groups(*(rank[order] for rank in ranks))
    lists = ordered.column("batches").combine_chunks()
    ends = np.append(0, pc.list_value_length(lists).to_numpy().cumsum())
    offsets = pa.array(ends[np.append(starts, len(order))].astype(np.int32))
    first = ordered.take(pa.array(starts))
    columns = [
        *(first.column(name) for name in names),
        pa.array(np.add.reduceat(ordered.column("records").to_numpy(), starts)),
        pa.ListArray.from_arrays(offsets, pc.list_flatten(lists)),
    ]
    return pa.Table.from_arrays(columns, schema=WORDS)


def _ranks(column: pa.ChunkedArray) -> Ints:
    found: Ints = pc.rank(column, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return found


def encode(table: Table, found: pa.Table) -> bytes:
    return chunk.to_parquet(found.replace_schema_metadata({"holdfast.schema": NAMES[table]}))


def decode(table: Table, body: bytes, *, key: str) -> pa.Table:
    """Errors: ``Corrupt`` for bytes that are no such table, ``Incompatible`` for one of a schema that is not known."""
    found, _ = chunk.from_parquet(body, _SCHEMAS[table], NAMES[table], key=key)
    return found


def series_of(table: pa.Table) -> list[SeriesKey]:
    rows = zip(*(table.column(name).to_pylist() for name in ("metric", "agent", "labels", "kind")), strict=True)
    return [SeriesKey(metric, agent, tuple(labels), kind) for metric, agent, labels, kind in rows]


def batches_with(
    table: pa.Table, words: Sequence[str] = (), labels: Mapping[str, str] | None = None, severity: int = 0
) -> set[str] | None:
    """Manifest ids of batches in which a record may have all of the words and labels and at least this severity.

    None if nothing was asked for: then it may be any batch."""
    criteria: list[set[str]] = [_batches(table, WORD, "", [word]) for word in words]
    criteria += [_batches(table, LABEL, name, [value]) for name, value in (labels or {}).items()]
    if severity > 0:
        criteria.append(_batches(table, SEVERITY, "", map(str, range(severity, 25))))
    return set.intersection(*criteria) if criteria else None


def all_batches(table: pa.Table) -> set[str]:
    """Manifest ids of every batch that has logs."""
    return _batches(table, SEVERITY, "", map(str, range(25)))


def _batches(table: pa.Table, kind: str, name: str, texts: Iterable[str]) -> set[str]:
    chosen = pc.and_(
        pc.and_(pc.equal(table.column("kind"), kind), pc.equal(table.column("name"), name)),
        pc.is_in(table.column("text"), pa.array(list(texts), pa.string())),
    )
    return {each for batches in table.column("batches").filter(chosen).to_pylist() for each in batches}


def _words(logs: LogLines) -> pa.Table:
    of, words = words_of(logs.message)
    encoded = words.dictionary_encode()
    # A word counts once in a record, however often it is there.
    places = np.unique(encoded.indices.to_numpy().astype(np.int64) * len(logs) + of)
    return _table(WORD, "", encoded.dictionary, places // len(logs), logs.source[places % len(logs)], logs)


def _severities(logs: LogLines) -> pa.Table:
    texts = pa.array([str(number) for number in range(25)], pa.string())
    return _table(SEVERITY, "", texts, logs.severity, logs.source, logs)


def _labels(logs: LogLines) -> pa.Table:
    """By pairs: a label set is a few of them, and there are far fewer sets than records."""
    pairs: dict[tuple[str, str], int] = {}
    numbers = [[pairs.setdefault(pair, len(pairs)) for pair in labels] for labels in logs.label_sets]
    lengths = np.array([len(each) for each in numbers], np.int64)
    flat = np.array([number for each in numbers for number in each], np.int64)
    own = lengths[logs.labels]
    begins = (lengths.cumsum() - lengths)[logs.labels]
    inside = np.arange(int(own.sum())) - np.repeat(own.cumsum() - own, own)
    codes = flat[np.repeat(begins, own) + inside] if len(inside) else inside
    sources = np.repeat(logs.source, own)
    tables = []
    by_name: dict[str, list[int]] = {}
    for (name, _), number in pairs.items():
        by_name.setdefault(name, []).append(number)
    texts = pa.array([value for _, value in pairs], pa.string())
    for name in sorted(by_name):
        chosen = np.isin(codes, np.array(by_name[name]))
        tables.append(_table(LABEL, name, texts, codes[chosen], sources[chosen], logs))
    return pa.concat_tables(tables) if tables else WORDS.empty_table()


def _table(kind: str, name: str, texts: pa.StringArray, codes: Ints, sources: Ints, logs: LogLines) -> pa.Table:
    """One row per text, by text; codes are numbers of texts, one for each time that a record has one."""
    batches = pa.array([source.manifest_id for source in logs.sources], pa.string())
    ranks = np.empty(len(texts), np.int64)
    by_text = pc.sort_indices(texts).to_numpy()
    ranks[by_text] = np.arange(len(texts))
    places, records = np.unique(ranks[codes] * len(batches) + sources, return_counts=True)
    of = places // len(batches)
    starts = starts_of_groups(of)
    rows = len(starts)
    offsets = np.append(starts, len(of)).astype(np.int32)
    columns = [
        pa.repeat(pa.scalar(kind), rows),
        pa.repeat(pa.scalar(name), rows),
        texts.take(pa.array(by_text[of[starts]])),
        pa.array(np.add.reduceat(records, starts) if rows else records),
        pa.ListArray.from_arrays(pa.array(offsets), batches.take(pa.array(places % len(batches)))),
    ]
    return pa.Table.from_arrays(columns, schema=WORDS)


def words_of(messages: pa.StringArray) -> tuple[Ints, pa.StringArray]:
    """Every word of every message, with the number of its message; as often as it is there."""
    lists = pc.split_pattern_regex(pc.utf8_lower(messages), pattern=_BETWEEN)
    of: Ints = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    words = pc.list_flatten(lists)
    there = pc.not_equal(words, "")
    words = pc.utf8_slice_codeunits(words.filter(there), 0, LONGEST_WORD)
    return of[there.to_numpy(zero_copy_only=False)], words


def words_in(text: str) -> list[str]:
    """The words of one text, each once, in the order of their first use."""
    _, words = words_of(pa.array([text], pa.string()))
    return list(dict.fromkeys(words.to_pylist()))


def has_words(messages: pa.StringArray, wanted: list[str]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which messages have all of these words."""
    found = np.ones(len(messages), np.bool_)
    if not wanted or not len(messages):
        return found
    of, words = words_of(messages)
    for word in wanted:
        has = np.zeros(len(messages), np.bool_)
        has[of[pc.equal(words, word).to_numpy(zero_copy_only=False)]] = True
        found &= has
    return found
