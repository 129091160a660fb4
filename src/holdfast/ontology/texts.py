"""The JSON text of many values of one field. As strict as ``values``, and fast where values are plain."""

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, NamedTuple
from uuid import UUID

from holdfast.ontology.typespec import Choice, Node, Primitive, without_null
from holdfast.ontology.values import PRIMITIVE_CODECS, Codec, Unfit, encode_float, encode_text, to_json, wrong


def texts(node: Node, codec: Codec, values: list[Any]) -> list[str]:
    """Canonical JSON of each value; ``Unfit`` if one of them does not fit."""
    plain, optional = without_null(node)
    try:
        if isinstance(plain, Primitive):
            quick = _QUICK.get(plain.python)
            if quick is not None and _all_of(values, plain.python, optional=optional) and quick.fits(values):
                return _each(quick.text, values, optional=optional)
            if plain.python in _TEXT:
                return _each(_TEXT[plain.python], values, optional=optional)
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


def _text(value: Any) -> str:
    return encode_basestring(encode_text(value))


def _whole(value: Any) -> str:
    if type(value) is not int:
        raise wrong("a whole number", value)
    return str(value)


def _number(value: Any) -> str:
    encoded = encode_float(value)
    return f'"{encoded}"' if type(encoded) is str else repr(encoded)


def _boolean(value: Any) -> str:
    if type(value) is not bool:
        raise wrong("true or false", value)
    return "true" if value else "false"


def _quoted(kind: type) -> Callable[[Any], str]:
    """For forms that have nothing to escape."""
    encode = PRIMITIVE_CODECS[kind].encode
    return lambda value: f'"{encode(value)}"'


_TEXT: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _boolean,
    **{kind: _quoted(kind) for kind in (datetime, date, Decimal, bytes, UUID)},
}


def _is_unicode(values: list[str | None]) -> bool:
    try:
        "".join(filter(None, values)).encode()
    except UnicodeEncodeError:
        return False
    return True


class _Quick(NamedTuple):
    """For columns that hold nothing else than one type: ``text`` is right if they fit."""

    fits: Callable[[list[Any]], bool]
    text: Callable[[Any], str]


_QUICK: dict[type, _Quick] = {
    str: _Quick(_is_unicode, encode_basestring),
    int: _Quick(lambda _: True, int.__repr__),
    float: _Quick(lambda values: all(value is None or math.isfinite(value) for value in values), float.__repr__),
}
