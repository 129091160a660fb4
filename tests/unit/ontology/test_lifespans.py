"""Until when each row of a snapshot is the latest; and that questions of state use it instead of grouping."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ontology import Entity, Field, layout
from holdfast.ontology.chain import Chain
from holdfast.ontology.compact import Compactor
from holdfast.ontology.head import read_head
from holdfast.ontology.lifespans import known, untils
from holdfast.ontology.refs import TypeId
from holdfast.ontology.session import Ontology
from holdfast.ontology.verify import verify
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
    # The head is not in the snapshot, and ends a row of it all the same.
    assert table.column("_until").to_pylist() == [end for n in range(2, 10) for end in (n, None)]
    ledger = await Chain(desk.store).ledger((await read_head(desk.store)).place)
    assert known(table.schema.metadata) == ledger.head_of(THING)
    for more in (0, 1):
        async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
            onto._warm.pooled_bytes = len(table_bytes) - 1  # so that the snapshot is scanned where it lies
            query = onto.query(Thing)
            if more:
                onto.ensure(Thing(id="a", value=9))
                await onto.commit()
                assert "GROUP BY" in (await query.explain()).sql, "who asks once compares nothing beforehand"
                assert "store.replaced" in (await query.explain()).sql
            for _ in range(2):
                sql = (await query.explain()).sql
                assert "_until IS NULL" in sql
                assert more or not ("JOIN" in sql or "GROUP BY" in sql), "the snapshot knows all files after it"
            assert (await query.where(Thing.value > 0).all()) == [Thing(id="a", value=8 + more)]
            assert (await query.as_of(5).where(Thing.value > 0).all()) == [Thing(id="a", value=4)]
            assert (await query.as_of(8).where(Thing.value > 0).all()) == [Thing(id="a", value=7)]
            assert await query.as_of(5).count() == 6
            history = await query.with_history().where(Thing.id == "a").all()
            assert [one.value for one in history] == list(range(9 + more))


async def test_ends_by_commits_that_are_on_no_chain_any_more_are_none() -> None:
    """A backup of the ninth commit is restored under a snapshot that knows twelve; then others come."""
    desk = Desk()

    async def write(onto: Ontology, *keys: str, value: int) -> None:
        onto.ensure([Thing(id=key, value=value) for key in keys])
        await onto.commit()

    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for number in range(1, 10):
            await write(onto, "a", "b", f"c{number}", value=number)
    backup = dict(desk.shelf.objects)
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for number in range(10, 13):
            await write(onto, "a", "c1", value=number)
    await Compactor(desk.store, desk.ambient).compact(THING)
    made = {key: each for key, each in desk.shelf.objects.items() if key.startswith((layout.SNAPSHOTS, layout.INDICES))}
    (body,) = [each.body for key, each in made.items() if key.startswith(layout.SNAPSHOTS)]
    assert 10 in pq.read_table(pa.BufferReader(body)).column("_until").to_pylist(), "c1 ends there"
    await desk.store.delete_many([key for key in desk.shelf.objects if key not in backup | made])
    for key, each in (backup | made).items():
        await desk.store.put(key, each.body)
    for more in (10, 11, 12, 13):
        async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
            await write(onto, "b", value=more)
        for pooled_bytes in (0, 10**6):
            async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
                onto._warm.pooled_bytes = pooled_bytes
                for _ in range(3):
                    found = {one.id: one.value for one in await onto.query(Thing).all()}
                    assert found == {"a": 9, "b": more, **{f"c{number}": number for number in range(1, 10)}}
                    assert await onto.query(Thing).as_of(8).count() == 10
    report = await verify(desk.store, deep=True)
    assert [each.kind for each in report.findings if each.kind.startswith(("snapshot", "stats"))] == []


async def test_verify_knows_when_rows_end_by_later_files() -> None:
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for number in range(1, 12):
            onto.ensure([Thing(id="a", value=number), Thing(id=f"b{number}", value=0)])
            await onto.commit()
    (made,) = await Compactor(desk.store, desk.ambient).compact(THING)
    assert (await verify(desk.store, deep=True)).good
    stored = desk.shelf.objects[made.entry.path]
    table = pq.read_table(pa.BufferReader(stored.body))
    ends = table.column("_until").to_pylist()
    assert ends[-2:] == [9, None], "a of the eighth commit ends by the ninth, which is not in the snapshot"
    for wrong in ([*ends[:-2], None, None], [*ends[:-2], 10, None], [*ends[:-2], 9, 11]):
        sink = pa.BufferOutputStream()
        pq.write_table(table.set_column(table.num_columns - 1, "_until", pa.array(wrong, pa.int64())), sink)
        desk.shelf.objects[made.entry.path] = replace(stored, body=sink.getvalue().to_pybytes())
        assert "snapshot_wrong" in {each.kind for each in (await verify(desk.store, deep=True)).findings}
