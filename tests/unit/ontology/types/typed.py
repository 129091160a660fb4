"""What type checkers must understand of declared types. Checked, never run: see ``test_typing``."""

from datetime import datetime
from typing import Any, assert_type

import holdfast
from holdfast.ontology import Condition, Entity, Field, FieldExpr, Figure, Mixin, Ordering, Relation, left, right


class Audited(Mixin):
    changed: Field[datetime | None] = Field(default=None)


class Customer(Audited, Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)
    age: Field[int] = Field(default=0, index=True)


class Product(Entity, name="Goods"):
    id: Field[int] = Field(primary_key=True)


class Subscription(Relation[Customer, Product]):
    contract: Field[str] = Field(instance_key=True)
    seats: Field[int] = Field(default=1)


class Key(Customer):
    level: Field[float] = Field(default=0.0)


class Knows(Relation[Customer, Customer]):
    since: Field[int] = Field(default=0)


def constructors(ada: Customer, anvil: Product) -> None:
    Customer(id="c1", name="Ada")
    Customer(id="c1", name="Ada", tier=None, tags=["a"], age=3, changed=None)
    Subscription(left_key="c1", right_key="5", contract="k")
    Subscription(left_key=ada, right_key=anvil, contract="k", seats=2)
    Key(id="c1", name="Ada", level=1.5)


def an_instance_gives_values(ada: Customer, sold: Subscription, key: Key) -> None:
    assert_type(ada.id, str)
    assert_type(ada.tier, str | None)
    assert_type(ada.tags, list[str])
    assert_type(ada.changed, datetime | None)
    assert_type(sold.left_key, str)
    assert_type(key.age, int)
    ada.tier = "gold"
    sold.right_key = Product(id=3)


def the_class_gives_expressions() -> None:
    assert_type(Customer.id, FieldExpr[str])
    assert_type(Customer.tier, FieldExpr[str | None])
    assert_type(Customer.changed, FieldExpr[datetime | None])
    assert_type(Customer.tags.path("a.b"), FieldExpr[Any])
    assert_type(Subscription.seats, FieldExpr[int])
    assert_type(Subscription.left_key, FieldExpr[str])
    assert_type(Key.level, FieldExpr[float])


def comparing_gives_conditions() -> None:
    assert_type(Customer.tier == "Gold", Condition)
    assert_type(Customer.tier != None, Condition)  # noqa: E711  # this is how it is written in a query
    assert_type((Customer.age > 3) & ~(Customer.tier == "x") | Customer.tier.startswith("S", fold=True), Condition)
    assert_type(Key.level < 3, Condition)
    assert_type(Customer.tags.path("city").startswith("S"), Condition)
    assert_type(Customer.tags.any_path() == "x", Condition)
    assert_type(Customer.tags.all_path("kind").contains("x"), Condition)
    assert_type(Customer.tags.length() > 2, Condition)
    assert_type(Customer.age.between(1, 2), Condition)
    assert_type(Subscription.left_key.in_(["a"]), Condition)


def ends_have_the_fields_of_their_entities() -> None:
    assert_type(left(Subscription).tier, FieldExpr[str | None])
    assert_type(right(Subscription).id == 3, Condition)


def terms_of_orderings_and_figures() -> None:
    assert_type(Customer.age.desc(), Ordering)
    assert_type(Customer.tier.asc(nulls="first"), Ordering)
    assert_type(Customer.age.sum(), Figure)


async def what_a_session_gives() -> None:
    async with holdfast.open("memory:") as hf, hf.ontology(Customer, Product, Subscription, Knows) as onto:
        assert_type(await onto.get(Customer, "c1"), Customer | None)
        assert_type(await onto.all(Subscription), list[Subscription])
        query = onto.query(Customer).where(Customer.tier == "Gold", Customer.age > 3).order_by(Customer.age.desc())
        assert_type(await query.all(), list[Customer])
        assert_type(await query.via(Subscription).all(), list[Product])
        assert_type(await onto.query(Product).via(Subscription).all(), list[Customer])
        assert_type(await onto.query(Product).via(Subscription, reverse=True).first(), Customer | None)
        assert_type(await query.via(Knows, Knows.since > 3, depth=2).via(Subscription).one(), Product)
        assert_type(await query.via(Knows, reverse=True).all(), list[Customer])
        async for one in query.stream():
            assert_type(one, Customer)
        assert_type((await query.page(10)).rows, list[Customer])


def what_a_connection_gives() -> None:
    """The same, and it blocks."""
    with holdfast.connect("memory:") as hf, hf.ontology(Customer, Product, Subscription, Knows) as onto:
        assert_type(onto.ensure(Customer(id="c1", name="Ada")), int)
        commit = onto.commit(metadata={"why": "import"})
        assert_type(commit.commit_id if commit is not None else 0, int)
        assert_type(onto.get(Customer, "c1"), Customer | None)
        assert_type(onto.all(Subscription), list[Subscription])
        query = onto.query(Customer).where(Customer.tier == "Gold").limit(3)
        assert_type(query.all(), list[Customer])
        assert_type(query.count(), int)
        assert_type(query.via(Subscription).all(), list[Product])
        assert_type(onto.query(Product).via(Subscription).all(), list[Customer])
        for one in query.stream():
            assert_type(one, Customer)
        for change in onto.changes(Customer, since=3):
            assert_type(change.commit_version, int)
        assert_type(hf.store.get("a").body, bytes)
        assert_type(hf.call(later, 3), str)
        assert_type(hf.register("counters/x").read() is None, bool)
        with hf.lease("locks/x", "me").hold() as grant:
            assert_type(grant.epoch, int)
    assert_type(holdfast.connect().bus().cleanup is not None, bool)


async def later(store: object, number: int) -> str:
    return str(number)
