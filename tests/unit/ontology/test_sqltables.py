"""Types as SQL tables, and all that SQL must not do."""

from pathlib import Path

import pytest

from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.ontology.session import Ontology
from holdfast.ontology.sqltables import SqlTables
from holdfast.ontology.times import When
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Customer, Everything, Order, Product, Subscription, everything


async def shop(desk: Desk) -> None:
    async with Ontology(desk.store, desk.ambient, [Customer, Product, Subscription, Order, Everything]) as onto:
        onto.ensure([Customer(id="a", name="Ada", tier="Gold"), Customer(id="b", name="Bo"), Product(id=1)])
        onto.ensure([Subscription(left_key="a", right_key=1, seats=3), Order(left_key="a", right_key=1, number="n1")])
        onto.ensure(everything(counts={"x": 2}))
        await onto.commit()
        onto.ensure(Customer(id="b", name="Bo", tier="Std"))
        onto.retract(Customer, "a")
        await onto.commit()


async def rows(sql: SqlTables, text: str) -> list[tuple[object, ...]]:
    found = await sql.run(text)
    return [tuple(row.values()) for row in found.to_pylist()]


async def test_types_are_tables() -> None:
    desk = Desk()
    await shop(desk)
    async with SqlTables(desk.store) as sql:
        assert await rows(sql, "select * from Customer") == [("b", "Bo", "Std", 2)]
        assert await rows(sql, "select id, tier from customer__as_of_1 order by id") == [("a", "Gold"), ("b", None)]
        history = "select id, commit_id, retracted from Customer__history order by commit_id, id"
        assert await rows(sql, history) == [("a", 1, False), ("b", 1, False), ("a", 2, True), ("b", 2, False)]
        assert await rows(sql, 'select * from "Order"') == [("a", "1", "n1", None, 1)]
        assert await rows(sql, "select counts->>'x' as x, amount::varchar from Everything") == [
            ("2", "1.100000000000000000")
        ]
        joined = "select p.title, s.seats from Subscription s join Product p on p.id::varchar = s.right_key"
        assert await rows(sql, joined) == [("", 3)]
        assert await rows(sql, "with c as (select * from Customer) select count(*) from c") == [(1,)]
        using = "select s.seats from Subscription s join Subscription__history h using (left_key, right_key)"
        assert await rows(sql, using) == [(3,)]
        assert await rows(sql, "select count(*) from Customer natural join Customer__history") == [(1,)]
        names = [name for name, _ in await rows(sql, "show tables")]
        assert names == ["Customer", "Everything", "Product", "Order", "Subscription"]
        described = await sql.run("describe Product")
        assert described.column("column_name").to_pylist() == ["id", "title", "commit_id"]
        assert (await sql.run("explain select * from Customer")).num_rows == 1


async def test_a_session_as_of_a_commit() -> None:
    desk = Desk()
    await shop(desk)
    async with SqlTables(desk.store, when=When(last=1)) as sql:
        assert await rows(sql, "select count(*) from Customer") == [(2,)]


async def test_a_warm_statement_costs_one_request_and_sees_what_is_new() -> None:
    desk = Desk()
    await shop(desk)
    async with SqlTables(desk.store) as sql, Ontology(desk.store, desk.ambient, [Customer]) as onto:
        await sql.run("select * from Customer")
        desk.spent()
        await sql.run("select * from Customer")
        assert desk.spent() == {"get": 1}
        onto.ensure(Customer(id="c", name="Cy"))
        await onto.commit()
        assert await rows(sql, "select count(*) from Customer") == [(2,)]


@pytest.mark.parametrize(
    "text",
    [
        "create table x (i int)",
        "insert into Customer values (1)",
        "drop view Customer",
        "update Customer set name = 'x'",
        "delete from Customer",
        "attach 'x.db'",
        "install httpfs",
        "load httpfs",
        "set threads = 1",
        "pragma enable_profiling",
        "copy (select 1) to 'x.csv'",
        "copy Customer to 'x.csv'",
        "select * from read_csv('/etc/passwd')",
        "select * from (select * from read_text('/etc/passwd'))",
        "select (select count(*) from glob('/*'))",
        "with x as (select * from read_parquet('x')) select * from x",
        "explain analyze select * from read_csv('/etc/passwd')",
        "select * from duckdb_secrets()",
        "select * from store.pool_0",
        "select 1; drop table x",
        "export database 'x'",
        "call pragma_version()",
        "select * from query('select 1')",
    ],
)
async def test_what_writes_or_leaves_the_store_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    desk = Desk()
    await shop(desk)
    async with SqlTables(desk.store) as sql:
        await sql.run("select * from Customer")
        with pytest.raises((Refused, Invalid)):
            await sql.run(text)
        assert await rows(sql, "select count(*) from Customer") == [(1,)]
    assert list(tmp_path.iterdir()) == []


async def test_mistakes_are_explained() -> None:
    desk = Desk()
    await shop(desk)
    async with SqlTables(desk.store) as sql:
        with pytest.raises(NotFound, match="no table Custmer") as raised:
            await sql.run("select * from Custmer")
        assert raised.value.remedy == "did you mean Customer?"
        with pytest.raises(NotFound, match=r"no table x\.csv"):
            await sql.run("select * from 'x.csv'")
        with pytest.raises(Invalid, match="nme"):
            await sql.run("select nme from Customer")
        with pytest.raises(Invalid, match="no statement"):
            await sql.run(" ; ")
        with pytest.raises(Invalid, match="syntax error"):
            await sql.run("selec 1")
