"""Queries by real classes: results, what they cost, which files they leave alone, and what they refuse."""

import gc
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest

import holdfast
from holdfast.base.clock import SystemClock
from holdfast.base.errors import Corrupt, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.chain.history import Window
from holdfast.ontology.query import results
from holdfast.ontology.query.cache.prune import choose
from holdfast.ontology.query.results import NoResult, SeveralResults, meta
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.fields import left
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Customer, Everything, Order, Product, Subscription, Tier, everything


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


class Day(Entity):
    day: Field[date] = Field(primary_key=True)
    size: Field[int]


class Instant(Entity):
    at: Field[datetime] = Field(primary_key=True)
    size: Field[int]


class Rank(Entity):
    tier: Field[Tier] = Field(primary_key=True)
    size: Field[int]


class Fits(Relation[Part, Device]):
    day: Field[date] = Field(instance_key=True)
    size: Field[int]


KEYS: list[tuple[type[Entity], Any, Any]] = [
    (Part, -7, 70),
    (Part, 2**63 - 1, 7),
    (Device, UUID(int=7), UUID(int=8)),
    (Day, date(2024, 2, 29), date(2024, 3, 1)),
    (Instant, datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC), datetime(2024, 2, 29, tzinfo=UTC)),
    (Rank, Tier.GOLD, Tier.STANDARD),
]


@pytest.mark.parametrize(("python", "key", "other"), KEYS)
async def test_get_by_a_key_of_any_type(python: type[Entity], key: Any, other: Any) -> None:
    desk = Desk()
    name = type_info(python).key_field
    assert name is not None

    def made(value: Any, size: int) -> Entity:
        return python(**{name: value, "size": size})

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


async def test_get_of_a_relation_takes_entities_or_keys_and_all_parts_of_the_identity() -> None:
    desk = Desk()
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


async def test_results_of_all_kinds() -> None:
    desk = Desk()
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


async def test_every_type_comes_back_as_it_was() -> None:
    desk = Desk()
    one = everything(tags=["x"], counts={"a": 1}, anything={"b": [1, None]})
    async with session(desk, Everything) as onto:
        onto.ensure(one)
        await onto.commit()
        assert await onto.query(Everything).all() == [one]
        table = await onto.query(Everything).arrow()
        assert table.column("amount").to_pylist() == [one.amount]
        assert table.column("changed").to_pylist() == [one.changed]
        assert table.column("tags").to_pylist() == [["x"]]


async def test_objects_know_where_they_come_from() -> None:
    desk = Desk()
    async with session(desk) as onto:
        onto.ensure(Order(left_key="c", right_key=1, number="n7"))
        await onto.commit()
        (one,) = await onto.query(Order).all()
        assert (meta(one).commit_id, meta(one).key, meta(one).retracted) == (1, ("c", "1", "n7"), False)
        assert one == Order(left_key="c", right_key=1, number="n7")
    with pytest.raises(Invalid, match="was not made by a query"):
        meta(Customer(id="x", name="y"))


async def test_what_is_known_of_an_object_goes_with_it() -> None:
    desk = Desk()
    await stocked(desk, commits=1)
    async with session(desk) as onto:
        found = await onto.query(Customer).all()
        numbers = {id(one) for one in found}
        assert numbers <= results._metas.keys()
        found.clear()
        gc.collect()
        assert not numbers & results._metas.keys()


async def test_a_store_without_commits_and_a_type_without_rows() -> None:
    desk = Desk()
    async with session(desk) as onto:
        assert (await onto.query(Customer).all(), await onto.query(Customer).count()) == ([], 0)
        onto.ensure(Product(id=1))
        await onto.commit()
        assert await onto.query(Customer).as_of(1).all() == []
        assert (await onto.query(Customer).arrow()).num_rows == 0
        assert await onto.query(Subscription).linked() == []


# --- relations ---


async def test_a_missing_end_stays_null_where_files_of_the_end_are_pruned() -> None:
    desk = Desk()
    async with session(desk) as onto:
        onto.ensure([Customer(id="a", name="Ada", tier="Gold"), Product(id=1)])
        onto.ensure(Subscription(left_key="a", right_key=1))
        await onto.commit()
        query = onto.query(Subscription)
        assert await query.where(left(Subscription).tier.is_null()).all() == []
        assert await query.where(left(Subscription).tier == "Silver").all() == []


# --- cost ---


async def test_new_commits_cost_what_is_new() -> None:
    desk = Desk()
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


async def test_a_point_lookup_without_an_index_reads_one_file() -> None:
    desk = Desk()
    await stocked(desk)
    await desk.bare.delete("meta/indices/entities/Customer.json")
    async with session(desk) as onto:
        assert (await onto.query(Customer).where(Customer.id == "22").one()).name == "n2"
        assert desk.spent() == {"get": 4}


async def test_files_are_pruned_by_columns_and_commits() -> None:
    desk = Desk()
    await stocked(desk)
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert await query.where(Customer.tier == "t1").count() == 5
        assert desk.spent() == {"get": 4}
        assert await query.where(Customer.tier.startswith("t2")).as_of(2).count() == 0
        assert desk.spent() == {"get": 1}
        assert await query.history_since(3).count() == 5
        assert desk.spent() == {"get": 2}


