"""Types as SQL tables, and all that SQL must not do."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Corrupt, Invalid, NotFound, Refused
from holdfast.objects.store import OVERWRITE
from holdfast.ontology import Entity, Field
from holdfast.ontology.filters.operand import quoted
from holdfast.ontology.query.sqltables import SqlTables
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Customer, Everything, Order, Product, Subscription, everything


class Loose(Entity):
    id: Field[str] = Field(primary_key=True)
    more: Field[Any] = Field(default=None)


async def shop(desk: Desk) -> None:
    async with desk.session(Customer, Product, Subscription, Order, Everything) as onto:
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


async def test_types_are_tables(desk: Desk) -> None:
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


REFUSED = [
    "create table x (i int)",
    "insert into Customer values (1)",
    "drop view Customer",
    "attach 'x.db'",
    "install httpfs",
    "set threads = 1",
    "pragma database_list",
    "call pragma_version()",
    "use memory",
    "prepare x as select 1",
    "create temp macro f() as table select * from read_csv('/etc/passwd')",
    "copy Customer to 'x.csv'",
    "explain analyze copy (select 1) to 'x.csv'",
    "select 1; drop table x",
    "select * from Customer; select * from read_csv('/etc/passwd')",
    "select (select count(*) from glob('/*'))",
    "with x as (select * from read_parquet('x')) select * from x",
    "explain analyze select * from read_csv('/etc/passwd')",
    "select * from duckdb_secrets()",
    "select * from store.pool_0",
    "select * from query('select 1')",
    "select * from query_table('Customer')",
    "select * from 's3://bucket/key.parquet'",
    "select * from memory.main.Customer",
    "select * from information_schema.tables",
    "select * from json_execute_serialized_sql('{}')",
    "select * from Customer limit (select count(*) from glob('/*'))",
    "select unnest(list_transform([1], lambda x: (select count(*) from glob('/*'))))",
    "select * from " + "(select * from " * 450 + "Customer" + ")" * 450,
    "select " + "not " * 900 + "true",
    "select " + "[" * 100 + "]" * 100,
    "select " + "+".join(["1"] * 100_000),
]


async def test_what_writes_or_leaves_the_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    desk = Desk()
    await shop(desk)
    async with SqlTables(desk.store) as sql:
        for text in REFUSED:
            await sql.run("select * from Customer")
            with pytest.raises((Refused, Invalid, NotFound)):
                await sql.run(text)
            assert await rows(sql, "select count(*) from Customer") == [(1,)], text[:100]
    assert list(tmp_path.iterdir()) == []


async def test_users_statements_run_in_a_database_with_nothing_but_views(desk: Desk) -> None:
    """Also after statements over so many files that an ontology session would load them into tables."""
    await shop(desk)
    async with desk.session(Customer) as onto:
        for number in range(20):
            onto.ensure(Customer(id=f"c{number}", name="Cy"))
            await onto.commit()
    async with SqlTables(desk.store) as sql:
        for _ in range(3):
            assert await rows(sql, "select count(*) from Customer") == [(21,)]
        user, ours = await sql._duck(), sql._warm.duck
        assert user is not ours
        views = await user.table("SELECT view_name AS name FROM duckdb_views() WHERE NOT internal")
        assert views.column("name").to_pylist() == ["Customer"]
        for duck in (user, ours):
            assert (await duck.table("SELECT * FROM duckdb_tables()")).num_rows == 0
        assert (await ours.table("SELECT * FROM duckdb_views() WHERE NOT internal")).num_rows == 0


async def test_mistakes_are_explained(desk: Desk) -> None:
    await shop(desk)
    async with SqlTables(desk.store) as sql:
        with pytest.raises(NotFound, match="no table Custmer") as raised:
            await sql.run("select * from Custmer")
        assert raised.value.remedy == "did you mean Customer?"
        with pytest.raises(NotFound, match=r"no table x\.csv"):
            await sql.run("select * from 'x.csv'")
        with pytest.raises(Invalid, match="nme") as answer:
            await sql.run("select nme from Customer")
        first, candidates, place, mark = str(answer.value).split("\n")
        assert "not found" in first
        assert '"name"' in candidates, "DuckDB's suggestions, of all columns"
        assert place.index("nme") == mark.index("^")
        with pytest.raises(Refused, match="PIVOT without its values") as pivot:
            await sql.run("pivot Customer on tier using count(*)")
        assert "IN ('Gold', 'Std')" in str(pivot.value.remedy)
        assert (await sql.run("pivot Customer on tier in ('Std') using count(*)")).num_rows == 1
        with pytest.raises(Invalid, match="no statement"):
            await sql.run(" ; ")
        with pytest.raises(Invalid, match="syntax error"):
            await sql.run("selec 1")


async def test_several_statements_have_several_results_and_are_all_looked_at_first(desk: Desk) -> None:
    await shop(desk)
    async with SqlTables(desk.store) as sql:
        found = await sql.run_all("select 1 as a; select id from Customer; ")
        assert [each.to_pylist() for each in found] == [[{"a": 1}], [{"id": "b"}]]
        desk.spent()
        with pytest.raises(Refused, match="DROP"):
            await sql.run_all("select * from Customer; drop table Customer")
        assert desk.spent() == {}, "the first one was not run either"


ODD = ("a?b", "a{}b", 'x"y', "q'r", "s;drop view x", "dol$x", "back`t", "new\nline", "ключ", "a.b", "$1", "x || y")


async def odd_names(desk: Desk) -> None:
    """Fields as another writer may call them."""
    fields = {name: f"{name}!" for name in ODD}
    await desk.plain.commit({("entity", "Odd"): [("k", {"id": "k", **fields}), ("l", {"id": "l"})]})
    described = {name: {"primary_key": name == "id", "index": False, "type": "str | None"} for name in ("id", *ODD)}
    schema = json.dumps({"entity_name": "Odd", "fields": described})
    version = {"schema_version_id": 1, "schema_json": schema, "schema_hash": "x", "created_at": "", "reason": ""}
    document = {"type_kind": "entity", "type_name": "Odd", "versions": [version]}
    await desk.bare.put("meta/schema/versions/entity/Odd.json", json.dumps(document).encode(), OVERWRITE)


async def test_names_of_fields_are_never_sql(desk: Desk) -> None:
    await odd_names(desk)
    async with SqlTables(desk.store) as sql:
        (first, _) = (await sql.run("select * from Odd order by id")).to_pylist()
        assert {name: first[name] for name in ODD} == {name: f"{name}!" for name in ODD}
        for name in ODD:
            text = "'{}!'".format(name.replace("'", "''"))
            found = await sql.run(
                f"select {quoted(name)} from Odd where {quoted(name)} = {text} order by {quoted(name)}"
            )
            assert found.column(name).to_pylist() == [f"{name}!"]


@pytest.mark.parametrize(
    "value", ["'; drop view Customer; --", '"', "?", "{}", "$1", "\\", "%", "\u0000", "x" * 100_000]
)
async def test_values_are_never_sql(value: str, desk: Desk) -> None:
    async with desk.session(Customer) as onto:
        onto.ensure([Customer(id="a", name=value), Customer(id="b", name="other")])
        await onto.commit()
        query = onto.query(Customer)
        for condition in (Customer.name == value, Customer.name.contains(value), Customer.name.in_([value])):
            assert [one.id for one in await query.where(condition).all()] == ["a"]


async def test_fields_that_are_not_json_are_named(desk: Desk) -> None:
    await desk.plain.commit({("entity", "Customer"): [("a", {"id": "a", "name": "Ada"})]})
    await desk.plain.commit({("entity", "Customer"): [("b", {"id": "b"})]})
    (path,) = (key for key in desk.shelf.objects if key.startswith("commits/2") and key.endswith(".parquet"))
    table = pq.read_table(pa.BufferReader(desk.shelf.objects[path].body))
    number = table.column_names.index("fields_json")
    sink = pa.BufferOutputStream()
    pq.write_table(table.set_column(number, "fields_json", pa.array(["{broken"])), sink)
    await desk.bare.put(path, sink.getvalue().to_pybytes(), OVERWRITE)
    async with desk.session(Customer) as onto:
        with pytest.raises(Corrupt, match="fields_json of another writer is not JSON: entity_key 'b' commit_id 2"):
            await onto.query(Customer).where(Customer.name == "Ada").all()
        assert await onto.query(Customer).count() == 2
        assert [one.id for one in await onto.query(Customer).as_of(1).all()] == ["a"]


async def test_names_that_with_defines_hold_where_they_are_defined(desk: Desk) -> None:
    await shop(desk)
    async with SqlTables(desk.store) as sql:
        own = "with Customer as (select id from Customer) select * from Customer"
        assert await rows(sql, own) == [("b",)]
        async with desk.session(Customer) as onto:
            onto.ensure(Customer(id="c", name="Cy"))
            await onto.commit()
        assert sorted(await rows(sql, own)) == [("b",), ("c",)]  # not those of the view that was made before
        assert await rows(sql, "with Mine as (select 7 as n) select n from mine") == [(7,)]
        counting = "with recursive n as (select 1 as x union all select x + 1 from n where x < 3) select max(x) from n"
        assert await rows(sql, counting) == [(3,)]
        for behind in (
            "select * from sqlite_master, (with sqlite_master as (select 1) select 1)",
            "with sqlite_master as (select * from sqlite_master) select * from sqlite_master",
            "with a as (select 1) select * from main.a",
        ):
            with pytest.raises(NotFound, match="there is no table"):
                await sql.run(behind)


async def test_null_is_null_in_fields_of_no_simple_type(desk: Desk) -> None:
    async with desk.session(Loose) as onto:
        onto.ensure([Loose(id="a"), Loose(id="b", more="null"), Loose(id="c", more={"x": None}), Loose(id="d", more=3)])
        await onto.commit()
    async with SqlTables(desk.store) as sql:
        assert await rows(sql, "select id from Loose where more is null") == [("a",)]
        assert await rows(sql, "select count(more) from Loose") == [(3,)]
        found = await rows(sql, "select more, typeof(more) from Loose where more is not null order by id")
        assert found == [('"null"', "JSON"), ('{"x":null}', "JSON"), ("3", "JSON")]
