"""What type checkers must refuse of declared types, line by line: the code of mypy, then the rule of pyright."""

import holdfast
from holdfast.ontology import Condition, Entity, Field, Relation, left


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str | None] = Field(default=None)
    plain: Field[str | None] = None  # assignment reportAssignmentType
    size: Field[int] = Field(default="x")  # arg-type reportAssignmentType


class Product(Entity):
    id: Field[int] = Field(primary_key=True)


class Subscription(Relation[Customer, Product]):
    seats: Field[int] = Field(default=1)


class Counts(Relation[Customer, int]):  # type-var reportInvalidTypeArguments
    pass


ada = Customer(id="c1", name="Ada")
Customer(id="c1")  # call-arg reportCallIssue
Customer(id=1, name="Ada")  # arg-type reportArgumentType
Customer(id="c1", name="Ada", tier=3)  # arg-type reportArgumentType
Customer(id="c1", name="Ada", teir="gold")  # call-arg reportCallIssue
Subscription(left_key="c1")  # call-arg reportCallIssue
Subscription(left_key="c1", right_key=1.5)  # arg-type reportArgumentType
ada.tier = 3  # assignment reportAttributeAccessIssue
ada.teir = "gold"  # attr-defined reportAttributeAccessIssue
total: int = ada.name  # assignment reportAssignmentType
print(ada.teir)  # attr-defined reportAttributeAccessIssue
print(Customer.teir)  # attr-defined reportAttributeAccessIssue
print(Customer.tier.upper())  # attr-defined reportAttributeAccessIssue


def where(condition: Condition) -> None:
    print(condition)


where(Subscription.seats)  # arg-type reportArgumentType
where(Subscription.seats == "x")  # arg-type reportArgumentType
print(Subscription.seats < "x")  # operator reportOperatorIssue
print(Subscription.seats.startswith("x"))  # misc reportAttributeAccessIssue
print(Subscription.seats.any_path("kind"))  # misc reportAttributeAccessIssue
print(Customer.tier.length())  # misc reportAttributeAccessIssue
print(Customer.tier.contains(3))  # arg-type reportArgumentType
print(Subscription.seats.in_(["x"]))  # list-item reportArgumentType
print((Subscription.seats > 3) & 5)  # operator reportOperatorIssue
print(left(Subscription).teir)  # attr-defined reportAttributeAccessIssue
print(left(Customer))  # arg-type reportArgumentType


async def asked() -> None:
    async with holdfast.open("memory:") as hf, hf.ontology(Customer, Product, Subscription) as onto:
        onto.query(Customer).where(Subscription.seats == "old")  # arg-type reportArgumentType
        onto.query(Customer).via(Product)  # arg-type reportArgumentType
        (await onto.query(Customer).via(Subscription).one()).name  # attr-defined reportAttributeAccessIssue
        (await onto.all(Customer)).name  # attr-defined reportAttributeAccessIssue


with holdfast.connect("memory:") as hf, hf.ontology(Customer, Product, Subscription) as onto:
    onto.query(Subscription).where(Subscription.seats == "old").all()  # arg-type reportArgumentType
    onto.query(Customer).all().name  # attr-defined reportAttributeAccessIssue
    onto.query(Customer).via(Subscription).one().name  # attr-defined reportAttributeAccessIssue
    onto.comit()  # attr-defined reportAttributeAccessIssue
    hf.store.get(3)  # arg-type reportArgumentType
