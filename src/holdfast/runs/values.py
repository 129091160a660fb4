"""Values as they are written into a journal: JSON as it is, everything else as a tagged object.

What a step returns on its first run is the decoded form of what was written, so that a replay cannot differ. Plain JSON
stays plain, for other readers of the journal. Tagged: ``{"$type": NAME, "value": ...}``; a dictionary that has a key
``$type`` itself is tagged too, so nothing is confused.

Classes are found again by module and name, so they must be importable; only dataclasses, pydantic models, enums and
what ``register`` names are ever instantiated.
"""

import base64
import dataclasses
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel

from holdfast.base.errors import Invalid
from holdfast.runs.errors import NotJson

TAG = "$type"


class Codec(NamedTuple):
    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_by_type: dict[type, Codec] = {}
_by_name: dict[str, Codec] = {}


def register(kind: type, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
    """Teach the journal a type. ``encode`` gives something that can be written already; ``name`` is for ever."""
    known = _by_name.get(name)
    if known is not None and _by_type.get(kind) is not known:
        raise Invalid(f"a codec named {name!r} exists already", remedy="choose a name of your own, such as myapp.Money")
    _by_type[kind] = _by_name[name] = Codec(name, encode, decode)


register(bytes, "bytes", lambda v: base64.b64encode(v).decode(), base64.b64decode)
register(datetime, "datetime", datetime.isoformat, datetime.fromisoformat)
register(date, "date", date.isoformat, date.fromisoformat)
register(time, "time", time.isoformat, time.fromisoformat)
register(timedelta, "timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda v: timedelta(v[0], v[1], v[2]))
register(Decimal, "decimal", str, Decimal)
register(UUID, "uuid", str, UUID)
register(tuple, "tuple", list, tuple)
register(set, "set", lambda v: sorted(v, key=repr), set)
register(frozenset, "frozenset", lambda v: sorted(v, key=repr), frozenset)


def to_json(value: Any, where: str = "value") -> Any:
    """The JSON form of ``value``; ``NotJson`` names the place that has none."""
    try:
        return _to_json(value, where)
    except RecursionError as error:
        raise NotJson(f"{where} is nested too deeply, or contains itself") from error


def _to_json(value: Any, where: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}
    if kind is list:
        return [_to_json(item, f"{where}[{n}]") for n, item in enumerate(value)]
    if kind is dict:
        return _dict_to_json(value, where)
    codec = _by_type.get(kind)
    if codec is not None:
        return {TAG: codec.name, "value": _to_json(codec.encode(value), where)}
    if isinstance(value, Enum):
        if value.name not in kind.__members__:  # several flags at once, or none
            return {TAG: "flags", "class": _reference(kind, where), "value": _to_json(value.value, where)}
        return {TAG: "enum", "class": _reference(kind, where), "value": value.name}
    if isinstance(value, BaseModel):
        return _model_to_json(value, where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)
        }
        return {TAG: "dataclass", "class": _reference(kind, where), "value": _dict_to_json(fields, where)}
    raise NotJson(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be written down",
        remedy="return JSON values, dataclasses or pydantic models, or register a codec with runs.register_codec",
    )


def from_json(value: Any) -> Any:
    """The value that ``to_json`` wrote."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get(TAG)
    if tag is None:
        return {key: from_json(item) for key, item in value.items()}
    inner = value.get("value")
    match tag:
        case "float":
            return float(str(inner))
        case "dict":
            return {from_json(key): from_json(item) for key, item in inner or []}
        case "enum":
            return _find(value["class"], Enum)[inner]  # type: ignore[index]  # an enum class
        case "flags":
            return _find(value["class"], Enum)(from_json(inner))
        case "model":
            return _model_from_json(value)
        case "dataclass":
            return _rebuild(_find(value["class"], None), from_json(inner))
    codec = _by_name.get(str(tag))
    if codec is None:
        raise Invalid(
            f"no codec is registered for {tag!r}", remedy="call runs.register_codec before the run is resumed"
        )
    return codec.decode(from_json(inner))


def _dict_to_json(value: dict[Any, Any], where: str) -> Any:
    if TAG not in value and all(type(key) is str for key in value):
        # A line has its keys sorted; a step must see on its first run the order that a replay will see.
        return {key: _to_json(value[key], f"{where}.{key}") for key in sorted(value)}
    pairs = [[_to_json(key, where), _to_json(item, f"{where}[{key!r}]")] for key, item in value.items()]
    return {TAG: "dict", "value": pairs}


def _model_to_json(value: BaseModel, where: str) -> dict[str, Any]:
    """Its fields as they are, not validated again. What its class keeps in private attributes is not written."""
    kind = type(value)
    fields = {name: getattr(value, name) for name in kind.model_fields}
    document = {TAG: "model", "class": _reference(kind, where), "value": _dict_to_json(fields, where)}
    if value.model_extra:
        document["extra"] = _dict_to_json(value.model_extra, where)
    if value.model_fields_set != {*fields, *(value.model_extra or ())}:
        document["set"] = sorted(value.model_fields_set)
    return document


def _model_from_json(document: dict[str, Any]) -> Any:
    kind: Any = _find(document["class"], BaseModel)
    fields = from_json(document.get("value")) or {}
    extra = from_json(document.get("extra")) or {}
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
    try:
        _find(reference, None)
    except Invalid as error:
        raise NotJson(f"{where}: {error}", remedy="define the class at the top level of a module") from error
    return reference


def _find(reference: str, base: type | None) -> type:
    module, _, name = str(reference).partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise Invalid(
            f"the class {reference} of a recorded value cannot be found: {error}",
            remedy="keep the class where it was, or register a codec",
        ) from error
    if not (isinstance(found, type) and (base is None or issubclass(found, base))):
        raise Invalid(f"{reference} of a recorded value is not a class of the expected kind")
    return found


def _rebuild(kind: type, fields: dict[str, Any]) -> Any:
    """A dataclass instance with exactly the recorded fields, whatever its ``__init__`` would compute."""
    if not dataclasses.is_dataclass(kind):
        raise Invalid(f"{kind.__module__}:{kind.__qualname__} of a recorded value is no dataclass any more")
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made
