"""Queries by real classes: results, what they cost, which files they leave alone, and what they refuse."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import holdfast
from holdfast.base.clock import SystemClock
from holdfast.base.errors import Invalid, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.local.store import LocalStore
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.chain.history import Window
from holdfast.ontology.filters.operand import Sql
from holdfast.ontology.query.engine import Snapshot
from holdfast.ontology.query.results import NoResult, SeveralResults, meta
from holdfast.ontology.query.statement import Ask
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.expressions.terms import FieldExpr, count
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.plain import PlainWriter
from tests.unit.ontology.shop import Customer, Order, Product, Subscription, Tier


class Unhurried(SystemClock):
    """A session that is never idle flushes nothing while its requests are counted, however slow the machine."""

    def monotonic_ns(self) -> int:
        return 0


def session(desk: Desk, *types: type) -> Ontology:
    ambient = Ambient(Unhurried(), desk.ambient.rng)
    return Ontology(desk.store, ambient, types or (Customer, Product, Subscription, Order))


async def stocked(desk: Desk, *, commits: int = 4, rows: int = 5) -> None:
    """Commit n writes customers n0 to n4: key ranges do not overlap, and each commit has a tier of its own."""
    async with session(desk) as onto:
        for number in range(commits):
            found = [Customer(id=f"{number}{row}", name=f"n{row}", tier=f"t{number}") for row in range(rows)]
            onto.ensure(found)
            await onto.commit()
    desk.spent()


# --- by key ---


class Part(Entity):
    number: Field[int] = Field(primary_key=True)
    size: Field[int]


class Device(Entity):
    id: Field[UUID] = Field(primary_key=True)
    size: Field[int]


class Fits(Relation[Part, Device]):
    day: Field[date] = Field(instance_key=True)
    size: Field[int]


KEYS: list[tuple[Any, Any, Any]] = [
    (int, -7, 70),
    (int, 2**63 - 1, 7),
    (UUID, UUID(int=7), UUID(int=8)),
    (date, date(2024, 2, 29), date(2024, 3, 1)),
    (datetime, datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC), datetime(2024, 2, 29, tzinfo=UTC)),
    (Tier, Tier.GOLD, Tier.STANDARD),
]


@pytest.mark.parametrize(("of", "key", "other"), KEYS)
async def test_get_by_a_key_of_any_type(of: Any, key: Any, other: Any, desk: Desk) -> None:
    body = {"__annotations__": {"key": Field[of], "size": Field[int]}, "key": Field(primary_key=True)}
    python: Any = type("Keyed", (Entity,), body)

    def made(value: Any, size: int) -> Any:
        return python(key=value, size=size)

    async with session(desk, python) as onto:
        for size in range(3):
            onto.ensure([made(key, size), made(other, 9)])
            await onto.commit()
        assert await onto.get(python, key) == made(key, 2)
        onto.retract(python, other)
        await onto.commit()
        assert await onto.get(python, other) is None
        assert await onto.all(python) == [made(key, 2)]
    async with session(desk, python) as onto:
        assert await onto.get(python, key) == made(key, 2)
        assert await onto.get(python, other) is None


async def test_get_of_a_relation_takes_entities_or_keys_and_all_parts_of_the_identity(desk: Desk) -> None:
    part, device = Part(number=7, size=1), Device(id=UUID(int=7), size=2)
    async with session(desk, Part, Device, Fits) as onto:
        onto.ensure([Fits(left_key=7, right_key=device, day=date(2024, 1, day), size=day) for day in (1, 2)])
        onto.ensure(Fits(left_key=70, right_key=device, day=date(2024, 1, 1), size=70))
        await onto.commit()
        for left_key, right_key in ((part, device), (7, UUID(int=7))):
            found = await onto.get(Fits, left_key, right_key, date(2024, 1, 2))
            assert found == Fits(left_key=7, right_key=device, day=date(2024, 1, 2), size=2)
            assert meta(found).commit_id == 1
        assert await onto.get(Fits, 7, device, date(2024, 1, 3)) is None
        with pytest.raises(Invalid, match="3 keys"):
            await onto.get(Fits, 7, device)


# --- results ---


async def test_results_of_all_kinds(desk: Desk) -> None:
    async with session(desk) as onto:
        onto.ensure([Customer(id="a", name="Ada", tier="Gold"), Customer(id="b", name="Bo"), Product(id=3)])
        await onto.commit()
        query = onto.query(Customer)
        assert await query.all() == [Customer(id="a", name="Ada", tier="Gold"), Customer(id="b", name="Bo")]
        assert await query.order_by(Customer.name.desc()).first() == Customer(id="b", name="Bo")
        assert await query.where(Customer.tier == "Gold").one() == Customer(id="a", name="Ada", tier="Gold")
        assert await query.limit(1).count() == 1
        assert await query.offset(1).dicts() == [{"id": "b", "name": "Bo", "tier": None}]
        assert await query.select("name").dicts() == [{"name": "Ada"}, {"name": "Bo"}]
        assert (await query.arrow()).to_pydict() == {"id": ["a", "b"], "name": ["Ada", "Bo"], "tier": ["Gold", None]}
        assert (await query.select(Customer.name).pandas()).columns.tolist() == ["name"]
        assert (await query.polars()).rows() == [("a", "Ada", "Gold"), ("b", "Bo", None)]
        assert [one.id async for one in query.stream()] == ["a", "b"]
        assert await onto.query(Product).where(Product.id == 3).one() == Product(id=3)
        with pytest.raises(NoResult, match="no Customer"):
            await query.where(Customer.name == "Cy").one()
        with pytest.raises(SeveralResults, match="more than one Customer"):
            await query.one()
        assert await query.where(Customer.name == "Cy").first() is None
        with pytest.raises(Invalid, match="was not made by a query"):
            meta(Customer(id="x", name="y"))


# --- cost ---


async def test_new_commits_cost_what_is_new(desk: Desk) -> None:
    await stocked(desk)
    async with session(desk) as onto:
        await onto.query(Customer).all()
        async with session(desk) as other:
            other.ensure(Customer(id="9", name="new"))
            await other.commit()
            desk.spent()
            assert await onto.query(Customer).count() == 21
            assert desk.spent() == {"get": 3}  # head, manifest, file
            onto.ensure(Customer(id="91", name="own"))
        await onto.commit()
        desk.spent()
        assert await onto.query(Customer).count() == 22
        assert desk.spent() == {"get": 2}  # its own manifest is known: head, file


async def test_files_are_pruned_by_columns_and_commits(desk: Desk) -> None:
    await stocked(desk)
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert await query.where(Customer.tier == "t1").count() == 5
        assert desk.spent() == {"get": 4}
        assert await query.where(Customer.tier.startswith("t2")).as_of(2).count() == 0
        assert desk.spent() == {"get": 1}
        assert await query.history_since(3).count() == 5
        assert desk.spent() == {"get": 2}


async def test_a_query_explains_itself(desk: Desk) -> None:
    async with session(desk) as onto:
        for key in ("a", "b", "c"):
            onto.ensure(Customer(id=key, name="n", tier=key))
            await onto.commit()
        query = onto.query(Customer).where(Customer.id == "b")
        found = await query.explain()
        assert [(file.use, file.reason) for file in found.tables[0].files] == [
            ("pruned", "keys"),
            ("rows", ""),
            ("pruned", "keys"),
        ]
        assert (found.head, found.window) == (3, Window(0, 3, history=False))
        assert found.requests == 3  # head, index, file
        assert found.received_bytes is not None
        assert found.received_bytes > 0
        again = await query.explain()
        assert again.requests == 1
        assert again.plan
        assert again.plan not in str(again)
        text = str(await query.explain(profile=True))
        assert "Customer: 1 of 3 files" in text
        assert "Total Time" in text
        by_tier = await onto.query(Customer).where(Customer.tier == "c").as_of(2).explain()
        assert [file.reason for file in by_tier.tables[0].files] == ["columns", "columns", "commits"]


# --- moments ---


# --- manners ---


class Aged(Entity, name="Customer"):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]


async def test_files_of_the_store_are_not_written_into(tmp_path: Path) -> None:
    """Two rows of one identity and commit are made one in a file of the session's own."""
    uri = f"file:{tmp_path / 'store'}"
    async with LocalStore(tmp_path / "store") as store:
        rows = [("c1", {"id": "c1", "age": 1}), ("c1", {"id": "c1", "age": 2}), ("c2", {"id": "c2", "age": 3})]
        await PlainWriter(store).commit({("entity", "Customer"): rows})
    (path,) = (tmp_path / "store").rglob("Customer.parquet")
    before = path.read_bytes()
    async with holdfast.open(uri) as hf, hf.ontology(Aged) as onto:
        for _ in range(2):
            assert {one.id: one.age for one in await onto.query(Aged).all()} == {"c1": 2, "c2": 3}
        assert await onto.query(Aged).with_history().count() == 2
    assert path.read_bytes() == before


