"""Until when each row of a snapshot is the latest; and that questions of state use it instead of grouping."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.lifespans import ORIGIN, Lasting, Lives, known, lasting_in, lives
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Thing

THING = TypeId("entity", "Thing")


def lived(*rows: tuple[int, str, str], later: int = 0) -> Lives:
    commits, lefts, rights = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"commit_id": pa.array(commits, pa.int64()), "l": pa.array(lefts, pa.string())}
    return lives(pa.table({**columns, "r": pa.array(rights, pa.string())}), ("l", "r"), len(rows) - later)


def found(*rows: tuple[int, str, str]) -> list[int | None]:
    return lived(*rows).until.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


def test_a_row_lasts_until_the_next_of_its_identity() -> None:
    assert found((1, "a", "x"), (1, "b", "x"), (3, "a", "x"), (3, "a", "y"), (4, "a", "x")) == [3, None, 4, None, None]
    assert found((7, "a", "x")) == [None]
    assert found() == []


def test_rows_that_last_come_first() -> None:
    rows = ((3, "b", "x"), (1, "a", "x"), (1, "b", "x"), (2, "c", "x"), (2, "a", "x"), (4, "c", "x"))
    whole = lived(*rows)
    assert whole.order.tolist() == [4, 0, 5, 1, 2, 3], "each part by commit and identity, however the rows came"
    assert whole.lasting == Lasting(3, 6)
    known_of = lived(*rows, later=1)
    assert (known_of.order.tolist(), known_of.lasting) == ([4, 0, 1, 2, 3], Lasting(2, 5)), "c ends by a later file"
    assert lived().lasting == Lasting(0, 0)


def test_rows_of_one_identity_and_commit_stay_in_their_order() -> None:
    twice = lived((1, "b", "x"), (1, "a", "x"), (1, "a", "x"), (2, "b", "x"))
    assert (twice.order.tolist(), twice.lasting) == ([1, 2, 0, 3], None)


def test_more_rows_that_last_than_there_are_say_nothing() -> None:
    answer: dict[object, Lasting] = {(6, 9): Lasting(6, 9), (0, 0): Lasting(0, 0), (9, 9): Lasting(9, 9)}
    for pair in (*answer, (10, 9), (-1, 9), ("1", 9), (True, 9), (None, 9), (1,), 7, None):
        document = json.dumps({"lasting": pair}).encode()
        assert lasting_in({ORIGIN: document}) == (answer.get(pair) if isinstance(pair, tuple) else None), pair


@pytest.fixture(autouse=True)
def _files_are_scanned_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ontology.query.type_table.SMALL_BYTES", 0)


async def test_a_snapshot_says_it_and_readers_need_not_group(desk: Desk) -> None:
    async with desk.session(Thing, compaction=False) as onto:
        for number in range(9):
            onto.ensure([Thing(id="a", value=number), Thing(id=f"b{number}", value=0)])
            await onto.commit()
    (made,) = await Compactor(desk.store, desk.ambient, fan=8).compact(THING)
    table_bytes = desk.shelf.objects[made.entry.path].body
    table = pq.read_table(pa.BufferReader(table_bytes))
    # The head is not in the snapshot, and ends a row of it all the same.
    assert table.column("_until").to_pylist() == [*[None] * 8, *range(2, 10)]
    assert lasting_in(table.schema.metadata) == Lasting(8, 16)
    ledger = await Chain(desk.store).ledger((await read_head(desk.store)).place)
    assert known(table.schema.metadata) == ledger.head_of(THING)
    for more in (0, 1):
        async with desk.session(Thing, compaction=False) as onto:
            onto._warm.table_bytes = len(table_bytes) - 1  # so that the snapshot is scanned where it lies
            query = onto.query(Thing)
            if more:
                onto.ensure(Thing(id="a", value=9))
                await onto.commit()
            sql = (await query.explain()).sql
            assert ("JOIN" in sql) == bool(more), "the snapshot knows the files that were there when it was made"
            assert (await query.where(Thing.value > 0).all()) == [Thing(id="a", value=8 + more)]
            assert (await query.as_of(5).where(Thing.value > 0).all()) == [Thing(id="a", value=4)]
            assert (await query.as_of(8).where(Thing.value > 0).all()) == [Thing(id="a", value=7)]
            assert await query.as_of(5).count() == 6
            history = await query.with_history().where(Thing.id == "a").all()
            assert [one.value for one in history] == list(range(9 + more))


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
    assert lasting_in(table.schema.metadata) is None
    assert table.column("commit_id").to_pylist() == sorted(table.column("commit_id").to_pylist())


async def test_ends_by_commits_that_are_on_no_chain_any_more_are_none(desk: Desk) -> None:
    """A backup of the ninth commit is restored under a snapshot that knows twelve; then others come."""

    async def write(onto: Ontology, *keys: str, value: int) -> None:
        onto.ensure([Thing(id=key, value=value) for key in keys])
        await onto.commit()

    async with desk.session(Thing, compaction=False) as onto:
        for number in range(1, 10):
            await write(onto, "a", "b", f"c{number}", value=number)
    backup = dict(desk.shelf.objects)
    async with desk.session(Thing, compaction=False) as onto:
        for number in range(10, 13):
            await write(onto, "a", "c1", value=number)
    await Compactor(desk.store, desk.ambient, fan=8).compact(THING)
    made = {key: each for key, each in desk.shelf.objects.items() if key.startswith((layout.SNAPSHOTS, layout.INDICES))}
    (body,) = [each.body for key, each in made.items() if key.startswith(layout.SNAPSHOTS)]
    assert 10 in pq.read_table(pa.BufferReader(body)).column("_until").to_pylist(), "c1 ends there"
    await desk.store.delete_many([key for key in desk.shelf.objects if key not in backup | made])
    for key, each in (backup | made).items():
        await desk.store.put(key, each.body)
    for more in (10, 11, 12, 13):
        async with desk.session(Thing, compaction=False) as onto:
            await write(onto, "b", value=more)
        for table_bytes in (0, 10**6):
            async with desk.session(Thing, compaction=False) as onto:
                onto._warm.table_bytes = table_bytes
                for _ in range(3):
                    found = {one.id: one.value for one in await onto.query(Thing).all()}
                    assert found == {"a": 9, "b": more, **{f"c{number}": number for number in range(1, 10)}}
                    assert await onto.query(Thing).as_of(8).count() == 10
    report = await verify(desk.store, deep=True)
    assert [each.kind for each in report.findings if each.kind.startswith(("snapshot", "stats"))] == []


async def test_snapshots_of_snapshots_answer_as_commits_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ontology.maintain.merge.ROW_GROUP", 8)
    monkeypatch.setattr("holdfast.ontology.maintain.merge.HELD_BYTES", 0)
    desk = Desk()
    for number, whole in enumerate((True, False, False, True)):
        await written(desk, 9, first=1 + 9 * number)
        before = await answers(desk, table_bytes=0)
        await Compactor(desk.store, desk.ambient, fan=3, whole=whole).compact(THING)
        for table_bytes in (0, 10**6):
            after = await answers(desk, table_bytes=table_bytes)
            assert after == before
        assert (await verify(desk.store, deep=True)).good
    (path,) = (each.path for each in (await read_index(desk.store, THING)).entries if each.snapshot)
    with pq.ParquetFile(pa.BufferReader(desk.shelf.objects[path].body)) as file:
        groups = [file.read_row_group(number).column("_until") for number in range(file.num_row_groups)]
    assert all(group.null_count in (0, len(group)) for group in groups), "no row group has rows of both sorts"
