"""Values as they are written into a journal: JSON as it is, everything else as a tagged object.

What a step returns on its first run is the decoded form of what was written, so that a replay cannot differ. Plain JSON
stays plain, for other readers of the journal. Tagged: ``{"$type": NAME, "value": ...}``; a dictionary that has a key
``$type`` itself is tagged too, so nothing is confused.

Only dataclasses, pydantic models, enums and what ``register`` names are ever instantiated. Reading imports nothing: a
class is found by its name in a module that the program has imported already. A value of an unknown kind comes back as
the plain document that was written, an ``Unknown``; taking an attribute of it raises ``UnknownKind``.

Errors: ``NotJson`` for what cannot be written, with its place; ``UnreadableValue`` for what was recorded and does not
fit the class or codec that it names.
"""

import base64
import dataclasses
import math
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

from pydantic import BaseModel

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.runs.errors import NotJson, UnknownKind, UnreadableValue

TAG = "$type"
MAX_DEPTH = 100
"""Levels of nesting that are written. Reading takes at most four stack frames for each, so it always succeeds."""
_SCALARS = frozenset({bool, int, float, str})
_MAX_BITS = 14_000
"""Of a whole number: Python converts no more than 4,300 digits to text and back."""


class Codec(NamedTuple):
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_by_type: dict[type, Codec] = {}
_by_name: dict[str, Codec] = {}


