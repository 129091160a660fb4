"""The index of an hour: its series with their labels, and which batches have which words, labels and severities in
logs.

Two tables of a unit, Parquet with zstd inside. ``series`` has one row per series. ``words`` has one row per term: a
word of a log message, a label of a log, or a severity; with the manifest ids of the batches in which records have it. A
search reads those and no others. Only records that count are in it.

Words are runs of letters, digits and underscores, in lower case, cut after 64 characters. Indexing and searching split
messages with the same function, so they find the same words.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.telemetry.rollup import chunk
from holdfast.telemetry.rollup.columns import Flags, Ints, Lists, offsets_of, starts_of_groups
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
_ORDER = {Table.SERIES: ("metric", "agent"), Table.WORDS: ("kind", "name", "text")}
LONGEST_WORD = 64
SEVERITIES = 25
_BETWEEN = r"[^\p{L}\p{N}_]+"
WORD, LABEL, SEVERITY = "word", "label", "severity"


def series_table(telemetry: Telemetry) -> pa.Table:
    numbers: dict[SeriesKey, int] = {}
    of, times = [], []
    for points in (telemetry.samples, telemetry.histograms):
        own = [numbers.setdefault(key._replace(boot=""), len(numbers)) for key in points.series]
        of.append(np.array(own, np.int64)[points.series_id])
        times.append(points.time_ns)
    series, ranks = in_order(list(numbers))
    found = pa.table({"series": ranks[np.concatenate(of)], "time": np.concatenate(times)}).group_by("series")
    figures = found.aggregate([("time", "count"), ("time", "min"), ("time", "max")]).sort_by("series")
    columns = [
        pa.array([key.name for key in series], pa.string()),
        pa.array([key.agent for key in series], pa.string()),
        chunk.label_maps([key.labels for key in series]),
        pa.array([key.kind for key in series], pa.string()),
        *(figures.column(name).combine_chunks() for name in ("time_count", "time_min", "time_max")),
    ]
    return pa.Table.from_arrays(columns, schema=SERIES)


def word_table(telemetry: Telemetry) -> pa.Table:
    logs = telemetry.logs
    if not len(logs):
        return WORDS.empty_table()
    terms, term, record = _terms(logs)
    order = pc.sort_indices(terms, sort_keys=[(name, "ascending") for name in _ORDER[Table.WORDS]]).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    # A term counts once in a record, however often it occurs there.
    once = np.sort(rank[term] * len(logs) + record)
    once = once[starts_of_groups(once)]
    sources = len(logs.sources)
    pairs, records = np.unique(once // len(logs) * sources + logs.source[once % len(logs)], return_counts=True)
    starts = starts_of_groups(pairs // sources)
    manifest_ids = pa.array([source.manifest_id for source in logs.sources], pa.string())
    columns = [
        *terms.take(pa.array(order[pairs[starts] // sources])).columns,
        pa.array(np.add.reduceat(records, starts)),
        _lists(np.append(starts, len(pairs)), manifest_ids.take(pa.array(pairs % sources))),
    ]
    return pa.Table.from_arrays(columns, schema=WORDS)


def _terms(logs: LogLines) -> tuple[pa.Table, Ints, Ints]:
    """All terms; and for each time that a record has one, the number of the term and that of the record."""
    of, words = words_of(logs.message)
    encoded = words.dictionary_encode()
    labels: dict[tuple[str, str], int] = {}
    sets = [[labels.setdefault(pair, len(labels)) for pair in each] for each in logs.label_sets]
    flat = np.array([number for each in sets for number in each], np.int64)
    # Each record has the labels of its set.
    own = Lists(offsets_of(np.array([len(each) for each in sets], np.int64)), flat, flat).take(logs.labels)
    values, severities = [value for _, value in labels], [str(number) for number in range(SEVERITIES)]
    first_label = len(encoded.dictionary)
    first_severity = first_label + len(labels)
    kinds = np.repeat([WORD, LABEL, SEVERITY], [first_label, len(labels), SEVERITIES])
    names = [""] * first_label + [name for name, _ in labels] + [""] * SEVERITIES
    texts = pa.concat_arrays([encoded.dictionary, pa.array(values, pa.string()), pa.array(severities)])
    terms = pa.table({"kind": kinds, "name": names, "text": texts}, schema=pa.schema(list(WORDS)[:3]))
    records = np.arange(len(logs))
    term = [encoded.indices.to_numpy().astype(np.int64), first_label + own.keys, first_severity + logs.severity]
    return terms, np.concatenate(term), np.concatenate([of, np.repeat(records, own.lengths), records])


def joined(table: Table, parts: Sequence[pa.Table]) -> pa.Table:
    """The tables of several shares as one; no agent is in two shares."""
    parts = [part for part in parts if part.num_rows]
    if len(parts) < 2:
        return parts[0] if parts else _SCHEMAS[table].empty_table()
    together = pa.concat_tables(parts).combine_chunks()
    ordered = together.take(pc.sort_indices(together, sort_keys=[(name, "ascending") for name in _ORDER[table]]))
    if table is Table.SERIES:
        return ordered
    starts = starts_of_groups(*(chunk.codes(ordered.column(name)) for name in _ORDER[table]))
    lists = ordered.column("batches").combine_chunks()
    offsets = offsets_of(pc.list_value_length(lists).to_numpy().astype(np.int64))
    columns = [
        *(ordered.column(name).take(pa.array(starts)) for name in _ORDER[table]),
        pa.array(np.add.reduceat(ordered.column("records").to_numpy(), starts)),
        _lists(offsets[np.append(starts, len(lists))], pc.list_flatten(lists)),
    ]
    return pa.Table.from_arrays(columns, schema=WORDS)


def _lists(offsets: Ints, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


def encode(table: Table, found: pa.Table) -> bytes:
    return chunk.to_parquet(found.replace_schema_metadata({"holdfast.schema": NAMES[table]}))


def decode(table: Table, body: bytes, *, key: str) -> pa.Table:
    """``Corrupt`` for bytes that are not such a table, ``Incompatible`` for a table of another schema."""
    found, _ = chunk.from_parquet(body, _SCHEMAS[table], NAMES[table], key=key)
    return found


def series_of(table: pa.Table) -> list[SeriesKey]:
    rows = zip(*(table.column(name).to_pylist() for name in ("metric", "agent", "labels", "kind")), strict=True)
    return [SeriesKey(metric, agent, tuple(labels), kind) for metric, agent, labels, kind in rows]


def batches_with(
    table: pa.Table, words: Sequence[str] = (), labels: Mapping[str, str] | None = None, severity: int = 0
) -> set[str]:
    """Manifest ids of batches in which a log may have all of the words and labels and at least this severity."""
    criteria = [_batches(table, SEVERITY, "", map(str, range(severity, SEVERITIES)))]
    criteria += [_batches(table, WORD, "", [word]) for word in words]
    criteria += [_batches(table, LABEL, name, [value]) for name, value in (labels or {}).items()]
    return set.intersection(*criteria)


def _batches(table: pa.Table, kind: str, name: str, texts: Iterable[str]) -> set[str]:
    chosen = pc.and_(
        pc.and_(pc.equal(table.column("kind"), kind), pc.equal(table.column("name"), name)),
        pc.is_in(table.column("text"), pa.array(list(texts), pa.string())),
    )
    return {each for batches in table.column("batches").filter(chosen).to_pylist() for each in batches}


def words_of(messages: pa.StringArray) -> tuple[Ints, pa.StringArray]:
    """Every word of every message, with the number of its message; as often as it occurs."""
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


def has_words(messages: pa.StringArray, wanted: Sequence[str]) -> Flags:
    """Which messages have all of these words."""
    found = np.ones(len(messages), np.bool_)
    of, words = words_of(messages)
    for word in wanted:
        has = np.zeros(len(messages), np.bool_)
        has[of[pc.equal(words, word).to_numpy(zero_copy_only=False)]] = True
        found &= has
    return found
