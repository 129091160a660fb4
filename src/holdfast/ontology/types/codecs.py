"""Values as canonical JSON and back. Pure.

A ``Codec`` is made from a node. pydantic-core does the work, with one schema for each direction: ``texts`` writes a
column of values, ``decode`` turns stored JSON into the same value again. A datetime is ISO 8601 in
UTC with microseconds, a date ISO 8601, Decimal and UUID their strings, bytes base64, an enum its value, a record an
object. Floats without a JSON number are the strings NaN, Infinity and -Infinity.

Writing refuses a value that reading would not give back: objects may have changed since they were validated, and the
inside of a dataclass was never validated. Reading builds records without calling their constructors and validators,
which may compute something else today.

Errors: ``ValueError`` (pydantic's ``ValidationError`` is one), ``RecursionError``; see ``problem``.
"""

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from json.encoder import encode_basestring
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, ValidationError
from pydantic_core import core_schema as cs

from holdfast.ontology.types.readings import SPECIAL, Reading, decimal_number, fits_decimal128, in_utc, moment, read
from holdfast.ontology.types.typespec import (
    INT64_MAX,
    INT64_MIN,
    Anything,
    Choice,
    DictOf,
    ListOf,
    Node,
    OneOf,
    Primitive,
    Record,
    Ref,
    json_form,
    without_null,
)

Convert = Callable[[Any], Any]

