"""The index of an hour: every series with its labels, and the batches in which words, labels and severities are."""

import pytest

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.telemetry.records import Counter, Gauge, Histogram, Log
from holdfast.telemetry.rollup import chunk, index
from holdfast.telemetry.rollup.index import words_in
from holdfast.telemetry.rollup.kernel import Derived
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
