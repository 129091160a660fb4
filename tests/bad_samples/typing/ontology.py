"""What type checkers must refuse of declared types, line by line: the code of mypy, then the rule of pyright."""

from holdfast.ontology import Entity, Field, Relation


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
