"""Numbers that their columns cannot hold: refused on write, named on read where another writer has written them."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.base.errors import Invalid
from holdfast.ontology import Entity, Field
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.types.errors import InvalidValue
from tests.unit.ontology.desk import Desk


class Sum(Entity):
    id: Field[str] = Field(primary_key=True)
    whole: Field[int | None] = Field(default=None)
    money: Field[Decimal | None] = Field(default=None)
    parts: Field[list[int]] = Field(default_factory=list)


HELD: list[dict[str, Any]] = [
    {"whole": 2**63 - 1, "money": Decimal("99999999999999999999.999999999999999999")},
    {"whole": -(2**63), "money": Decimal("-1E+19")},
    {"money": Decimal("1.10000000000000000000"), "parts": [2**63 - 1]},
    {"money": Decimal("0E+30")},
]


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"whole": 2**63}, "Sum.whole"),
        ({"whole": -(2**63) - 1}, "Sum.whole"),
        ({"money": Decimal(10) ** 20}, "Sum.money"),
        ({"money": Decimal("1E-19")}, "Sum.money"),
        ({"parts": [1, 2**64]}, r"Sum.parts\[1\]"),
    ],
)
async def test_what_no_column_holds_is_refused_by_name(values: dict[str, Any], place: str, desk: Desk) -> None:
    async with desk.session(Sum) as onto:
        with pytest.raises(InvalidValue, match=rf"{place}, number 1: Input should be .*, found "):
            onto.ensure([Sum(id="a"), Sum(id="b", **values)])
        assert await onto.commit() is None
        if "parts" in values:
            return
        ((name, value),) = values.items()
        column = pa.array([None, str(value)])
        table = pa.table({"id": ["a", "b"], name: column})
        with pytest.raises(InvalidValue, match=rf"{place}, number 1"):
            onto.ensure(table.set_column(1, name, column), of=Sum)


async def test_what_fits_comes_back_in_every_table(desk: Desk) -> None:
    async with desk.session(Sum) as onto, SqlTables(desk.store) as tables:
        onto.ensure([Sum(id=str(number), **values) for number, values in enumerate(HELD)])
        await onto.commit()
        found = (await onto.query(Sum).arrow()).to_pylist()
        shown = (await tables.run("select whole, money from Sum order by id")).to_pylist()
        for number, values in enumerate(HELD):
            assert {name: found[number][name] for name in ("whole", "money")} == shown[number]
            assert (shown[number]["whole"], shown[number]["money"]) == (values.get("whole"), values.get("money"))
        table = await onto.query(Sum).arrow()
        wanted = await onto.query(Sum).all()
    async with Desk().session(Sum) as onto:
        onto.ensure(table, of=Sum)
        await onto.commit()
        assert await onto.query(Sum).all() == wanted


async def test_numbers_of_another_writer_are_named_and_not_null(desk: Desk) -> None:
    async with desk.session(Sum) as onto:
        onto.ensure(Sum(id="a", whole=1))
        await onto.commit()
    await desk.plain.commit({("entity", "Sum"): [("b", {"id": "b", "whole": 2**70, "money": "1E+30", "parts": []})]})
    async with desk.session(Sum) as onto, SqlTables(desk.store) as tables:
        assert (await onto.get(Sum, "b")).whole == 2**70  # type: ignore[union-attr]  # it is there
        assert [one.id for one in await onto.query(Sum).where(Sum.whole > 1).all()] == ["b"]
        with pytest.raises(Invalid, match=r"Sum\.whole: BIGINT cannot hold 1180591620717411303424"):
            await onto.query(Sum).select("whole").arrow()
        for name in ("whole", "money"):
            with pytest.raises(Invalid, match=rf"Sum\.{name}: .* cannot hold 1"):
                await tables.run(f"select {name} from Sum")
        assert (await tables.run("select id from Sum order by id")).column("id").to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "value"), [("whole", 2.5), ("money", "1E-19"), ("money", "34873660746309966351.2018283108915297326")]
)
async def test_numbers_of_another_writer_are_not_rounded(name: str, value: Any, desk: Desk) -> None:
    async with desk.session(Sum) as onto:
        onto.ensure(Sum(id="a", whole=1))
        await onto.commit()
    await desk.plain.commit({("entity", "Sum"): [("b", {"id": "b", "whole": 7, "money": "-1.50E+3"})]})
    async with SqlTables(desk.store) as tables:
        found = await tables.run("select whole, money from Sum order by id")
        assert found.to_pylist() == [{"whole": 1, "money": None}, {"whole": 7, "money": Decimal(-1500)}]
        await desk.plain.commit({("entity", "Sum"): [("c", {"id": "c", name: value})]})
        with pytest.raises(Invalid, match=rf"Sum\.{name}: .* cannot hold {str(value)[:3]}"):
            await tables.run(f"select {name} from Sum")


class Seal(Entity):
    id: Field[str] = Field(primary_key=True)
    body: Field[bytes | None] = Field(default=None)
    bodies: Field[list[list[bytes]]] = Field(default_factory=list)
    at: Field[datetime | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)
    flags: Field[list[bool]] = Field(default_factory=list)


async def test_values_of_another_writer_are_the_same_in_sql_and_in_queries(desk: Desk) -> None:
    async with desk.session(Seal) as onto:
        onto.ensure(Seal(id="a", body=b"\x00\xff"))
        await onto.commit()
    fields = {
        "body": "AP8=",
        "bodies": [["AP8=", ""], []],
        "at": "2024-05-01T14:00:00+02:00",
        "day": "2024-05-01",
        "tags": ["x, y", "z"],
    }
    await desk.plain.commit({("entity", "Seal"): [("b", {"id": "b", "flags": [True], **fields})]})
    async with desk.session(Seal) as onto, SqlTables(desk.store) as tables:
        wanted = (await onto.query(Seal).arrow()).to_pylist()
        found = (await tables.run('select id, body, bodies, "at", day, tags, flags from Seal order by id')).to_pylist()
        assert found == wanted
        assert (found[1]["body"], found[1]["bodies"]) == (b"\x00\xff", [[b"\x00\xff", b""], []])