def register(kind: type, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Register a codec. ``encode`` returns a value that can be recorded; ``name`` must never change."""
    known = _by_name.get(name)
    if known is not None and _by_type.get(kind) is not known:
        raise Invalid(f"a codec named {name!r} exists already", remedy="choose a name of your own, such as myapp.Money")
    _by_type[kind] = _by_name[name] = Codec(name, encode, decode)


register(bytes, "bytes", lambda v: base64.b64encode(v).decode(), lambda v: base64.b64decode(v, validate=True))
register(datetime, "datetime", datetime.isoformat, datetime.fromisoformat)
register(date, "date", date.isoformat, date.fromisoformat)
register(time, "time", time.isoformat, time.fromisoformat)
register(timedelta, "timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda v: timedelta(v[0], v[1], v[2]))
register(Decimal, "decimal", str, Decimal)
register(UUID, "uuid", str, UUID)
register(tuple, "tuple", list, tuple)
register(set, "set", lambda v: sorted(v, key=repr), set)
register(frozenset, "frozenset", lambda v: sorted(v, key=repr), frozenset)


_BUILT_IN = frozenset(_by_name)
_PLAIN_KEYS = frozenset((TAG, "value"))
_KEYS = {
    "enum": _PLAIN_KEYS | {"class"},
    "flags": _PLAIN_KEYS | {"class"},
    "dataclass": _PLAIN_KEYS | {"class"},
    "model": _PLAIN_KEYS | {"class", "extra", "set"},
}
"""The keys of a tagged value; with others it is not one of ours."""


class Unknown(dict[str, Any]):
    """A recorded value whose class or codec this program does not have: the document as it was written.

    It can be passed on, printed and recorded again. To use it as the object that it was is an ``UnknownKind``.
    """

    def __getattr__(self, name: str) -> NoReturn:
        kind = self.get("class", self.get(TAG))
        raise UnknownKind(
            f"a recorded value is of the kind {kind!r}, which this program does not know: it has no {name!r}",
            remedy="import the module of its class, or call runs.register_codec, before the run is resumed",
        )


def to_json(value: Any, where: str = "value") -> Any:
    """The JSON form of ``value``; ``NotJson`` names the place that has none."""
    return _to_json(value, where, MAX_DEPTH)


def _to_json(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind in _SCALARS:
        return _scalar_to_json(value, where)
    if not depth:
        raise NotJson(
            f"{where[:200]}... is nested in more than {MAX_DEPTH} levels, or contains itself",
            remedy="return a flat form of it, such as a list of its nodes",
        )
    if kind is list:
        return [_to_json(item, f"{where}[{n}]", depth - 1) for n, item in enumerate(value)]
    if kind is dict:
        return _dict_to_json(value, where, depth)
    if kind is Unknown:
        return dict(value)
    codec = _by_type.get(kind)
    if codec is not None:
        return {TAG: codec.name, "value": _to_json(_encoded(codec, value, where), where, depth - 1)}
    if isinstance(value, Enum):
        if value.name not in kind.__members__:  # several flags at once, or none
            return {TAG: "flags", "class": _reference(kind, where), "value": _to_json(value.value, where, depth - 1)}
        return {TAG: "enum", "class": _reference(kind, where), "value": value.name}
    if isinstance(value, BaseModel):
        return _model_to_json(value, where, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)
        }
        return {TAG: "dataclass", "class": _reference(kind, where), "value": _dict_to_json(fields, where, depth)}
    for base, convert in _BASES:
        if isinstance(value, base):
            return _to_json(convert(value), where, depth)
    raise NotJson(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be written down",
        remedy="return JSON values, dataclasses or pydantic models, or register a codec with runs.register_codec",
    )


_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, bytes.__bytes__),
    (bytearray, bytes),
    (dict, lambda value: dict(dict.items(value))),
    (list, lambda value: list(list.__iter__(value))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
)
"""An instance of a subclass (``OrderedDict``, ``defaultdict``, a named tuple) is written as its base kind."""


def _encoded(codec: Codec, value: Any, where: str) -> Any:
    try:
        return codec.encode(value)
    except Exception as error:
        raise NotJson(
            f"{where}: the codec {codec.name!r} failed to encode it: {type(error).__name__}: {str(error)[:200]}",
            remedy="correct the codec, or return a value that it can encode",
        ) from error


def _scalar_to_json(value: Any, where: str) -> Any:
    kind = type(value)
    if kind is str:
        return _checked_text(value, where)
    if kind is int and value.bit_length() > _MAX_BITS:
        raise NotJson(f"{where} is a whole number of {value.bit_length()} bits", remedy="return it as bytes")
    if kind is float and not math.isfinite(value):
        return {TAG: "float", "value": repr(value)}
    return value


def _checked_text(text: str, where: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise NotJson(
                f"{where} has half a surrogate pair at character {error.start}, which UTF-8 cannot hold",
                remedy="decode the text with errors='replace', or return it as bytes",
            ) from error
    return text


def from_json(value: Any) -> Any:
    """The value that ``to_json`` wrote."""
    try:
        return _from_json(value)
    except RecursionError as error:
        raise UnreadableValue("a recorded value is nested too deeply to be read") from error


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _from_json(item) for key, item in value.items()}
    try:
        return _tagged(value)
    except (HoldfastError, RecursionError):
        raise
    except Exception as error:  # a class or a codec of the program refuses what was recorded
        kind = str(value.get("class", value[TAG]))[:200]
        raise UnreadableValue(
            f"a recorded value does not fit its kind {kind!r}: {type(error).__name__}: {str(error)[:200]}",
            remedy="keep the class or codec able to read what was recorded, or fork the run before that step",
        ) from error


def _tagged(value: dict[str, Any]) -> Any:
    tag, inner = value[TAG], value.get("value")
    if not isinstance(tag, str):
        return Unknown(value)
    match tag:
        case _ if not _KEYS.get(tag, _PLAIN_KEYS).issuperset(value):
            return Unknown(value)
        case "float" | "dict":
            return _builtin(value)
        case "enum" | "flags" | "model" | "dataclass":
            kind = _find(str(value.get("class")))
            return Unknown(value) if kind is None else _instance(kind, value)
    if tag in _BUILT_IN:
        return _builtin(value)
    codec = _by_name.get(tag)
    return Unknown(value) if codec is None else codec.decode(_from_json(inner))


def _builtin(value: dict[str, Any]) -> Any:
    """A value of a kind of our own. Another program may use ``$type`` for something else: then it stays as it is."""
    tag, inner = value[TAG], value.get("value")
    try:
        if tag == "float":
            return float(inner)  # type: ignore[arg-type]  # text, or TypeError
        if tag == "dict":
            return {_from_json(key): _from_json(item) for key, item in inner or []}
        return _by_name[tag].decode(_from_json(inner))
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return Unknown(value)


def _instance(kind: Any, value: dict[str, Any]) -> Any:
    """An object of a class of the program, which has the sort of class that was recorded."""
    inner = value.get("value")
    match value[TAG]:
        case "enum" if issubclass(kind, Enum):
            return kind[inner]
        case "flags" if issubclass(kind, Enum):
            return kind(_from_json(inner))
        case "model" if issubclass(kind, BaseModel):
            return _model_from_json(kind, value)
        case "dataclass" if dataclasses.is_dataclass(kind):
            return _rebuild(kind, _from_json(inner))
    raise UnreadableValue(
        f"{value['class']} of a recorded value is not a class of the recorded kind, {value[TAG]}",
        remedy="restore the class, or fork the run before that step",
    )


def _dict_to_json(value: dict[Any, Any], where: str, depth: int) -> Any:
    if TAG not in value and all(type(key) is str for key in value):
        # A line has its keys sorted; a step must see on its first run the order that a replay will see.
        return {_checked_text(key, where): _to_json(value[key], f"{where}.{key}", depth - 1) for key in sorted(value)}
    pairs = [
        [_to_json(key, where, depth - 1), _to_json(item, f"{where}[{key!r}]", depth - 1)] for key, item in value.items()
    ]
    return {TAG: "dict", "value": pairs}


def _model_to_json(value: BaseModel, where: str, depth: int) -> dict[str, Any]:
    """Its fields as they are, not validated again. What its class keeps in private attributes is not written."""
    kind = type(value)
    fields = {name: getattr(value, name) for name in kind.model_fields}
    document = {TAG: "model", "class": _reference(kind, where), "value": _dict_to_json(fields, where, depth)}
    if value.model_extra:
        document["extra"] = _dict_to_json(value.model_extra, where, depth)
    if value.model_fields_set != {*fields, *(value.model_extra or ())}:
        document["set"] = sorted(value.model_fields_set)
    return document


def _model_from_json(kind: type[BaseModel], document: dict[str, Any]) -> Any:
    fields = _from_json(document.get("value")) or {}
    extra = _from_json(document.get("extra")) or {}
    known = kind.model_fields
    by_alias = {known[name].alias or name if name in known else name: field for name, field in fields.items()}
    were_set = set(document.get("set", {*fields, *extra}))
    return kind.model_construct(_fields_set=were_set, **by_alias, **extra)


def _reference(kind: type, where: str) -> str:
    if "<locals>" in kind.__qualname__ or (kind.__module__ == "__main__" and "." in kind.__qualname__):
        raise NotJson(
            f"{where} is a {kind.__qualname__}, a class that cannot be found again by its name",
            remedy="define the class at the top level of a module",
        )
    reference = f"{kind.__module__}:{kind.__qualname__}"
    if _find(reference) is None:
        raise NotJson(
            f"{where}: the class {reference} cannot be found by its name",
            remedy="define it at the top level of a module",
        )
    return reference


def _find(reference: str) -> type | None:
    """The class of this name in an imported module, or None. Looks into ``__dict__`` alone, so a module's lazy
    ``__getattr__`` is not called.
    """
    module, _, name = reference.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None


def _rebuild(kind: Any, fields: dict[str, Any]) -> Any:
    """A dataclass instance with exactly the recorded fields, whatever its ``__init__`` would compute."""
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        if name.startswith("__"):
            raise UnreadableValue(f"{name!r} is not the name of a field", remedy="the journal was edited: restore it")
        object.__setattr__(made, name, value)
    return made
