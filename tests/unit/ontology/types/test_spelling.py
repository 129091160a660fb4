"""Schemas as the specification's writer spells them: what we register validates there, and what it registers here."""

import json
import types
import typing
from enum import StrEnum
from typing import Any, Literal, Optional, TypedDict, Union, is_typeddict

import pytest

from holdfast.ontology import Entity, Field
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.types.schema import schema_hash, schema_json
from tests.unit.ontology.desk import Desk


class Address(TypedDict):
    street: str
    zip: str | None


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Wide(TypedDict, total=False):
    first: int
    second: list[float]


ANNOTATIONS: list[tuple[Any, Any]] = [
    (str, "x"),
    (int, 3),
    (float, 1.5),
    (bool, True),
    (str | None, None),
    (Optional[str], "x"),  # noqa: UP045  # spelled otherwise by the specification's writer
    (int | str, 3),
    (Union[int, str, None], "x"),  # noqa: UP007  # as above
    (list[str], ["x"]),
    (list[int | None], [1, None]),
    (dict[str, int], {"a": 1}),
    (dict[str, list[float]] | None, {"a": [1.5]}),
    (Any, {"a": [1, 2]}),
    (list, [1, 2]),
    (dict, {"a": 1}),
    (Literal["a", "b"], "a"),
    (Address, {"street": "s", "zip": None}),
    (Address | None, None),
    (list[Address], [{"street": "s", "zip": "z"}]),
    (Color, Color.RED),
    (Color | None, None),
    (Wide, {"first": 1, "second": [1.5]}),
]


def spelled(annotation: Any) -> dict[str, Any]:
    """A type tree in the writer's words. It makes trees of ``typing.Union`` alone, and prints what it does not know."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union:
        members = sorted(map(spelled, inner), key=lambda member: json.dumps(member, sort_keys=True))
        return {"kind": "union", "members": members}
    if origin is list:
        return {"kind": "list", "item": spelled(inner[0])}
    if origin is dict:
        return {"kind": "dict", "key": spelled(inner[0]), "value": spelled(inner[1])}
    if is_typeddict(annotation):
        hints = typing.get_type_hints(annotation)
        fields = {name: spelled(hints[name]) for name in sorted(hints)}
        return {"kind": "typed_dict", "name": annotation.__name__, "total": annotation.__total__, "fields": fields}
    if annotation is Any:
        return {"kind": "primitive", "name": "any"}
    plain = isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias)
    return {"kind": "primitive", "name": annotation.__name__ if plain else str(annotation)}


def theirs(annotation: Any) -> dict[str, Any]:
    def field(of: Any, *, key: bool) -> dict[str, Any]:
        return {"primary_key": key, "index": False, "type": str(of), "type_spec": spelled(of)}

    return {"entity_name": "Thing", "fields": {"id": field(str, key=True), "value": field(annotation, key=False)}}


def ours(annotation: Any) -> Any:
    namespace = {
        "__annotations__": {"id": Field[str], "value": Field[annotation]},
        "__module__": __name__,
        "id": Field(primary_key=True),
    }
    return types.new_class("Thing", (Entity,), {}, lambda given: given.update(namespace))


@pytest.mark.parametrize(("annotation", "value"), ANNOTATIONS, ids=lambda each: str(each)[:40])
async def test_an_annotation_passes_both_ways(annotation: Any, value: Any) -> None:
    schema, thing = theirs(annotation), ours(annotation)
    mine, beside = Desk(), Desk()
    async with mine.session(thing) as onto:
        onto.ensure(thing(id="a", value=value))
        await onto.commit()
    assert await mine.plain.validate("entity", "Thing", schema) == 1
    await beside.plain.register("entity", "Thing", schema)
    await beside.plain.commit({("entity", "Thing"): [("a", {"id": "a", "value": value})]})
    async with beside.session(thing) as onto:
        onto.ensure(thing(id="b", value=value))
        assert (await onto.commit()) is not None
        assert [one.value for one in await onto.all(thing)] == [value, value]
    assert await beside.plain.validate("entity", "Thing", schema) == 1


class Old(Entity, name="Thing"):
    id: Field[str] = Field(primary_key=True)
    value: Field[str | None] = Field(default=None)


async def test_a_respelling_alone_is_no_drift_and_no_commit() -> None:
    """A store whose schema has the union as a tree keeps it, whichever session registered it."""
    schema = theirs(str | None)
    schema["fields"]["value"]["type_spec"] = spelled(Optional[str])  # noqa: UP045  # as older versions wrote it
    desk = Desk()
    await desk.plain.register("entity", "Thing", schema)
    await desk.plain.commit({("entity", "Thing"): [("a", {"id": "a", "value": "x"})]})
    for _ in range(2):
        async with desk.session(Old) as onto:
            onto.ensure(Old(id="b", value=f"y{_}"))
            assert (await onto.commit()) is not None
            assert await onto.register() is None
            assert not (await onto.migrate()).changes[0].drift
    versions = await desk.plain.versions("entity", "Thing")
    assert [json.loads(each["schema_json"]) for each in versions] == [schema]
    manifest = await desk.reader.json((await desk.reader.head())["manifest_path"])
    assert manifest["schemas"]["entity"]["Thing"][:2] == [1, schema_hash(schema)]
    assert (await verify(desk.store, deep=True)).good
    assert schema_json(schema) == versions[0]["schema_json"]
