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
from tests.unit.ontology.shop import Cat, Geo, Level, Price, Tier

NONE = {"kind": "primitive", "name": "NoneType"}
STR = {"kind": "primitive", "name": "str"}
TIER = {"kind": "primitive", "name": "Tier", "enum": ["gold", "std"]}


class Tree(TypedDict, total=False):
    label: str
    children: list["Tree"]


def node(annotation: Any) -> Node:
    return analyse(annotation, "T.field")


@pytest.mark.parametrize(
    ("annotation", "spec", "text"),
    [
        (str, STR, "<class 'str'>"),
        (datetime, {"kind": "primitive", "name": "datetime"}, "<class 'datetime.datetime'>"),
        (Decimal, {"kind": "primitive", "name": "Decimal"}, "<class 'decimal.Decimal'>"),
        (Any, {"kind": "primitive", "name": "any"}, "typing.Any"),
        (str | None, {"kind": "union", "members": [NONE, STR], "text": "str | None"}, "str | None"),
        (None | str, {"kind": "union", "members": [NONE, STR], "text": "None | str"}, "None | str"),
        (Optional[str], {"kind": "union", "members": [NONE, STR]}, "typing.Optional[str]"),  # noqa: UP045  # as below
        (list[str], {"kind": "list", "item": STR}, "list[str]"),
        (list, {"kind": "list", "item": {"kind": "primitive", "name": "any"}, "text": "list"}, "<class 'list'>"),
        (dict[str, list[UUID]], None, "dict[str, list[uuid.UUID]]"),
        (Tier, TIER, "<enum 'Tier'>"),
        (
            Literal["b", "a"],
            {"kind": "primitive", "name": "Literal", "enum": ["a", "b"], "text": "typing.Literal['b', 'a']"},
            "typing.Literal['b', 'a']",
        ),
        (
            Geo,
            {
                "kind": "typed_dict",
                "name": "Geo",
                "total": True,
                "fields": {
                    "lat": {"kind": "primitive", "name": "float"},
                    "lng": {"kind": "primitive", "name": "float"},
                    "seen": {"kind": "primitive", "name": "datetime"},
                },
                "optional": ["seen"],
            },
            "<class 'tests.unit.ontology.shop.Geo'>",
        ),
        (
            Tree,
            {
                "kind": "typed_dict",
                "name": "Tree",
                "total": False,
                "fields": {"children": {"kind": "list", "item": {"kind": "ref", "name": "Tree"}}, "label": STR},
            },
            None,
        ),
    ],
)
def test_documents(annotation: Any, spec: dict[str, Any] | None, text: str | None) -> None:
    made = node(annotation)
    if spec is not None:
        assert to_spec(made) == spec
    if text is not None:
        assert to_text(made) == text


@pytest.mark.parametrize("annotation", [str, int, float, bool, datetime, date, Decimal, bytes, UUID])
def test_type_strings_are_those_of_python(annotation: Any) -> None:
    assert to_text(node(annotation)) == str(annotation)
    assert to_text(node(list[annotation])) == str(list[annotation])
    assert to_text(node(annotation | None)) == str(annotation | None)


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


def test_constraints_are_kept_for_the_validator() -> None:
    positive = Constraint(ge=0)
    assert node(Annotated[int, positive]).metadata == (positive,)


@pytest.mark.parametrize(
    "annotation",
    [str, int | None, list[dict[str, bytes | None]], Tier, Level, Geo, Tree, Price, Cat, Any, int | float | str],
)
def test_trees_read_back_are_the_same_trees(annotation: Any) -> None:
    spec = to_spec(node(annotation))
    assert to_spec(from_spec(spec)) == spec


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

    def test_a_primitive_may_hold_a_whole_annotation(self) -> None:
        assert from_spec({"kind": "primitive", "name": "str | None"}) == node(str | None)

    def test_other_names_of_nothing(self) -> None:
        assert from_spec({"kind": "primitive", "name": "none"}) == Primitive(type(None))

    @pytest.mark.parametrize("spec", [None, 3, {}, {"kind": "frozenset"}, {"kind": "union"}])
    def test_what_is_unintelligible_may_be_anything(self, spec: Any) -> None:
        assert from_spec(spec) == Anything()

    def test_a_reference(self) -> None:
        assert from_spec({"kind": "ref", "name": "Tree"}) == Ref("Tree")


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, pa.string()),
        (str | None, pa.string()),
        (UUID, pa.string()),
        (Tier, pa.string()),
        (Level, pa.int64()),
        (int, pa.int64()),
        (float, pa.float64()),
        (bool, pa.bool_()),
        (datetime, pa.timestamp("us", "UTC")),
        (date, pa.date32()),
        (Decimal, pa.decimal128(38, 18)),
        (bytes, pa.binary()),
        (list[int | None], pa.list_(pa.int64())),
        (list[list[Decimal]], pa.list_(pa.list_(pa.decimal128(38, 18)))),
        (list[Geo], pa.string()),
        (dict[str, int], pa.string()),
        (int | str, pa.string()),
        (Price, pa.string()),
        (Any, pa.string()),
    ],
)
def test_column_types(annotation: Any, expected: pa.DataType) -> None:
    assert arrow_type(node(annotation)) == expected
    assert arrow_type(from_spec(to_spec(node(annotation)))) == expected
