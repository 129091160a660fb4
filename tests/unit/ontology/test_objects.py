"""Objects: made, read, changed, compared; and the errors that say what is wrong with them."""

import copy
import pickle
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import Field as Constraint

from holdfast.ontology import Entity, Field, InvalidValue
from tests.unit.ontology.shop import (
    NOON,
    Address,
    Customer,
    Everything,
    Level,
    Order,
    Price,
    Product,
    Subscription,
    Tier,
    everything,
)


class Measure(Entity):
    id: Field[str] = Field(primary_key=True)
    count: Field[Annotated[int, Constraint(ge=0)]] = Field(default=0)


def test_values_are_those_that_were_given() -> None:
    customer = Customer(id="c1", name="Ada")
    assert (customer.id, customer.name, customer.tier) == ("c1", "Ada", None)
    assert repr(customer) == "Customer(id='c1', name='Ada', tier=None)"


def test_values_are_converted_as_pydantic_does() -> None:
    made = everything(whole="4", day="2024-01-02", tier="std", level=2, amount=3)
    assert (made.whole, made.day, made.tier, made.level, made.amount) == (
        4,
        date(2024, 1, 2),
        Tier.STANDARD,
        Level.HIGH,
        Decimal(3),
    )


def test_times_are_kept_in_utc_and_without_a_zone_they_are_utc() -> None:
    there = timezone(timedelta(hours=2))
    made = everything(changed=datetime(2024, 5, 1, 14, tzinfo=there), moments=[datetime(2024, 5, 1, 12)])  # noqa: DTZ001
    assert made.changed.isoformat() == "2024-05-01T12:00:00+00:00"
    assert made.moments == [NOON]


def test_defaults_are_not_shared() -> None:
    one, other = everything(), everything()
    one.tags.append("x")
    assert other.tags == []


def test_a_default_that_can_change_is_copied() -> None:
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        price: Field[Price] = Field(default=Price(Decimal(1)))

    Thing(id="a").price.seal = b"x"
    assert Thing(id="b").price.seal == b""


def test_assignments_are_validated() -> None:
    product = Product(id=1)
    product.title = "Anvil"
    assert product.title == "Anvil"
    with pytest.raises(InvalidValue, match=r"Product\.id: .*found 'x'") as caught:
        product.id = "x"  # type: ignore[assignment]  # that is the point
    assert (caught.value.type_name, caught.value.field) == ("Product", "id")
    assert product.id == 1


def test_an_unknown_name_cannot_be_assigned() -> None:
    with pytest.raises(InvalidValue, match="Product has no field titel") as caught:
        Product(id=1).titel = "x"  # type: ignore[attr-defined]  # that is the point
    assert caught.value.remedy == "did you mean title?"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"id": "c1"}, "Customer.name is missing"),
        ({"id": "", "name": "x"}, "Customer.id: String should have at least 1 character, found ''"),
        ({"id": "c1", "name": 3}, "Customer.name: Input should be a valid string, found 3"),
        ({"id": "c1", "name": "x", "age": 3}, "Customer has no field age"),
        ({}, "Customer.id is missing; Customer.name is missing"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Customer(**values)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_an_unknown_field_comes_with_the_one_that_was_meant() -> None:
    with pytest.raises(InvalidValue, match=r"Customer has no field nam\nhint: did you mean name\?"):
        Customer(id="c1", nam="Ada")  # type: ignore[call-arg]  # that is the point
    with pytest.raises(InvalidValue, match=r"Customer has no field zip\nhint: its fields are id, name"):
        Customer(id="c1", name="Ada", zip="1")  # type: ignore[call-arg]  # as above


def test_only_the_first_few_errors_are_listed() -> None:
    with pytest.raises(InvalidValue, match=r"; and 7 more$"):
        Everything()  # type: ignore[call-arg]  # that is the point


def test_a_wrong_value_deep_inside_is_named_by_its_path() -> None:
    with pytest.raises(InvalidValue, match=r"Everything\.address\.since"):
        everything(address={"city": "Paris", "since": "never"})
    with pytest.raises(InvalidValue, match=r"Everything\.counts\.a"):
        everything(counts={"a": "many"})


def test_nested_records_may_be_given_as_dictionaries() -> None:
    made = everything(address={"city": "Paris", "since": NOON}, pets=[{"kind": "dog", "tricks": []}])
    assert made.address == Address(city="Paris", since=NOON)
    assert type(made.pets[0]).__name__ == "Dog"


def test_constraints_of_annotated_types_hold() -> None:
    with pytest.raises(InvalidValue, match=r"Measure\.count"):
        Measure(id="a", count=-1)


class TestRelations:
    def test_ends_are_keys_or_entities(self) -> None:
        by_key = Subscription(left_key="c1", right_key="5", seats=2)
        by_entity = Subscription(left_key=Customer(id="c1", name="Ada"), right_key=Product(id=5), seats=2)
        assert by_key == by_entity
        assert (by_key.left_key, by_key.right_key) == ("c1", "5")

    def test_keys_are_brought_into_the_form_of_the_entity(self) -> None:
        assert Subscription(left_key="c1", right_key=5).right_key == "5"
        assert Subscription(left_key="c1", right_key="05").right_key == "5"

    def test_an_end_can_be_assigned(self) -> None:
        found = Subscription(left_key="c1", right_key=5)
        found.left_key = Customer(id="c2", name="Bob")
        assert found.left_key == "c2"

    @pytest.mark.parametrize(
        ("ends", "message"),
        [
            ({"left_key": "c1", "right_key": "five"}, "right_key must be a Product or its key"),
            ({"left_key": "", "right_key": 5}, "left_key must be a Customer or its key"),
            ({"left_key": None, "right_key": 5}, "left_key must be a Customer or its key"),
            ({"left_key": Product(id=1), "right_key": 5}, "left_key must be a Customer or its key"),
            ({"right_key": 5}, "left_key is missing"),
        ],
    )
    def test_ends_that_do_not_fit(self, ends: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidValue, match=message):
            Subscription(**ends)

    def test_an_instance_key_is_needed_and_not_empty(self) -> None:
        assert Order(left_key="c1", right_key=5, number="n1").number == "n1"
        for values in ({}, {"number": ""}):
            with pytest.raises(InvalidValue, match=r"Order\.number"):
                Order(left_key="c1", right_key=5, **values)  # type: ignore[arg-type]  # that is the point


def test_equal_by_type_and_fields() -> None:
    class Twin(Customer):
        pass

    assert Customer(id="a", name="b") == Customer(id="a", name="b", tier=None)
    assert Customer(id="a", name="b") != Customer(id="a", name="c")
    assert Customer(id="a", name="b") != Twin(id="a", name="b")
    with pytest.raises(TypeError, match="unhashable"):
        hash(Customer(id="a", name="b"))


def test_objects_are_copied_and_pickled() -> None:
    made = everything(tags=["a"])
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert other.tags is not made.tags
