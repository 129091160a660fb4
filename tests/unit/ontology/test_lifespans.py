"""Until when each row of a snapshot is the latest; and that questions of state use it instead of grouping."""

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ontology import Entity, Field
from holdfast.ontology.compact import Compactor
from holdfast.ontology.lifespans import untils
from holdfast.ontology.refs import TypeId
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk

THING = TypeId("entity", "Thing")


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


def found(*rows: tuple[int, str, str]) -> list[int | None]:
    commits, lefts, rights = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"commit_id": pa.array(commits, pa.int64()), "l": pa.array(lefts, pa.string())}
    return untils(pa.table({**columns, "r": pa.array(rights, pa.string())}), ("l", "r")).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def test_a_row_lasts_until_the_next_of_its_identity() -> None:
    assert found((1, "a", "x"), (1, "b", "x"), (3, "a", "x"), (3, "a", "y"), (4, "a", "x")) == [3, None, 4, None, None]
    assert found((7, "a", "x")) == [None]
    assert found() == []


def test_of_two_rows_in_one_commit_the_last_counts() -> None:
    assert found((2, "a", "x"), (2, "a", "x"), (5, "a", "x")) == [2, 5, None]


async def test_a_snapshot_says_it_and_readers_need_not_group() -> None:
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for number in range(9):
            onto.ensure([Thing(id="a", value=number), Thing(id=f"b{number}", value=0)])
            await onto.commit()
    (made,) = await Compactor(desk.store, desk.ambient).compact(THING)
    table_bytes = desk.shelf.objects[made.entry.path].body
    table = pq.read_table(pa.BufferReader(table_bytes))
    assert table.column("_until").to_pylist() == [*(end for n in range(2, 9) for end in (n, None)), None, None]
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        onto._warm.pooled_bytes = len(table_bytes) - 1  # so that the snapshot is scanned where it lies
        query = onto.query(Thing)
        assert "GROUP BY" in (await query.explain()).sql, "who asks once compares nothing beforehand"
        sql = (await query.explain()).sql
        assert "GROUP BY" not in sql
        assert "_until IS NULL" in sql
        assert "store.replaced" in sql
        assert (await query.where(Thing.value > 0).all()) == [Thing(id="a", value=8)]
        assert (await query.as_of(5).where(Thing.value > 0).all()) == [Thing(id="a", value=4)]
        assert await query.as_of(5).count() == 6
        assert [one.value for one in await query.with_history().where(Thing.id == "a").all()] == list(range(9))
