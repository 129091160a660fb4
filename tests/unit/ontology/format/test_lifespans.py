"""Until when each row of a snapshot is the latest, and queries that use it instead of grouping."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.ontology.format.data.lifespans import Lifespans, in_order, lifespans
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Thing

THING = TypeId("entity", "Thing")


def of_rows(*rows: tuple[int, str, str]) -> Lifespans:
    commits, lefts, rights = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"commit_id": pa.array(commits, pa.int64()), "l": pa.array(lefts, pa.string())}
    found = lifespans(pa.table({**columns, "r": pa.array(rights, pa.string())}), ("l", "r"))
    for numbers in (found.order, found.order[::-1]):
        stored = np.array(commits, np.int64)[numbers], found.until.take(pa.array(numbers))
        assert in_order(*stored) == (len(rows) < 2 or numbers is found.order)
    return found


def test_a_row_lasts_until_the_next_row_of_its_identity() -> None:
    found = of_rows((1, "a", "x"), (1, "b", "x"), (3, "a", "x"), (3, "a", "y"), (4, "a", "x"))
    assert found.until.to_pylist() == [3, None, 4, None, None]
    assert of_rows((7, "a", "x")).until.to_pylist() == [None]
    assert of_rows().until.to_pylist() == []


def test_rows_without_an_end_come_first() -> None:
    found = of_rows((3, "b", "x"), (1, "a", "x"), (1, "b", "x"), (2, "c", "x"), (2, "a", "x"), (4, "c", "x"))
    assert (found.order.tolist(), found.lasting) == ([4, 0, 5, 1, 2, 3], 3), "each part by commit and identity"


def test_two_rows_of_one_identity_and_commit_keep_their_order() -> None:
    found = of_rows((1, "b", "x"), (1, "a", "x"), (1, "a", "x"), (2, "b", "x"))
    assert (found.order.tolist(), found.lasting) == ([1, 2, 0, 3], 4)


@pytest.fixture(autouse=True)
def _files_are_scanned_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ontology.query.type_table.SMALL_BYTES", 0)


async def test_queries_of_a_snapshot_use_its_ends(desk: Desk) -> None:
    async with desk.session(Thing, compaction=False) as onto:
        for number in range(9):
            onto.ensure([Thing(id="a", value=number), Thing(id=f"b{number}", value=0)])
            await onto.commit()
    (made,) = await Compactor(desk.store, desk.ambient, fan=8).compact(THING)
    body = desk.shelf.objects[made.entry.path].body
    assert pq.read_table(pa.BufferReader(body)).column("_until").to_pylist() == [*[None] * 9, *range(2, 9)]
    async with desk.session(Thing, compaction=False) as onto:
        onto._warm.table_bytes = len(body) - 1  # so that the snapshot is scanned where it lies
        query = onto.query(Thing)
        assert "GROUP BY" not in (await query.explain()).sql
        assert "JOIN" not in (await query.as_of(8).explain()).sql
        assert await query.where(Thing.value > 0).all() == [Thing(id="a", value=8)]
        assert await query.as_of(5).where(Thing.value > 0).all() == [Thing(id="a", value=4)]
        assert await query.as_of(5).count() == 6
        history = await query.with_history().where(Thing.id == "a").all()
        assert [one.value for one in history] == list(range(9))


async def written(desk: Desk, commits: int, *, first: int = 1) -> None:
    """Each commit changes ``a`` and two others of nine, and adds one."""
    async with desk.session(Thing, compaction=False) as onto:
        for number in range(first, first + commits):
            some = ["a", f"b{number % 9}", f"b{(number * 4) % 9}", f"c{number:02d}"]
            onto.ensure([Thing(id=key, value=number) for key in dict.fromkeys(some)])
            await onto.commit()


async def answers(desk: Desk, *, table_bytes: int) -> list[list[Thing]]:
    """All there is to ask."""
    async with desk.session(Thing, compaction=False) as onto:
        onto._warm.table_bytes = table_bytes
        query, head = onto.query(Thing), (await read_head(desk.store)).commit_id
        moments = [query, query.with_history(), query.history_since(head // 2)]
        moments += [query.as_of(number) for number in range(1, head + 1)]
        return [await each.all() for each in moments]


async def test_a_plain_writers_two_rows_of_a_commit_stay_as_they_came(desk: Desk) -> None:
    for number in range(4):
        rows = [
            ("c", {"id": "c", "value": number}),
            ("c", {"id": "c", "value": number + 10}),
            ("b", {"id": "b", "value": 1}),
        ]
        await desk.plain.commit({("entity", "Thing"): rows})
    await written(desk, 2, first=5)
    before = await answers(desk, table_bytes=0)
    (made,) = await Compactor(desk.store, desk.ambient, whole=True).compact(THING)
    assert await answers(desk, table_bytes=0) == before
    table = pq.read_table(pa.BufferReader(desk.shelf.objects[made.entry.path].body))
    assert table.column("commit_id").to_pylist() == sorted(table.column("commit_id").to_pylist())


async def test_ends_after_the_last_commit_of_a_snapshot_do_not_count(desk: Desk) -> None:
    """Older versions have written them, as they found them in files that may not be on the chain any more."""
    await written(desk, 9)
    before = [await answers(desk, table_bytes=table_bytes) for table_bytes in (0, 10**6)]
    (made,) = await Compactor(desk.store, desk.ambient, whole=True).compact(THING)
    table = pq.read_table(pa.BufferReader(desk.shelf.objects[made.entry.path].body))
    ends = [made.entry.last + 5 if each is None else each for each in table.column("_until").to_pylist()]
    number, sink = table.column_names.index("_until"), pa.BufferOutputStream()
    pq.write_table(table.set_column(number, "_until", pa.array(ends, pa.int64())), sink)
    await desk.store.put(made.entry.path, sink.getvalue().to_pybytes())
    assert [await answers(desk, table_bytes=table_bytes) for table_bytes in (0, 10**6)] == before
