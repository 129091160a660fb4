"""Annotations, trees and type strings: to documents and back, those of other writers included."""

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union
from uuid import UUID

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

NONE = {"kind": "primitive", "name": "NoneType"}
STR = {"kind": "primitive", "name": "str"}
TIER = {"kind": "primitive", "name": "Tier", "enum": ["gold", "std"]}


FLOAT, DATETIME = ({"kind": "primitive", "name": name} for name in ("float", "datetime"))
GEO = {"kind": "typed_dict", "name": "Geo", "total": True, "fields": {"lat": FLOAT, "lng": FLOAT, "seen": DATETIME}}
TREES = {"kind": "list", "item": {"kind": "ref", "name": "Tree"}}
TREE = {"kind": "typed_dict", "name": "Tree", "total": False, "fields": {"children": TREES, "label": STR}}


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
        (dict[str, list[UUID]], None, "dict[str, list[uuid.UUID]]"),
        (Tier, TIER, "<enum 'Tier'>"),
        (
            Literal["b", "a"],
            {"kind": "primitive", "name": "Literal", "enum": ["a", "b"], "text": "typing.Literal['b', 'a']"},
            "typing.Literal['b', 'a']",
        ),
        (Geo, GEO | {"optional": ["seen"]}, "<class 'tests.unit.ontology.shop.Geo'>"),
        (Tree, TREE, None),
    ],
)
def test_documents(annotation: Any, spec: dict[str, Any] | None, text: str | None) -> None:
    made = node(annotation)
    if spec is not None:
        assert to_spec(made) == spec
    if text is not None:
        assert to_text(made) == text


@pytest.mark.parametrize(
    ("written", "other"),
    [
        (Optional[str], str | None),  # noqa: UP045  # that is the point
        (Union[int, str], int | str),  # noqa: UP007  # as above
        (Annotated[int, Constraint(ge=0)], int),
        (NewType("Name", str), str),
        (Literal["a", None], Literal["a"] | None),
    ],
)
def test_spellings_of_one_type(written: Any, other: Any) -> None:
    assert node(written) == node(other)


class TestForeignDocuments:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("<class 'str'>", Primitive(str)),
            ("<class 'datetime.datetime'>", Primitive(datetime)),
            ("str | None", OneOf((Primitive(str), Primitive(type(None))))),
            ("typing.Optional[str]", OneOf((Primitive(str), Primitive(type(None))))),
            ("typing.Union[str, int, None]", OneOf((Primitive(str), Primitive(int), Primitive(type(None))))),
            ("typing.List[datetime.date]", ListOf(Primitive(date))),
            ("dict[str, list[int]]", DictOf(ListOf(Primitive(int)))),
            ("list", ListOf(Anything())),
            ("typing.Any", Anything()),
            ("typing.Literal['a', 'b']", Choice("Literal", ("a", "b"))),
            ("typing.Annotated[int, Ge(ge=0)]", Primitive(int)),
            ("<class 'app.models.Profile'>", Record("Profile", {})),
            ("<enum 'Tier'>", Record("Tier", {})),
            ("<function <lambda> at 0x7f>", Anything()),
            ("1 + 2", Anything()),
        ],
    )
    def test_type_strings(self, text: str, expected: Node) -> None:
        assert from_text(text) == expected

    def test_what_is_unintelligible_may_be_anything(self) -> None:
        for spec in (None, 3, {}, {"kind": "frozenset"}, {"kind": "union"}):
            assert from_spec(spec) == Anything()
        assert from_spec({"kind": "primitive", "name": "str | None"}) == node(str | None)
        assert from_spec({"kind": "primitive", "name": "none"}) == Primitive(type(None))
        assert from_spec({"kind": "ref", "name": "Tree"}) == Ref("Tree")


COLUMNS: dict[Any, tuple[Any, ...]] = {
    pa.string(): (str, str | None, UUID, Tier, list[Geo], dict[str, int], int | str, Price, Any),
    pa.int64(): (int, Level),
    pa.float64(): (float,),
    pa.bool_(): (bool,),
    pa.timestamp("us", "UTC"): (datetime,),
    pa.date32(): (date,),
    pa.decimal128(38, 18): (Decimal,),
    pa.binary(): (bytes,),
    pa.list_(pa.int64()): (list[int | None],),
    pa.list_(pa.list_(pa.decimal128(38, 18))): (list[list[Decimal]],),
}


@pytest.mark.parametrize(("expected", "annotations"), COLUMNS.items())
def test_column_types(expected: pa.DataType, annotations: tuple[Any, ...]) -> None:
    for annotation in annotations:
        assert arrow_type(node(annotation)) == expected
        assert arrow_type(from_spec(to_spec(node(annotation)))) == expected
