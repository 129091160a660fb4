"""The index of an hour: every series with its labels, and the batches in which words, labels and severities are."""

import pytest

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.records import Counter, Gauge, Histogram, Log
from holdfast.telemetry.rollup import chunk, index
from holdfast.telemetry.rollup.extract import telemetry_of
from holdfast.telemetry.rollup.index import has_words, words_in
from holdfast.telemetry.rollup.kernel import Chunk, Derived
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Kind, Table, Unit
from tests.unit.telemetry.rollup.rolled import SECOND, batch

NGINX = {"unit": "nginx"}
SAMPLES = {
    0: Gauge("load", 1.5, 5 * SECOND, {"cpu": "0"}),
    1: Gauge("load", 2.5, 9 * SECOND, {"cpu": "0"}),
    2: Counter("requests", 7, 7 * SECOND),
}
LOGS = {
    3: Log("Connection refused: retry-3", 1 * SECOND, 17, NGINX),
    4: Log("started", 2 * SECOND, 9, {"unit": "cron", "host": "h1"}),
}
OTHERS = {
    0: Histogram("latency", (1.0,), (1, 2), 4.0, 3 * SECOND),
    1: Log("connection CLOSED, connection gone", 3 * SECOND, 9, NGINX),
}
ONE, TWO = batch("a", "0", {**SAMPLES, **LOGS}), batch("b", "0", OTHERS)


def made_of(*batches: Batch) -> list[Chunk]:
    found = Derived(Unit(Kind.ROLLUP, 0, 1, 0, (), "v"), Windows.of())
    found.add(list(batches))
    return list(found.chunks())


def ids(*batches: Batch) -> set[str]:
    return {each.identity.manifest_id for each in batches}


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    assert words_in("Connection refused: retry-3 /dev/sda1 fünf_7") == [
        "connection", "refused", "retry", "3", "dev", "sda1", "fünf_7",
    ]  # fmt: skip
    assert words_in(" --- ") == []
    assert words_in("x" * 100) == ["x" * 64]


def test_every_series_stands_in_the_index_with_its_times() -> None:
    table = index.series_table(telemetry_of([ONE, TWO]))
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("latency", "b", [], "histogram", 1, 3 * SECOND, 3 * SECOND),
        ("load", "a", [("cpu", "0")], "gauge", 2, 5 * SECOND, 9 * SECOND),
        ("requests", "a", [], "counter", 1, 7 * SECOND, 7 * SECOND),
    ]
    assert [key.name for key in index.series_of(table)] == ["latency", "load", "requests"]


def test_words_labels_and_severities_lead_to_their_batches() -> None:
    table = index.word_table(telemetry_of([ONE, TWO]))
    assert index.batches_with(table, ["connection"]) == ids(ONE, TWO)
    assert index.batches_with(table, ["connection", "refused"]) == ids(ONE)
    assert index.batches_with(table, ["absent"]) == set()
    assert index.batches_with(table, [], {"unit": "nginx"}) == ids(ONE, TWO)
    assert index.batches_with(table, [], {"unit": "nginx", "host": "h1"}) == ids(ONE)
    assert index.batches_with(table, [], None, 10) == ids(ONE)
    assert index.batches_with(table, ["closed"], {"unit": "nginx"}, 17) == set()
    assert index.batches_with(table) is None
    rows = {(row["kind"], row["name"], row["text"]): row["records"] for row in table.to_pylist()}
    assert rows["word", "", "connection"] == 2
    assert rows["label", "unit", "nginx"] == 2
    assert rows["severity", "", "9"] == 2
    found = has_words(telemetry_of([ONE, TWO]).logs.message, ["connection", "gone"])
    assert found.tolist() == [False, False, True]


def test_tables_come_back_and_anything_else_is_refused() -> None:
    assert made_of() == []
    chunks = {each.ref.table: each for each in made_of(ONE, TWO) if each.ref.table is not Table.ROLLUP}
    assert set(chunks) == {Table.SERIES, Table.WORDS}
    for table, made in chunks.items():
        back = index.decode(table, made.body, key=made.ref.key)
        assert back.num_rows == made.ref.rows
        with pytest.raises(Corrupt, match="not Parquet"):
            index.decode(table, made.body[:-9], key="k")
    with pytest.raises(Incompatible, match="series_index"):
        index.decode(Table.WORDS, chunks[Table.SERIES].body, key="k")
    with pytest.raises(Incompatible, match="rollup"):
        chunk.decode(chunks[Table.SERIES].body, key="k")
