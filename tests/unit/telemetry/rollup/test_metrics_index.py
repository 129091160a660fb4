"""The index of an hour: every series with its labels, and the batches in which words, labels and severities are."""

from typing import Any

import pytest

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.records import Counter, Gauge, Histogram, Log
from holdfast.telemetry.rollup import chunk, index
from holdfast.telemetry.rollup.index import has_words, words_in
from holdfast.telemetry.rollup.kernel import Derived
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Kind, Table, Unit
from holdfast.telemetry.rollup.points import telemetry_of
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
BOTH = telemetry_of([ONE, TWO])


def ids(*batches: Batch) -> set[str]:
    return {each.identity.manifest_id for each in batches}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Connection refused: retry-3 /dev/sda1 fünf_7",
            ["connection", "refused", "retry", "3", "dev", "sda1", "fünf_7"],
        ),
        (" --- ", []),
        ("x" * 100, ["x" * 64]),
    ],
)
def test_words_are_runs_of_letters_and_digits_in_lower_case(text: str, words: list[str]) -> None:
    assert words_in(text) == words


def test_every_series_is_in_the_index_with_its_times() -> None:
    table = index.series_table(BOTH)
    assert [tuple(row.values()) for row in table.to_pylist()] == [
        ("latency", "b", [], "histogram", 1, 3 * SECOND, 3 * SECOND),
        ("load", "a", [("cpu", "0")], "gauge", 2, 5 * SECOND, 9 * SECOND),
        ("requests", "a", [], "counter", 1, 7 * SECOND, 7 * SECOND),
    ]
    assert [key.name for key in index.series_of(table)] == ["latency", "load", "requests"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"words": ["connection"]}, ids(ONE, TWO)),
        ({"words": ["connection", "refused"]}, ids(ONE)),
        ({"words": ["absent"]}, set()),
        ({"labels": {"unit": "nginx"}}, ids(ONE, TWO)),
        ({"labels": {"unit": "nginx", "host": "h1"}}, ids(ONE)),
        ({"severity": 10}, ids(ONE)),
        ({"words": ["closed"], "labels": {"unit": "nginx"}, "severity": 17}, set()),
        ({}, ids(ONE, TWO)),
    ],
)
def test_words_labels_and_severities_lead_to_their_batches(asked: dict[str, Any], expected: set[str]) -> None:
    assert index.batches_with(index.word_table(BOTH), **asked) == expected


def test_a_term_counts_once_in_a_record() -> None:
    rows = {(row["kind"], row["name"], row["text"]): row["records"] for row in index.word_table(BOTH).to_pylist()}
    terms = [("word", "", "connection"), ("label", "unit", "nginx"), ("severity", "", "9")]
    assert [rows[term] for term in terms] == [2, 2, 2]
    assert has_words(BOTH.logs.message, ["connection", "gone"]).tolist() == [False, False, True]


def test_tables_come_back_and_anything_else_is_refused() -> None:
    hour = Derived(Unit(Kind.ROLLUP, 0, 1, 0, (), "v"), Windows.of())
    assert list(hour.chunks()) == []
    hour.add([ONE, TWO])
    chunks = {each.ref.table: each for each in hour.chunks() if each.ref.table is not Table.ROLLUP}
    assert set(chunks) == {Table.SERIES, Table.WORDS}
    for table, made in chunks.items():
        assert index.decode(table, made.body, key=made.ref.key).num_rows == made.ref.rows
        with pytest.raises(Corrupt, match="not Parquet"):
            index.decode(table, made.body[:-9], key="k")
    with pytest.raises(Incompatible, match="series_index"):
        index.decode(Table.WORDS, chunks[Table.SERIES].body, key="k")
    with pytest.raises(Incompatible, match="rollup"):
        chunk.decode(chunks[Table.SERIES].body, key="k")
