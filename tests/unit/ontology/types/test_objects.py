"""Objects: made, read, changed, compared; and the errors that say what is wrong with them."""

import copy
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast.ontology import InvalidValue
from tests.unit.ontology.shop import NOON, Customer, Everything, Order, Product, Subscription, everything


def test_times_are_kept_in_utc_and_without_a_zone_they_are_utc() -> None:
    there = timezone(timedelta(hours=2))
    made = everything(changed=datetime(2024, 5, 1, 14, tzinfo=there), moments=[datetime(2024, 5, 1, 12)])  # noqa: DTZ001
    assert made.changed.isoformat() == "2024-05-01T12:00:00+00:00"
    assert made.moments == [NOON]


def test_assignments_are_validated() -> None:
    product = Product(id=1)
    product.title = "Anvil"
    with pytest.raises(InvalidValue, match=r"Product\.id: .*found 'x'") as caught:
        product.id = "x"  # type: ignore[assignment]  # that is the point
    assert (caught.value.type_name, caught.value.field) == ("Product", "id")
    with pytest.raises(InvalidValue, match="Product has no field titel"):
        product.titel = "x"  # type: ignore[attr-defined]  # as above
    assert (product.id, product.title) == (1, "Anvil")


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (Customer, {"id": "c1"}, "Customer.name is missing"),
    (Customer, {"id": "", "name": "x"}, "Customer.id: String should have at least 1 character, found ''"),
    (Customer, {"id": "c1", "name": 3}, "Customer.name: Input should be a valid string, found 3"),
    (Customer, {}, "Customer.id is missing; Customer.name is missing"),
    (Customer, {"id": "c1", "nam": "x"}, "Customer has no field nam\nhint: did you mean name?"),
    (Customer, {"id": "c1", "name": "x", "zip": 1}, "has no field zip\nhint: its fields are id, name"),
    (Everything, {}, "; and 7 more"),
    (everything, {"address": {"city": "Paris", "since": "never"}}, "Everything.address.since"),
    (everything, {"counts": {"a": "many"}}, "Everything.counts.a"),
    (Subscription, {"left_key": "c1", "right_key": "five"}, "right_key must be a Product or its key"),
    (Subscription, {"left_key": "", "right_key": 5}, "left_key must be a Customer or its key"),
    (Subscription, {"left_key": Product(id=1), "right_key": 5}, "left_key must be a Customer or its key"),
    (Subscription, {"right_key": 5}, "left_key is missing"),
    (Order, {"left_key": "c1", "right_key": 5}, "Order.number"),
    (Order, {"left_key": "c1", "right_key": 5, "number": ""}, "Order.number"),
]


@pytest.mark.parametrize(("build", "values", "message"), WRONG)
def test_what_is_wrong_is_named(build: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        build(**values)
    assert message in f"{caught.value}\nhint: {caught.value.remedy}"
    assert caught.value.exit_code == 2


def test_objects_are_copied_and_pickled() -> None:
    made = everything(tags=["a"])
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other == made
        assert other.tags is not made.tags