async def test_files_that_come_between_a_statement_and_its_run_are_not_in_it(desk: Desk) -> None:
    """Several questions of one session share the table of small files."""
    await stocked(desk, commits=20)
    async with session(desk) as onto:
        query = onto.query(Customer)
        for asked in (query.ask, query.where(Customer.tier != "t3").ask, query.history_since(17).ask):

            async def question(snapshot: Snapshot, asked: Ask = asked) -> Sql:
                rows = await snapshot.rows(asked)
                return rows.select(["r.commit_id"], ordered=False)

            first = await onto._engine.ask(question)
            before = (await onto._warm.duck.table(first.text, list(first.params))).num_rows
            onto.ensure(Customer(id=f"late{before}", name="x"))
            await onto.commit()
            assert await query.count() > before - 5
            assert (await onto._warm.duck.table(first.text, list(first.params))).num_rows == before


async def test_a_query_and_a_session_say_what_they_are(desk: Desk) -> None:
    async with session(desk) as onto:
        assert repr(onto.query(Customer).limit(1)) == "<Query of Customer>"
        assert repr(onto) == "<Ontology of Customer, Product, Subscription, Order>"
        onto.ensure(Customer(id="a", name="Ada"))
        assert repr(onto) == "<Ontology of Customer, Product, Subscription, Order, 1 intents not committed>"
        onto.discard()