to_json: Callable[[Any], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode
"""Canonical: equal values have equal texts."""


# --- primitives ---


def _unfit(expected: str) -> PydanticCustomError:
    return PydanticCustomError("unfit", "Input should be {expected}", {"expected": expected})


def _function(convert: Convert) -> CoreSchema:
    return cs.no_info_plain_validator_function(convert)


def _written(kind: type, write: Convert, expected: str) -> CoreSchema:
    """Writes values of exactly this type."""

    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise _unfit(expected)
        return write(value)

    return _function(convert)


def _stored(reading: Reading, expected: str) -> CoreSchema:
    """Reads values as queries do."""

    def convert(value: Any) -> Any:
        found = read(value, reading)
        if found is None:
            raise _unfit(expected)
        return found

    return _function(convert)


def _datetime_text(in_zone: Callable[[datetime], datetime]) -> Convert:
    def convert(value: Any) -> str:
        # pandas has a subclass with nanoseconds, which would be lost
        if not isinstance(value, datetime) or getattr(value, "nanosecond", False):
            raise _unfit("a datetime in whole microseconds")
        return in_zone(value).isoformat(timespec="microseconds")

    return convert


def _keeping_naive(value: datetime) -> datetime:
    return value if value.tzinfo is None else value.astimezone(UTC)


def _moment_in_record(value: Any) -> datetime:
    found = moment(value)
    if found is None:
        raise _unfit("a datetime as ISO 8601")
    return _keeping_naive(found)


def _stored_decimal(value: Any) -> Decimal:
    """Also one that only another writer can have written, which queries do not read."""
    found = decimal_number(value)
    if found is None:
        raise _unfit("a decimal number")
    return found


def _float_json(value: float) -> float | str:
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal_text(value: Any) -> str:
    if type(value) is not Decimal or not value.is_finite() or not fits_decimal128(value):
        raise _unfit("a finite Decimal that decimal(38, 18) holds")
    return str(value)


def _json_value(value: Any) -> Any:
    """What JSON gives back as it is."""
    kind = type(value)
    if kind is list:
        return list(map(_json_value, value))
    if kind is dict and all(type(key) is str for key in value):
        return {key: _json_value(item) for key, item in value.items()}
    if kind in (str, bool, int, type(None)) or (kind is float and math.isfinite(value)):
        return value
    raise _unfit(f"a JSON value, not {shown(value)}")


_TEXT = cs.str_schema(strict=True)
_FINITE = cs.float_schema(strict=True, allow_inf_nan=False)
_SAME: dict[type, CoreSchema] = {str: _TEXT, bool: cs.bool_schema(strict=True), type(None): cs.none_schema()}


class _Direction(NamedTuple):
    """The parts of a schema that differ between writing and reading."""

    primitives: Mapping[type, CoreSchema]
    anything: CoreSchema
    moment_in_record: CoreSchema
    """The user's own dataclasses and models may hold times without a zone."""
    choice: Callable[[Choice], CoreSchema]
    record: Callable[[Record, Mapping[str, CoreSchema]], CoreSchema]


# --- writing ---


def _written_choice(node: Choice) -> CoreSchema:
    if node.python is None:
        return cs.literal_schema(list(node.values))
    return _written(node.python, lambda member: member.value, f"a {node.name}")


def _written_record(node: Record, fields: Mapping[str, CoreSchema]) -> CoreSchema:
    schema = _object(fields, node.optional if node.flavour == "typed_dict" else frozenset(), extra="forbid")
    if node.flavour == "typed_dict":
        return schema

    def values(value: Any) -> dict[str, Any]:
        # A subclass would come back as its base, without what it adds.
        if type(value) is not node.python:
            raise _unfit(f"a {node.name}")
        return {name: getattr(value, name) for name in fields}

    return cs.no_info_before_validator_function(values, schema)


_WRITING = _Direction(
    _SAME
    | {
        int: cs.int_schema(strict=True, ge=INT64_MIN, le=INT64_MAX),
        float: cs.no_info_after_validator_function(_float_json, cs.float_schema(strict=True)),
        datetime: _function(_datetime_text(in_utc)),
        date: _written(date, date.isoformat, "a date"),
        Decimal: _function(_decimal_text),
        bytes: _written(bytes, lambda value: base64.b64encode(value).decode(), "bytes"),
        UUID: _written(UUID, str, "a UUID"),
    },
    _function(_json_value),
    _function(_datetime_text(_keeping_naive)),
    _written_choice,
    _written_record,
)


# --- reading ---


def _stored_choice(node: Choice) -> CoreSchema:
    schema = cs.literal_schema(list(node.values))
    return schema if node.python is None else cs.no_info_after_validator_function(node.python, schema)


def _stored_record(node: Record, fields: Mapping[str, CoreSchema]) -> CoreSchema:
    schema = _object(fields, node.optional, extra="ignore")
    if node.python is None or node.flavour == "typed_dict":
        return schema
    build = _dataclass if node.flavour == "dataclass" else _model
    return cs.no_info_after_validator_function(lambda values: build(node.python, values), schema)


def _model(python: Any, values: dict[str, Any]) -> Any:
    described = python.model_fields
    return python.model_construct(**{described[name].alias or name: value for name, value in values.items()})


def _dataclass(python: Any, values: dict[str, Any]) -> Any:
    made = object.__new__(python)
    for name, described in python.__dataclass_fields__.items():
        if name in values:
            value = values[name]
        elif described.default is not dataclasses.MISSING:
            value = described.default
        elif described.default_factory is not dataclasses.MISSING:
            value = described.default_factory()
        else:
            continue  # not a field, such as a class variable
        object.__setattr__(made, name, value)
    return made


_READING = _Direction(
    _SAME
    | {
        int: cs.int_schema(strict=True),
        float: cs.union_schema(
            [_FINITE, cs.no_info_after_validator_function(SPECIAL.__getitem__, cs.literal_schema(list(SPECIAL)))],
            mode="left_to_right",
            custom_error_type="unfit",
            custom_error_message="Input should be a number",
        ),
        datetime: _stored("datetime", "a datetime as ISO 8601"),
        date: _stored("date", "a date as ISO 8601"),
        Decimal: _function(_stored_decimal),
        bytes: _stored("bytes", "bytes as base64"),
        UUID: cs.no_info_after_validator_function(UUID, _TEXT),
    },
    cs.any_schema(),
    _function(_moment_in_record),
    _stored_choice,
    _stored_record,
)


# --- nodes ---


def _object(fields: Mapping[str, CoreSchema], optional: Iterable[str], *, extra: cs.ExtraBehavior) -> CoreSchema:
    described = {name: cs.typed_dict_field(field, required=name not in optional) for name, field in fields.items()}
    return cs.typed_dict_schema(described, strict=True, extra_behavior=extra)


class _Compiler:
    def __init__(self, direction: _Direction) -> None:
        self._direction = direction
        self._records: list[CoreSchema] = []
        self._open: dict[Any, str] = {}
        """References to the records that enclose the current node."""
        self._depth = 0
        """How many dataclasses and models enclose the current node."""

    def validator(self, make: Callable[[Callable[[Node], CoreSchema]], CoreSchema]) -> SchemaValidator:
        schema = make(self._schema)
        return SchemaValidator(cs.definitions_schema(schema, self._records) if self._records else schema)

    def _schema(self, node: Node) -> CoreSchema:
        match node:
            case Primitive(python=python):
                in_record = python is datetime and self._depth
                return self._direction.moment_in_record if in_record else self._direction.primitives[python]
            case Anything():
                return self._direction.anything
            case Choice():
                return self._direction.choice(node)
            case ListOf(item=item):
                return cs.list_schema(self._schema(item), strict=True)
            case DictOf(value=value):
                return cs.dict_schema(_TEXT, self._schema(value), strict=True)
            case OneOf():
                return self._union(node)
            case Record():
                return self._record(node)
            case Ref():
                return cs.definition_reference_schema(self._open[_identity(node)])
        raise TypeError(f"{node!r} is not a node")

    def _union(self, node: OneOf) -> CoreSchema:
        """The first member that takes the value: the JSON forms of the members exclude each other (``typespec``)."""
        plain, optional = without_null(node)
        if optional:
            return cs.nullable_schema(self._schema(plain))
        # A whole number is a number too, so a float comes last. Beside texts it has no place for NaN.
        members = sorted(node.members, key=lambda member: member == Primitive(float))
        choices: list[CoreSchema | tuple[CoreSchema, str]] = [self._schema(member) for member in members]
        if members[-1] == Primitive(float) and any(json_form(member) == "string" for member in members):
            choices[-1] = _FINITE
        return cs.union_schema(
            choices,
            mode="left_to_right",
            custom_error_type="unfit",
            custom_error_message="Input should be a value of one of the types of the union",
        )

    def _record(self, node: Record) -> CoreSchema:
        identity, ref = _identity(node), f"record {len(self._records)}"
        self._records.append(cs.any_schema())
        place = len(self._records) - 1
        own = node.flavour != "typed_dict"
        outer, self._open = self._open, {**self._open, identity: ref}
        self._depth += own
        fields = {name: self._schema(field) for name, field in node.fields.items()}
        self._depth -= own
        self._open = outer
        schema = self._direction.record(node, fields)
        self._records[place] = {**schema, "ref": ref}
        return cs.definition_reference_schema(ref)


def _identity(node: Record | Ref) -> Any:
    return node.python if node.python is not None else node.name


class Codec:
    """Writes and reads the values of one field."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def decode(self, value: Any) -> Any:
        return self._reader.validate_python(value)

    def texts(self, values: list[Any]) -> list[str]:
        """The canonical JSON of each value."""
        found = list(map(self._text, self._writer.validate_python(values)))
        "".join(found).encode()  # refuses halves of surrogate pairs
        return found

    @cached_property
    def _writer(self) -> SchemaValidator:
        """Of a list of values."""
        return _Compiler(_WRITING).validator(lambda schema: cs.list_schema(schema(self._node), strict=True))

    @cached_property
    def _reader(self) -> SchemaValidator:
        return _Compiler(_READING).validator(lambda schema: schema(self._node))

    @cached_property
    def _text(self) -> Callable[[Any], str]:
        plain, optional = without_null(self._node)
        write = _TEXTS.get(json_form(plain), to_json) if isinstance(plain, Primitive | Choice) else to_json
        return (lambda value: "null" if value is None else write(value)) if optional else write


_TEXTS: dict[str, Callable[[Any], str]] = {
    "string": encode_basestring,
    "whole number": int.__repr__,
    "number": lambda value: float.__repr__(value) if type(value) is float else to_json(value),
    "boolean": {True: "true", False: "false"}.__getitem__,
}
"""By JSON form. ``to_json`` gives the same texts and takes ten times as long."""


def rows_reader(nodes: Mapping[str, Node]) -> SchemaValidator:
    """Reads objects with these fields. Missing fields are left out, and other fields are ignored."""

    def schema(of: Callable[[Node], CoreSchema]) -> CoreSchema:
        return _object({name: of(node) for name, node in nodes.items()}, nodes, extra="ignore")

    return _Compiler(_READING).validator(schema)


def problem(error: Exception) -> tuple[tuple[str | int, ...], str]:
    """Where in a value an error of a codec occurred, and what is wrong there."""
    if not isinstance(error, ValidationError):  # nested too deeply; a number of thousands of digits
        return (), f"it has no JSON form ({error})"
    first = error.errors(include_url=False, include_context=False)[0]
    found = "" if first["type"] == "missing" else f", found {shown(first['input'])}"
    return first["loc"], f"{'it is missing' if first['type'] == 'missing' else first['msg']}{found}"


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def place_text(location: Iterable[str | int]) -> str:
    """A location of an error as text, such as ``tags[3].name``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
