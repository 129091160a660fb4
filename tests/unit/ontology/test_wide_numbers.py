"""Tables of results have every number, however large."""

from decimal import Decimal
from typing import Any

import pytest

from holdfast.ontology import Entity, Field
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk

FINE = Decimal("0.1234567890123456789012")


class Sum(Entity):
    id: Field[str] = Field(primary_key=True)
    whole: Field[int | None] = Field(default=None)
    money: Field[Decimal | None] = Field(default=None)


@pytest.mark.parametrize(
    ("values", "types", "shown"),
    [
        ([(1, Decimal("1.5"))], ["int64", "decimal128(38, 18)"], None),
        (
            [(2**64, Decimal("1E+30")), (None, Decimal("1.25")), (-5, None)],
            ["decimal128(38, 0)", "decimal128(38, 2)"],
            None,
        ),
        ([(2**64, FINE), (0, Decimal(7))], ["decimal128(38, 0)", "decimal128(38, 22)"], None),
        ([(10**40, Decimal("1E+30")), (3, FINE)], ["string", "string"], [(str(10**40), "1E+30"), ("3", str(FINE))]),
    ],
)
async def test_a_column_is_as_wide_as_its_numbers(
    values: list[tuple[int | None, Decimal | None]], types: list[str], shown: list[Any] | None
) -> None:
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Sum]) as onto:
        onto.ensure([Sum(id=str(number), whole=one, money=other) for number, (one, other) in enumerate(values)])
        await onto.commit()
        query = onto.query(Sum).select("whole", "money")
        found = await query.arrow()
        assert [str(each) for each in found.schema.types] == types
        rows = [tuple(row.values()) for row in found.to_pylist()]
        assert rows == (values if shown is None else shown)
        assert (await query.polars()).rows() == rows
        assert len(await query.pandas()) == len(values)