async def test_a_closed_session_refuses(desk: Desk) -> None:
    await stocked(desk, commits=1)
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert await query.count() == 5
    for asked in (query.all, query.arrow, query.explain, onto.commit, lambda: onto.get(Customer, "00")):
        with pytest.raises(Refused, match="the session is closed"):
            await asked()
    with pytest.raises(Refused, match="the session is closed"):
        onto.ensure(Customer(id="x", name="y"))


async def test_extremes_are_answered_or_refused_in_words(desk: Desk) -> None:
    await stocked(desk, commits=1)
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert len(await query.limit(10**30).all()) == 5
        assert await query.offset(2**64).all() == []
        many = reduce(or_, [Customer.name == f"n{number}" for number in range(3_000)])
        assert await query.where(many).count() == 5
        assert await query.where(reduce(and_, [Customer.name != f"x{number}" for number in range(3_000)])).count() == 5
        assert await query.where(Customer.id.in_([str(number) for number in range(20_000)])).count() == 0


class Odd(Entity):
    id: Field[str] = Field(primary_key=True)
    whole: Field[int | None] = Field(default=None)
    money: Field[Decimal | None] = Field(default=None)
    either: Field[int | float | None] = Field(default=None)
    any: Field[Any] = Field(default=None)
    at: Field[datetime | None] = Field(default=None)
    more: Field[dict[str, Any]] = Field(default_factory=dict)


class Seat(Relation[Odd, Odd]):
    number: Field[int] = Field(instance_key=True)


async def test_groups_are_exact_whatever_the_values_are(desk: Desk) -> None:
    """Nothing is rounded, and nothing but null and what is unlike goes to the group of null."""
    huge, fine = 2**63 - 2, Decimal("0.123456789012345678")
    async with desk.session(Odd, Seat) as onto:
        onto.ensure(
            [
                Odd(id="a", whole=huge, money=Decimal("1E+19"), either=math.inf, any=3, more={"x": True}),
                Odd(id="b", whole=huge + 1, money=fine, either=1, any="3", more={"x": 1}),
                Odd(id="c", whole=huge, money=fine, either=1.0, any=3.0, more={"x": "1"}),
                Odd(id="d", whole=1, money=Decimal("1.10"), any=[3], more={"x": None}),
                Odd(id="e", money=Decimal("1.1")),
            ]
        )
        onto.ensure(
            [Seat(left_key=one, right_key="a", number=number) for one, number in (("a", 9), ("b", 10), ("c", 9))]
        )
        await onto.commit()

        async def groups(term: FieldExpr[Any]) -> list[tuple[Any, int]]:
            found = await onto.query(Odd).group_by(term).agg(n=count())
            return [(next(iter(group.values())), group["n"]) for group in found]

        assert await groups(Odd.whole) == [(1, 1), (huge, 2), (huge + 1, 1), (None, 1)]
        assert await groups(Odd.money) == [(fine, 2), (Decimal("1.1"), 2), (Decimal("1E+19"), 1)]
        assert await groups(Odd.either) == [(1, 2), (math.inf, 1), (None, 2)]
        assert await groups(Odd.any) == [(3, 2), ("3", 1), (None, 2)]
        assert await groups(Odd.more.path("x")) == [(True, 1), (1, 1), ("1", 1), (None, 2)]
        assert await onto.query(Seat).group_by(Seat.number).agg(n=count()) == [
            {"number": 9, "n": 2},
            {"number": 10, "n": 1},
        ]


async def test_figures_of_values_without_a_column_and_of_times(desk: Desk) -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    async with desk.session(Odd, Seat) as onto:
        onto.ensure([Odd(id="a", any=3, either=1, at=noon), Odd(id="b", any=1.5, either=0.5, at=noon)])
        onto.ensure([Odd(id="c", any="x", more={"x": [1, 2, 3]}), Odd(id="d", any=3.0)])
        onto.ensure([Seat(left_key="a", right_key="b", number=number) for number in (9, 10)])
        await onto.commit()
        found = await onto.query(Odd).agg(
            total=Odd.any.sum(),
            mean=Odd.either.avg(),
            least=Odd.any.min(),
            middle=Odd.any.quantile(0.5),
            kinds=Odd.any.count_distinct(),
            last=Odd.at.max(),
            length=Odd.more.path("x").avg_len(),
        )
        assert found == {
            "total": 7.5, "mean": 0.75, "least": 1.5, "middle": 3, "kinds": 2, "last": noon, "length": 3.0,
        }  # fmt: skip
        seats = onto.query(Seat)
        assert await seats.agg(most=Seat.number.max(), sum=Seat.number.sum()) == {"most": 10, "sum": 19}
