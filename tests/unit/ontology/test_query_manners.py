"""How queries behave: moments by name, what they say of themselves, late files, closed sessions, extremes."""

from functools import reduce
from operator import and_, or_

import pytest

from holdfast.base.errors import Invalid, Refused
from holdfast.ontology.chain.history import Tags
from holdfast.ontology.filters.operand import Sql
from holdfast.ontology.query.engine import Snapshot
from holdfast.ontology.query.statement import Ask
from holdfast.ontology.types.fields import left
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Customer, Subscription
from tests.unit.ontology.test_queries import session, stocked


async def test_files_that_come_between_a_statement_and_its_run_are_not_in_it() -> None:
    """Several questions of one session share the table of small files."""
    desk = Desk()
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


async def test_rows_of_one_load_come_by_key_though_nobody_sorts_them() -> None:
    desk = Desk()
    keys = ["b", "a", "Z", "z", "ä", "é", "A b", "ﬀ", "\U0001f600", "aa", "a\uffff", "0"]
    async with session(desk) as onto:
        onto.ensure([Customer(id=key, name=key) for key in keys])
        await onto.commit()
    ordered = sorted(keys, key=str.encode)
    async with session(desk) as onto:
        onto._warm.table_bytes = 0  # so that the file is scanned where it lies
        query = onto.query(Customer)

        assert (await query.arrow()).column("id").to_pylist() == ordered
        assert (await query.select("name").arrow()).column("name").to_pylist() == ordered
        assert (await query.where(Customer.id > "a").arrow()).column("id").to_pylist() == [
            k for k in ordered if k > "a"
        ]


async def test_as_of_a_tag() -> None:
    desk = Desk()
    await stocked(desk, commits=3)
    tags = Tags(desk.store, desk.ambient)
    await tags.set("release-1", 2, by="anna")
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert await query.as_of("release-1").count() == 10
        assert await query.history_since("release-1").count() == 5
        assert await query.between("release-1", 3).count() == 10
        with pytest.raises(Invalid, match="nor a tag") as refused:
            await query.as_of("release-2").all()
        assert refused.value.remedy == "did you mean release-1?"
        await tags.set("release-1", 1, by="anna", move=True)
        assert await query.as_of("release-1").count() == 5


async def test_a_query_and_a_session_say_what_they_are() -> None:
    desk = Desk()
    async with session(desk) as onto:
        query = onto.query(Customer).where(Customer.tier == "Gold", Customer.name.startswith("A"))
        asked = query.as_of(7).order_by(Customer.name.desc(), Customer.id).limit(5).offset(2)
        assert repr(asked) == (
            '<Query Customer where tier == "Gold" and name startswith "A" as of 7 '
            "order by name desc, id limit 5 offset 2>"
        )
        assert repr(query.via(Subscription).history_since(3)) == (
            '<Query Customer where tier == "Gold" and name startswith "A" via Subscription to Product history since 3>'
        )
        assert repr(onto.query(Customer).with_history()) == "<Query Customer with history>"
        assert repr(onto.query(Customer).as_of(3).history_since(1)) == "<Query Customer history since 1 as of 3>"
        assert repr(onto.query(Customer).between(1, 2)) == "<Query Customer between 1 and 2>"
        by_tier = onto.query(Subscription).where(left(Subscription).tier == "x").group_by(Subscription.seats)
        assert repr(by_tier) == '<Groups by seats of <Query Subscription where left.tier == "x">>'
        assert repr(onto) == "<Ontology of Customer, Product, Subscription, Order>"
        onto.ensure(Customer(id="a", name="Ada"))
        assert repr(onto) == "<Ontology of Customer, Product, Subscription, Order, 1 intents not committed>"
        onto.discard()


async def test_a_closed_session_refuses() -> None:
    desk = Desk()
    await stocked(desk, commits=1)
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert await query.count() == 5
    for asked in (query.all, query.arrow, query.explain, onto.commit, lambda: onto.get(Customer, "00")):
        with pytest.raises(Refused, match="the session is closed"):
            await asked()
    with pytest.raises(Refused, match="the session is closed"):
        onto.ensure(Customer(id="x", name="y"))


async def test_extremes_are_answered_or_refused_in_words() -> None:
    desk = Desk()
    await stocked(desk, commits=1)
    async with session(desk) as onto:
        query = onto.query(Customer)
        assert len(await query.limit(10**30).all()) == 5
        assert await query.offset(2**64).all() == []
        many = reduce(or_, [Customer.name == f"n{number}" for number in range(3_000)])
        assert await query.where(many).count() == 5
        assert await query.where(reduce(and_, [Customer.name != f"x{number}" for number in range(3_000)])).count() == 5
        assert await query.where(Customer.id.in_([str(number) for number in range(20_000)])).count() == 0
        for hostile in (Customer.tier.startswith, Customer.tier.__eq__, Customer.id.__eq__):
            with pytest.raises(Invalid, match="half of a surrogate pair"):
                query.where(hostile("\ud800"))
        nested = Customer.tier == "x"
        for _ in range(5_000):
            nested = ~nested
        with pytest.raises(Invalid, match="nested too deeply"):
            await query.where(nested).count()