async def test_a_newer_row_that_does_not_match_hides_an_older_one_that_does() -> None:
    desk = Desk()
    async with session(desk) as onto:
        onto.ensure(Customer(id="a", name="Ada", tier="Gold"))
        await onto.commit()
        onto.ensure(Customer(id="a", name="Ada", tier="Std"))
        await onto.commit()
        gold = onto.query(Customer).where(Customer.tier == "Gold")
        assert await gold.all() == []
        assert await gold.as_of(1).count() == 1
        assert await gold.with_history().count() == 1


async def test_what_becomes_of_each_file() -> None:
    desk = Desk()
    async with session(desk) as onto:
        for number, (key, tier) in enumerate([("a", "x"), ("b", "y"), ("a", "y"), ("c", "y")]):
            onto.ensure(Customer(id=key, name=str(number), tier=tier))
            await onto.commit()
        resolved = await onto._engine.files(type_info(Customer).type_id, await onto._engine.pinned(), 4)
        shape = type_info(Customer)

        def chosen(condition: object, window: Window) -> list[str]:
            predicate = condition.predicate  # type: ignore[attr-defined]  # a condition
            return [each.use for each in choose(resolved.entries, window, predicate, shape)]

        now, history = Window(0, 4, history=False), Window(0, 4, history=True)
        assert chosen(Customer.tier == "x", now) == ["rows", "pruned", "shadow", "pruned"]
        assert chosen(Customer.tier == "x", history) == ["rows", "pruned", "pruned", "pruned"]
        assert chosen(Customer.id == "a", now) == ["rows", "pruned", "rows", "pruned"]
        assert chosen(Customer.id == "a", Window(1, 4, history=True)) == ["pruned", "pruned", "rows", "pruned"]
        assert chosen(~(Customer.tier == "x"), now) == ["rows"] * 4


async def test_a_query_explains_itself() -> None:
    async with holdfast.open("memory:") as hf, hf.ontology(Customer, Subscription) as onto:
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
        assert (found.head, found.commits, found.history) == (3, (1, 3), False)
        assert (found.requests, found.tables[0].fetched) == (3, 1)  # head, index, file
        assert found.received_bytes is not None
        assert found.received_bytes > 0
        again = await query.explain()
        assert again.requests == 1
        assert again.plan
        assert again.plan not in str(again)
        text = str(await query.explain(profile=True))
        assert "Customer: 1 of 3 files by the" in text
        assert "Total Time" in text
        assert "  condition on keys, pushed into the scan: id == " in text
        by_tier = await onto.query(Customer).where(Customer.tier == "c").as_of(2).explain()
        assert by_tier.tables[0].conditions == ('condition on typed columns: tier == "c"',)
        assert [file.reason for file in by_tier.tables[0].files] == ["columns", "columns", "commits"]


# --- what is refused ---


async def test_times_that_are_none() -> None:
    desk = Desk()
    await stocked(desk, commits=2)
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert await query.as_of(99).count() == 10
        with pytest.raises(NotFound, match="no commit 99 yet"):
            await query.as_of(99, strict=True).all()
        with pytest.raises(Invalid, match="no commit -1"):
            await query.as_of(-1).all()
        with pytest.raises(Invalid, match="neither a commit nor a time nor a tag"):
            await query.as_of("yesterday").all()
        with pytest.raises(Invalid, match="neither a commit nor a time"):
            await query.as_of("31 May").all()
        with pytest.raises(Invalid, match="commit 2 is after commit 1"):
            await query.between(2, 1).all()


async def test_as_of_a_time() -> None:
    desk = Desk()
    times = []
    async with session(desk) as onto:
        for number in range(5):
            onto.ensure(Customer(id=str(number), name="x"))
            done = await onto.commit()
            assert done is not None
            times.append(done.created_at)
        query = onto.query(Customer)
        for number, moment in enumerate(times):
            assert await query.as_of(moment).count() == number + 1
            assert [one.id for one in await query.between(moment, moment).all()] == [str(number)]
        assert await query.as_of("2001-01-01T00:00:00Z").count() == 0
        assert await query.history_since(times[2]).count() == 2


async def test_questions_that_are_none() -> None:
    desk = Desk()
    async with session(desk) as onto:
        with pytest.raises(Invalid, match="has no field nam") as raised:
            onto.query(Customer).select("nam")
        assert raised.value.remedy == "did you mean name?"
        with pytest.raises(Invalid, match="is about Customer"):
            onto.query(Customer).where(Product.id == 3)
        with pytest.raises(Invalid, match="not a condition"):
            onto.query(Customer).where(True)  # type: ignore[arg-type]  # refused
        with pytest.raises(Invalid, match="not a limit"):
            onto.query(Customer).limit(-1)
        with pytest.raises(Invalid, match="not a type of this session"):
            onto.query(Everything)


async def test_a_file_that_is_gone() -> None:
    desk = Desk()
    await stocked(desk, commits=2)
    keys = [key for key in desk.shelf.objects if key.endswith("Customer.parquet")]
    await desk.bare.delete(keys[0])
    async with session(desk) as onto:
        with pytest.raises(Corrupt, match="this data file is missing"):
            await onto.query(Customer).all()


def test_blocking_code_asks_the_same() -> None:
    with holdfast.connect("memory:") as hf, hf.ontology(Customer) as onto:
        onto.ensure([Customer(id="a", name="Ada"), Customer(id="b", name="Bo")])
        onto.commit()
        query = onto.query(Customer).where(Customer.name.startswith("A"))
        assert query.all() == [Customer(id="a", name="Ada")]
        assert [one.id for one in onto.query(Customer).stream()] == ["a", "b"]
        assert query.count() == 1
