"""Values and their canonical JSON, compiled from nodes. Pure.

``codec`` gives the two functions for a node. ``encode`` gives what ``json`` can write, ``decode`` gives the value back
exactly: a datetime is ISO 8601 in UTC with microseconds, a date ISO 8601, Decimal and UUID their strings, bytes base64,
an enum its value, a record an object. Floats without a JSON number are the strings NaN, Infinity and -Infinity.
``texts`` writes a column of values.

``encode`` is strict: it refuses (``Unfit``) a value that ``decode`` would not give back, because objects may have been
changed since they were validated, and the inside of a dataclass never was. ``decode`` raises ``Unfit`` too. It builds
records without calling their constructors, which might compute something else today. pydantic does neither, and spells
datetimes, Decimals and floats in other ways than the stored text.
"""

import base64
import binascii
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.ontology.types.typespec import (
    INT64_MAX,
    INT64_MIN,
    NULL,
    Anything,
    Choice,
    DictOf,
    ListOf,
    Node,
    OneOf,
    Primitive,
    Record,
    Ref,
    tags,
    without_null,
)

Convert = Callable[[Any], Any]

to_json: Callable[[Any], str] = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode
"""Canonical: equal values have equal texts."""


class Unfit(Exception):
    """A value that does not fit its node. ``path`` leads to it from the outside in."""

    def __init__(self, reason: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def inside(self, part: str) -> "Unfit":
        return Unfit(self.reason, (part, *self.path))

    def __str__(self) -> str:
        return f"{''.join(self.path).lstrip('.')}: {self.reason}" if self.path else self.reason


class Codec(NamedTuple):
    encode: Convert
    decode: Convert


# --- primitives ---


def _same(value: Any) -> Any:
    return value


def _wrong(expected: str, value: Any) -> Unfit:
    shown = repr(value)
    return Unfit(f"expected {expected}, found {shown if len(shown) <= 60 else shown[:57] + '...'}")


def _exactly(kind: type, expected: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(expected, value)
        return value

    return convert


def _encode_text(value: Any) -> str:
    if type(value) is not str:
        raise _wrong("text", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _wrong("text without lone surrogates", value) from error
    return value


def _encode_float(value: Any) -> float | str:
    if type(value) is not float:
        raise _wrong("a float", value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decode_float(value: Any) -> float:
    if type(value) is float or type(value) is int or value in ("NaN", "Infinity", "-Infinity"):
        try:
            return float(value)
        except OverflowError as error:
            raise _wrong("a float", value) from error
    raise _wrong("a number", value)


def in_utc(moment: datetime) -> datetime:
    """A time without a zone is taken as UTC. One of another library becomes Python's own."""
    if type(moment) is not datetime:
        if getattr(moment, "nanosecond", 0):
            raise ValueError("is finer than a microsecond")
        moment = datetime.combine(moment.date(), moment.timetz())
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _as_given(moment: datetime) -> datetime:
    """In UTC, but a time without a zone stays without."""
    return moment if moment.tzinfo is None else moment.astimezone(UTC)


def _datetime(zone: Callable[[datetime], datetime]) -> Codec:
    def encode(value: Any) -> str:
        # pandas has a subclass with nanoseconds, which would be lost
        if not isinstance(value, datetime) or getattr(value, "nanosecond", False):
            raise _wrong("a datetime in whole microseconds", value)
        return zone(value).isoformat(timespec="microseconds")

    return Codec(encode, _from_text(lambda text: zone(datetime.fromisoformat(text)), "a datetime"))


def _encode_date(value: Any) -> str:
    if type(value) is not date:
        raise _wrong("a date", value)
    return value.isoformat()


def _encode_decimal(value: Any) -> str:
    if type(value) is not Decimal or not value.is_finite():
        raise _wrong("a finite Decimal", value)
    if not _is_decimal128(value):
        raise _wrong("a Decimal that decimal(38, 18) holds", value)
    return str(value)


def _is_decimal128(value: Decimal) -> bool:
    """Whether a column of 20 digits before the point and 18 after it holds exactly this value."""
    if not value:
        return True
    _, digits, exponent = value.as_tuple()
    places = -exponent if isinstance(exponent, int) else 0
    return value.adjusted() < 20 and (places <= 18 or not any(digits[18 - places :]))


def _encode_whole(value: Any) -> int:
    if type(value) is not int:
        raise _wrong("a whole number", value)
    if not INT64_MIN <= value <= INT64_MAX:
        raise _wrong("a whole number that int64 holds", value)
    return value


def _encode_bytes(value: Any) -> str:
    if type(value) is not bytes:
        raise _wrong("bytes", value)
    return base64.b64encode(value).decode()


def _encode_uuid(value: Any) -> str:
    if type(value) is not UUID:
        raise _wrong("a UUID", value)
    return str(value)


def _from_text(read: Callable[[str], Any], expected: str) -> Convert:
    def decode(value: Any) -> Any:
        if type(value) is not str:
            raise _wrong(expected, value)
        try:
            return read(value)
        except (ValueError, InvalidOperation, binascii.Error) as error:
            raise _wrong(expected, value) from error

    return decode


_text = _exactly(str, "text")
_whole = _exactly(int, "a whole number")
_boolean = _exactly(bool, "true or false")
_nothing = _exactly(type(None), "nothing")

_PRIMITIVES: dict[type, Codec] = {
    str: Codec(_encode_text, _text),
    int: Codec(_encode_whole, _whole),
    float: Codec(_encode_float, _decode_float),
    bool: Codec(_boolean, _boolean),
    type(None): Codec(_nothing, _nothing),
    datetime: _datetime(in_utc),
    date: Codec(_encode_date, _from_text(date.fromisoformat, "a date")),
    Decimal: Codec(_encode_decimal, _from_text(Decimal, "a decimal number")),
    bytes: Codec(_encode_bytes, _from_text(lambda text: base64.b64decode(text, validate=True), "base64")),
    UUID: Codec(_encode_uuid, _from_text(UUID, "a UUID")),
}

_DATETIME_IN_RECORD = _datetime(_as_given)
"""In the user's own dataclasses and models, which may hold times without a zone."""


def _choice(node: Choice) -> Codec:
    python, values = node.python, frozenset(node.values)
    expected = f"one of {', '.join(map(repr, node.values))}"

    def check(value: Any) -> Any:
        if type(value) is not node.stored or value not in values:
            raise _wrong(expected, value)
        return value

    if python is None:
        return Codec(check, check)

    def encode(value: Any) -> Any:
        if type(value) is not python:
            raise _wrong(f"a {node.name}", value)
        return value.value

    return Codec(encode, lambda value: python(check(value)))


# --- containers ---


def _json_value(value: Any) -> Any:
    """What JSON gives back as it is."""
    kind = type(value)
    if kind in (bool, int, type(None)):
        return value
    if kind is str:
        return _encode_text(value)
    if kind is float and math.isfinite(value):
        return value
    if kind is list:
        return [_each_of(_json_value, item, f"[{number}]") for number, item in enumerate(value)]
    if kind is dict:
        return {_encode_text(key): _each_of(_json_value, item, f".{key}") for key, item in value.items()}
    raise _wrong("a JSON value", value)


def _each_of(convert: Convert, value: Any, part: str) -> Any:
    try:
        return convert(value)
    except Unfit as error:
        raise error.inside(part) from None


def _list_of(item: Codec) -> Codec:
    def through(convert: Convert) -> Convert:
        def convert_all(value: Any) -> list[Any]:
            if type(value) is not list:
                raise _wrong("a list", value)
            try:
                return [convert(inner) for inner in value]
            except Unfit:  # once more, to say where
                return [_each_of(convert, inner, f"[{number}]") for number, inner in enumerate(value)]

        return convert_all

    return Codec(through(item.encode), through(item.decode))


def _dict_of(inner: Codec) -> Codec:
    def through(convert: Convert) -> Convert:
        def convert_all(value: Any) -> dict[str, Any]:
            if type(value) is not dict:
                raise _wrong("a dictionary", value)
            return {_encode_text(key): _each_of(convert, item, f".{key}") for key, item in value.items()}

        return convert_all

    return Codec(through(inner.encode), through(inner.decode))


def _union(members: tuple[Node, ...], codecs: list[Codec]) -> Codec:
    """The first member that takes the value: the forms of the members exclude each other (see ``annotations``)."""
    if len(members) == 2 and NULL in members:
        return _optional(codecs[1 - members.index(NULL)])

    def through(converts: list[Convert]) -> Convert:
        def first(value: Any) -> Any:
            failures: list[Unfit] = []
            for convert in converts:
                try:
                    return convert(value)
                except Unfit as error:
                    failures.append(error)
            # The failure that got furthest says most.
            deepest = max(failures, key=lambda failure: len(failure.path))
            raise deepest if deepest.path else _wrong("a value of one of the types of the union", value)

        return first

    # A whole number is a number too, so the float among them is asked last.
    order = sorted(range(len(members)), key=lambda number: members[number] == Primitive(float))
    decode = through([codecs[number].decode for number in order])
    encode = through([member.encode for member in codecs])
    if Primitive(float) not in members:
        return Codec(encode, decode)

    def encode_number(value: Any) -> Any:
        encoded = encode(value)
        if type(value) is float and type(encoded) is str and type(_or_none(decode, encoded)) is not float:
            raise _wrong("a finite number, as there are texts in this union", value)
        return encoded

    return Codec(encode_number, decode)


def _or_none(convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except Unfit:
        return None


def _optional(inner: Codec) -> Codec:
    encode, decode = inner
    return Codec(
        lambda value: None if value is None else encode(value), lambda value: None if value is None else decode(value)
    )


# --- nodes ---


def codec(node: Node) -> Codec:
    return _Compiler().codec(node)


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[Any, Codec] = {}
        self._depth = 0
        """How many dataclasses and models enclose the current node."""

    def codec(self, node: Node) -> Codec:
        match node:
            case Primitive(python=python):
                return _DATETIME_IN_RECORD if python is datetime and self._depth else _PRIMITIVES[python]
            case Anything():
                return Codec(_json_value, _same)
            case Choice():
                return _choice(node)
            case ListOf(item=item):
                return _list_of(self.codec(item))
            case DictOf(value=value):
                return _dict_of(self.codec(value))
            case OneOf(members=members):
                return _union(members, [self.codec(member) for member in members])
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
        """Looked up at use: the record that it refers to is still being compiled."""

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
            raise _wrong(f"a {node.name} as a dictionary", value)
        _check_complete(node, value)
        if unknown := value.keys() - inner.keys():
            raise Unfit(f"{node.name} has no {', '.join(sorted(map(str, unknown)))}")
        return {name: _each_of(inner[name].encode, item, f".{name}") for name, item in value.items()}

    def of_object(value: Any) -> dict[str, Any]:
        # A subclass would come back as its base, without what it adds.
        if type(value) is not node.python:
            raise _wrong(f"a {node.name}", value)
        return {name: _each_of(field.encode, getattr(value, name), f".{name}") for name, field in inner.items()}

    return of_mapping if node.flavour == "typed_dict" else of_object


def _decoder(node: Record, inner: Mapping[str, Codec]) -> Convert:
    known = dict(tags(node))

    def decode(value: Any) -> Any:
        if type(value) is not dict or any(name in value and value[name] not in known[name] for name in known):
            raise _wrong(f"a {node.name}", value)
        _check_complete(node, value)
        there = [(name, field.decode) for name, field in inner.items() if name in value]
        present = {name: _each_of(read, value[name], f".{name}") for name, read in there}
        return _built(node, present)

    return decode


def _check_complete(node: Record, value: Mapping[str, Any]) -> None:
    if missing := node.fields.keys() - value.keys() - node.optional:
        raise Unfit(f"{node.name} lacks {', '.join(sorted(missing))}")


def _built(node: Record, fields: dict[str, Any]) -> Any:
    """Exactly what was stored."""
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


# --- columns ---


def texts(node: Node, codec: Codec, values: list[Any]) -> list[str]:
    """Canonical JSON of each value; ``Unfit`` if one of them does not fit."""
    plain, optional = without_null(node)
    try:
        if isinstance(plain, Primitive):
            quick = _QUICK.get(plain.python)
            if quick is not None and _all_of(values, plain.python, optional=optional) and quick.fits(values):
                return _each(quick.text, values, optional=optional)
        elif isinstance(plain, Choice) and _all_of(values, plain.python or plain.stored, optional=optional):
            known = _choices(plain)
            if known.keys() >= set(values) - {None}:
                return _each(known.__getitem__, values, optional=optional)
        encode = codec.encode
        return [to_json(encode(value)) for value in values]
    except (RecursionError, ValueError) as error:  # nested beyond all bounds; a number of thousands of digits
        raise Unfit(f"has no JSON form: {error}") from error


def _all_of(values: list[Any], kind: type, *, optional: bool) -> bool:
    return set(map(type, values)) <= ({kind, type(None)} if optional else {kind})


def _each(text: Callable[[Any], str], values: list[Any], *, optional: bool) -> list[str]:
    if optional:
        return ["null" if value is None else text(value) for value in values]
    return list(map(text, values))


def _choices(node: Choice) -> dict[Any, str]:
    """The text of every member, or of every value of a literal."""
    members = node.values if node.python is None else tuple(node.python)
    return {member: to_json(value) for member, value in zip(members, node.values, strict=True)}


def _is_unicode(values: list[str | None]) -> bool:
    try:
        "".join(filter(None, values)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_int64(values: list[int | None]) -> bool:
    known = [value for value in values if value is not None]
    return not known or (min(known) >= INT64_MIN and max(known) <= INT64_MAX)


class _Quick(NamedTuple):
    """For columns that hold nothing else than one type: ``text`` is right if they fit."""

    fits: Callable[[list[Any]], bool]
    text: Callable[[Any], str]


_QUICK: dict[type, _Quick] = {
    str: _Quick(_is_unicode, encode_basestring),
    int: _Quick(_are_int64, int.__repr__),
    float: _Quick(lambda values: all(value is None or math.isfinite(value) for value in values), float.__repr__),
    bool: _Quick(lambda _: True, {True: "true", False: "false"}.__getitem__),
}
