"""What type checkers must refuse of declared types, line by line.

`make types` checks this file with unused ignores as errors; the second comment is the rule of pyright (`test_typing`).
"""

import holdfast
from holdfast.ontology import Condition, Entity, Field, Relation, left


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str | None] = Field(default=None)
    plain: Field[str | None] = None  # type: ignore[assignment]  # reportAssignmentType
    size: Field[int] = Field(default="x")  # type: ignore[arg-type]  # reportAssignmentType


class Product(Entity):
    id: Field[int] = Field(primary_key=True)


class Subscription(Relation[Customer, Product]):
    seats: Field[int] = Field(default=1)


class Counts(Relation[Customer, int]):  # type: ignore[type-var]  # reportInvalidTypeArguments
    pass


ada = Customer(id="c1", name="Ada")
Customer(id="c1")  # type: ignore[call-arg]  # reportCallIssue
Customer(id=1, name="Ada")  # type: ignore[arg-type]  # reportArgumentType
Customer(id="c1", name="Ada", tier=3)  # type: ignore[arg-type]  # reportArgumentType
Customer(id="c1", name="Ada", teir="gold")  # type: ignore[call-arg]  # reportCallIssue
Subscription(left_key="c1")  # type: ignore[call-arg]  # reportCallIssue
Subscription(left_key="c1", right_key=1.5)  # type: ignore[arg-type]  # reportArgumentType
ada.tier = 3  # type: ignore[assignment]  # reportAttributeAccessIssue
ada.teir = "gold"  # type: ignore[attr-defined]  # reportAttributeAccessIssue
total: int = ada.name  # type: ignore[assignment]  # reportAssignmentType
print(ada.teir)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
print(Customer.teir)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
print(Customer.tier.upper())  # type: ignore[attr-defined]  # reportAttributeAccessIssue


def where(condition: Condition) -> None:
    print(condition)


where(Subscription.seats)  # type: ignore[arg-type]  # reportArgumentType
where(Subscription.seats == "x")  # type: ignore[arg-type]  # reportArgumentType
print(Subscription.seats < "x")  # type: ignore[operator]  # reportOperatorIssue
print(Subscription.seats.startswith("x"))  # type: ignore[misc]  # reportAttributeAccessIssue
print(Subscription.seats.any_path("kind"))  # type: ignore[misc]  # reportAttributeAccessIssue
print(Customer.tier.length())  # type: ignore[misc]  # reportAttributeAccessIssue
print(Customer.tier.contains(3))  # type: ignore[arg-type]  # reportArgumentType
print(Subscription.seats.in_(["x"]))  # type: ignore[list-item]  # reportArgumentType
print((Subscription.seats > 3) & 5)  # type: ignore[operator]  # reportOperatorIssue
print(left(Subscription).teir)  # type: ignore[attr-defined]  # reportAttributeAccessIssue
print(left(Customer))  # type: ignore[arg-type]  # reportArgumentType


async def asked() -> None:
    async with holdfast.open("memory:") as hf, hf.ontology(Customer, Product, Subscription) as onto:
        onto.query(Customer).where(Subscription.seats == "old")  # type: ignore[arg-type]  # reportArgumentType
        onto.query(Customer).via(Product)  # type: ignore[arg-type]  # reportArgumentType
        (await onto.query(Customer).via(Subscription).one()).name  # type: ignore[attr-defined]  # reportAttributeAccessIssue
        (await onto.all(Customer)).name  # type: ignore[attr-defined]  # reportAttributeAccessIssue


with holdfast.connect("memory:") as hf, hf.ontology(Customer, Product, Subscription) as onto:
    onto.query(Subscription).where(Subscription.seats == "old").all()  # type: ignore[arg-type]  # reportArgumentType
    onto.query(Customer).all().name  # type: ignore[attr-defined]  # reportAttributeAccessIssue
    onto.query(Customer).via(Subscription).one().name  # type: ignore[attr-defined]  # reportAttributeAccessIssue
    onto.comit()  # type: ignore[attr-defined]  # reportAttributeAccessIssue
    hf.store.get(3)  # type: ignore[arg-type]  # reportArgumentType
