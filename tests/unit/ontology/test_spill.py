"""What is moved in and out of a store is not held: memory does not grow with the file."""

import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.ontology import Entity, Field
from holdfast.ontology.bulk import files, transfer
from holdfast.ontology.bulk.files import FileFormat
from holdfast.ontology.bulk.transfer import export_file, import_file
from holdfast.ontology.format.data import rows, spill, stored_rows
from holdfast.ontology.format.data.batch import Batch
from holdfast.ontology.format.data.spill import SpillFile
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk

TEXT = "0123456789" * 200
ROWS = 3_000


class Doc(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str]


class Meter:
    """The most bytes that were held whenever rows went by, of Python's and of Arrow's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._base = self._most = 0
        for owner, name in ((SpillFile, "add"), (spill.SpilledRows, "_batch"), (rows, "to_table"), (files, "table_of")):
            monkeypatch.setattr(owner, name, self._watching(getattr(owner, name)))

    def _watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            done = function(*args, **options)
            self._most = max(self._most, int(pa.total_allocated_bytes()) - self._base)
            return done

        return watched

    async def peak(self, work: Awaitable[Any]) -> int:
        gc.collect()
        self._base, self._most = int(pa.total_allocated_bytes()), 0
        tracemalloc.start()
        try:
            await work
            return tracemalloc.get_traced_memory()[1] + self._most
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("style", FileFormat)
async def test_memory_does_not_grow_with_the_file(
    style: FileFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (files, transfer):
        monkeypatch.setattr(module, "READ_ROWS", 64)
    monkeypatch.setattr(spill, "SLICE_ROWS", 64)
    monkeypatch.setattr(stored_rows, "PIECE_ROWS", 64)
    monkeypatch.setattr(stored_rows, "LARGE_BYTES", 1)
    meter = Meter(monkeypatch)
    desk = Desk()
    lines = tmp_path / "docs.jsonl"
    with lines.open("w") as file:
        file.writelines(json.dumps({"id": f"{number:06}", "text": TEXT}) + "\n" for number in range(ROWS))
    size = lines.stat().st_size
    path = tmp_path / f"docs.{style.value}"
    async with Ontology(desk.store, desk.ambient, [Doc]) as onto:
        assert await meter.peak(import_file(onto, Doc, lines)) < size / 2
    assert await meter.peak(export_file(desk.store, "Doc", path)) < size / 2
    there = Desk()
    async with Ontology(there.store, there.ambient, [Doc]) as onto:
        assert await meter.peak(import_file(onto, Doc, path)) < size / 2
        assert (await onto.query(Doc).count(), (await onto.info()).commit_id) == (ROWS, 1)
    async with Ontology(there.store, there.ambient, [Doc]) as onto:
        again = import_file(onto, Doc, path)
        assert await meter.peak(again) < size / 2
        assert (await onto.info()).commit_id == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted({"docs.jsonl", path.name})


async def test_rows_of_a_pile_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SLICE_ROWS", 3)
    type_id = TypeId("relation", "Cites")
    with SpillFile(type_id) as spool:
        for start in range(0, 12, 4):
            keys = [
                pa.array([f"{(7 * number) % 12:02}" for number in range(start, start + 4)]),
                *[pa.array(["x"] * 4)] * 2,
            ]
            spool.add(Batch(type_id, tuple(keys), pa.array([f"{number}" for number in range(start, start + 4)])))
        made = spool.finish()
    assert [row.fields_json for row in made] == [f"{number}" for number in range(12)]
    assert made.distinct
    assert [row.identity[0] for row in made.ordered()] == [f"{number:02}" for number in range(12)]
    assert [len(batch) for batch in made.batches()] == [3, 3, 3, 3]
    assert made[-1].fields_json == "11"
    assert [row.fields_json for row in made[4:6]] == ["4", "5"]
    odd = made.where((made.numbers % 2).astype(bool))
    assert [row.fields_json for row in odd.ordered()] == [f"{number}" for number in (7, 9, 11, 1, 3, 5)]
