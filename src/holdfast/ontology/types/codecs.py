"""From a node to the two functions that write and read its JSON; records among them. Pure, and strict as ``values``."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.ontology.types.annotations import tags
from holdfast.ontology.types.typespec import Anything, Choice, DictOf, ListOf, Node, OneOf, Primitive, Record, Ref
from holdfast.ontology.types.values import (
    DATETIME_IN_RECORD,
    PRIMITIVE_CODECS,
    Codec,
    Convert,
    Unfit,
    choice,
    dict_of,
    each,
    json_value,
    list_of,
    same,
    union,
    wrong,
)


def codec(node: Node) -> Codec:
    return _Compiler().codec(node)


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[Any, Codec] = {}
        self._depth = 0
        """How many dataclasses and models we are inside of."""

    def codec(self, node: Node) -> Codec:
        match node:
            case Primitive(python=python):
                return DATETIME_IN_RECORD if python is datetime and self._depth else PRIMITIVE_CODECS[python]
            case Anything():
                return Codec(json_value, same)
            case Choice():
                return choice(node)
            case ListOf(item=item):
                return list_of(self.codec(item))
            case DictOf(value=value):
                return dict_of(self.codec(value))
            case OneOf(members=members):
                return union(members, [self.codec(member) for member in members])
            case Record():
                return self._record(node)
            case Ref():
                return self._reference(node)
        raise TypeError(f"{node!r} is not a node")

    def _record(self, node: Record) -> Codec:
        own = node.flavour != "typed_dict"
        self._depth += own
        inner = {name: self.codec(field) for name, field in node.fields.items()}
        self._depth -= own
        made = Codec(_encoder(node, inner), _decoder(node, inner))
        self._records[_identity(node)] = made
        return made

    def _reference(self, node: Ref) -> Codec:
        """Looked up when it is used: the record that it stands for is being compiled right now."""

        def encode(value: Any) -> Any:
            return self._records[_identity(node)].encode(value)

        def decode(value: Any) -> Any:
            return self._records[_identity(node)].decode(value)

        return Codec(encode, decode)


def _identity(node: Record | Ref) -> Any:
    return node.python if node.python is not None else node.name


def _encoder(node: Record, inner: Mapping[str, Codec]) -> Convert:
    def of_mapping(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(f"a {node.name} as a dictionary", value)
        _check_complete(node, value)
        if unknown := value.keys() - inner.keys():
            raise Unfit(f"{node.name} has no {', '.join(sorted(map(str, unknown)))}")
        return {name: each(inner[name].encode, item, f".{name}") for name, item in value.items()}

    def of_object(value: Any) -> dict[str, Any]:
        # A subclass would come back as its base, without what it adds.
        if type(value) is not node.python:
            raise wrong(f"a {node.name}", value)
        return {name: each(field.encode, getattr(value, name), f".{name}") for name, field in inner.items()}

    return of_mapping if node.flavour == "typed_dict" else of_object


def _decoder(node: Record, inner: Mapping[str, Codec]) -> Convert:
    known = dict(tags(node))

    def decode(value: Any) -> Any:
        if type(value) is not dict or any(name in value and value[name] not in known[name] for name in known):
            raise wrong(f"a {node.name}", value)
        _check_complete(node, value)
        present = {name: each(field.decode, value[name], f".{name}") for name, field in inner.items() if name in value}
        return _built(node, present)

    return decode


def _check_complete(node: Record, value: Mapping[str, Any]) -> None:
    if missing := node.fields.keys() - value.keys() - node.optional:
        raise Unfit(f"{node.name} lacks {', '.join(sorted(missing))}")


def _built(node: Record, fields: dict[str, Any]) -> Any:
    """Exactly what was stored. It was validated when it was made; a constructor might now compute something else."""
    if node.python is None or node.flavour == "typed_dict":
        return fields
    if node.flavour == "dataclass":
        return _dataclass(node.python, fields)
    known = node.python.model_fields
    return node.python.model_construct(**{known[name].alias or name: value for name, value in fields.items()})


def _dataclass(python: Any, fields: dict[str, Any]) -> Any:
    made = object.__new__(python)
    for name, described in python.__dataclass_fields__.items():
        if name in fields:
            value = fields[name]
        elif described.default is not dataclasses.MISSING:
            value = described.default
        elif described.default_factory is not dataclasses.MISSING:
            value = described.default_factory()
        else:
            continue  # not a field, such as a class variable
        object.__setattr__(made, name, value)
    return made
