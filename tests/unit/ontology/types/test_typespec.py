"""Annotations as trees and type strings, and back, also those of other writers."""

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, TypedDict

import pyarrow as pa
import pytest
from pydantic import Field as Constraint

from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.types.typespec import (
    Anything,
    Choice,
    DictOf,
    ListOf,
    Node,
    OneOf,
    Primitive,
    Record,
    Ref,
    analyse,
    from_spec,
    from_text,
    to_spec,
    to_text,
)
from tests.unit.ontology.shop import Geo, Level, Price, Tier

NONE, STR, FLOAT, DATETIME = ({"kind": "primitive", "name": name} for name in ("NoneType", "str", "float", "datetime"))
TIER = {"kind": "primitive", "name": "Tier", "enum": ["gold", "std"]}
GEO = {"kind": "typed_dict", "name": "Geo", "total": True, "fields": {"lat": FLOAT, "lng": FLOAT, "seen": DATETIME}}
TREES = {"kind": "list", "item": {"kind": "ref", "name": "Tree"}}
TREE = {"kind": "typed_dict", "name": "Tree", "total": False, "fields": {"children": TREES, "label": STR}}
LITERAL = {"kind": "primitive", "name": "Literal", "enum": ["a", "b"], "text": "typing.Literal['b', 'a']"}


class Tree(TypedDict, total=False):
    label: str
    children: list["Tree"]


def node(annotation: Any) -> Node:
    return analyse(annotation, "T.field")


@pytest.mark.parametrize(
    ("annotation", "spec", "text"),
    [
        (Decimal, {"kind": "primitive", "name": "Decimal"}, "<class 'decimal.Decimal'>"),
        (None | str, {"kind": "union", "members": [NONE, STR], "text": "None | str"}, "None | str"),
        (Tier, TIER, "<enum 'Tier'>"),
        (Literal["b", "a"], LITERAL, "typing.Literal['b', 'a']"),
        (Geo, GEO | {"optional": ["seen"]}, "<class 'tests.unit.ontology.shop.Geo'>"),
        (Tree, TREE, "<class 'tests.unit.ontology.types.test_typespec.Tree'>"),
        (NewType("Name", str), STR, "<class 'str'>"),
        (Annotated[str, Constraint(min_length=1)], STR, "<class 'str'>"),
    ],
)
def test_documents(annotation: Any, spec: dict[str, Any], text: str) -> None:
    made = node(annotation)
    assert (to_spec(made), to_text(made)) == (spec, text)


NULL = Primitive(type(None))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<class 'datetime.datetime'>", Primitive(datetime)),
        ("str | None", OneOf((Primitive(str), NULL))),
        ("typing.Optional[str]", OneOf((Primitive(str), NULL))),
        ("typing.Union[str, int, None]", OneOf((Primitive(str), Primitive(int), NULL))),
        ("typing.List[datetime.date]", ListOf(Primitive(date))),
        ("dict[str, list[int]]", DictOf(ListOf(Primitive(int)))),
        ("list", ListOf(Anything())),
        ("typing.Any", Anything()),
        ("typing.Literal['a', 'b']", Choice("Literal", ("a", "b"))),
        ("typing.Annotated[int, Ge(ge=0)]", Primitive(int)),
        ("<class 'app.models.Profile'>", Record("Profile", {})),
        ("<function <lambda> at 0x7f>", Anything()),
        ("1 + 2", Anything()),
    ],
)
def test_type_strings_of_other_writers(text: str, expected: Node) -> None:
    assert from_text(text) == expected


def test_trees_of_other_writers() -> None:
    for spec in (None, 3, {}, {"kind": "frozenset"}, {"kind": "union"}):
        assert from_spec(spec) == Anything()
    assert from_spec({"kind": "primitive", "name": "str | None"}) == node(str | None)
    assert from_spec({"kind": "primitive", "name": "none"}) == NULL
    assert from_spec({"kind": "ref", "name": "Tree"}) == Ref("Tree")


COLUMNS: dict[Any, tuple[Any, ...]] = {
    pa.string(): (str, Tier, list[Geo], dict[str, int], int | str, Price, Any),
    pa.int64(): (int | None, Level),
    pa.list_(pa.list_(pa.decimal128(38, 18))): (list[list[Decimal | None]],),
}


@pytest.mark.parametrize(("expected", "annotations"), COLUMNS.items())
def test_column_types(expected: pa.DataType, annotations: tuple[Any, ...]) -> None:
    for annotation in annotations:
        assert arrow_type(node(annotation)) == expected
        assert arrow_type(from_spec(to_spec(node(annotation)))) == expected
