"""Which conditions a field allows, by its declared type. Pure.

``node_at`` finds the type at a path. ``fitted`` gives the reading and the stored form of a value that is compared with
a field. ``check_pattern`` checks a regular expression. All raise ``InvalidQuery`` when a query is built, so that no
query fails while it runs. Patterns are those of RE2: Arrow has the same engine as DuckDB, so both accept the same
patterns, and no pattern takes exponential time.
"""

from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

from holdfast.ontology.types.errors import InvalidQuery, unknown
from holdfast.ontology.types.expressions.ast import Value
from holdfast.ontology.types.readings import Reading, in_utc
from holdfast.ontology.types.typespec import (
    PRIMITIVES,
    Anything,
    Choice,
    DictOf,
    ListOf,
    Node,
    OneOf,
    Primitive,
    Record,
    Ref,
    to_text,
)

Fitted = tuple[Reading, Value]
_NONE = type(None)


def members(node: Node) -> tuple[Node, ...]:
    """The types that a value may have, without null."""
    flat = node.members if isinstance(node, OneOf) else (node,)
    return tuple(member for member in flat if member != Primitive(_NONE))


def node_at(node: Node, steps: tuple[str, ...], label: str) -> Node:
    """The type at ``steps`` inside a field. ``label`` is the field, for the message."""
    records: dict[str, Record] = {}
    for step in steps:
        node = _step(node, step, label, records)
        label = f"{label}.{step}"
    return node


def _step(node: Node, step: str, label: str, records: dict[str, Record]) -> Node:
    found: list[Node] = []
    known: list[str] = []
    for member in members(node):
        inner = records.get(member.name, Anything()) if isinstance(member, Ref) else member
        match inner:
            case Anything() | DictOf(value=Anything()):
                return Anything()
            case DictOf(value=value):
                found.append(value)
            case Record(name=name, fields=fields):
                records[name] = inner
                known += fields
                if not fields:  # known by name alone
                    return Anything()
                if step in fields:
                    found.append(fields[step])
    if not found:
        if known:
            raise unknown(label, step, known)
        remedy = "use any_path or all_path to look into the items of a list" if lists_in(node) else None
        raise InvalidQuery(f"{label} is {describe(node)}, which has nothing inside", remedy=remedy)
    return found[0] if len(found) == 1 else _union(found)


def _union(nodes: list[Node]) -> Node:
    flat = [member for node in nodes for member in (node.members if isinstance(node, OneOf) else (node,))]
    return Anything() if any(isinstance(member, Anything) for member in flat) else OneOf(tuple(dict.fromkeys(flat)))


def lists_in(node: Node) -> list[ListOf]:
    return [member for member in members(node) if isinstance(member, ListOf)]


def item_node(node: Node, label: str) -> Node:
    """The type of the items of a list."""
    if isinstance(node, Anything):
        return node
    lists = lists_in(node)
    if not lists:
        raise InvalidQuery(f"{label} is {describe(node)}, not a list")
    return lists[0].item if len(lists) == 1 else Anything()


def describe(node: Node) -> str:
    """The type in an error message, such as "of type str"."""
    return f"of type {to_text(node, inner=True)}"


# --- comparisons ---


def fitted(node: Node, value: Any, label: str) -> Fitted:
    """The reading of a field of this type for a comparison with the value, and the value in its stored form."""
    options = members(node)
    if any(isinstance(member, Anything) for member in options):
        found = _fit_anything(value)
    else:
        found = next((fit for member in options if (fit := _fit(member, value)) is not None), None)
    if found is None:
        raise _misfit(node, value, label)
    reading, stored = found
    if isinstance(stored, str):
        check_text(stored, label)
    if reading not in ("number", "float", "decimal"):
        return found
    numeric = _numeric(options, with_decimals=not isinstance(stored, float))
    return numeric, Decimal(stored) if numeric == "decimal" and isinstance(stored, int) else stored


def _numeric(options: tuple[Node, ...], *, with_decimals: bool = True) -> Reading:
    """The reading of numbers in a field that may have several kinds of them."""
    kinds = {member.python if isinstance(member, Primitive) else getattr(member, "stored", None) for member in options}
    if Decimal in kinds and with_decimals:
        return "decimal"
    if float not in kinds:
        return "number"
    if kinds - {float, int, bool, None}:  # texts: NaN would be one of them
        return "number"
    return "real" if int in kinds else "float"


def _fit_anything(value: Any) -> Fitted | None:
    kind = type(value)
    if kind is float or kind is int:
        return "number", value
    if isinstance(value, Enum):
        return _fit_anything(value.value)
    return _convert(kind, value)


def _convert(kind: type, value: Any) -> Fitted | None:
    """A value of exactly this type in its stored form."""
    reading = PRIMITIVES[kind].reading if kind in PRIMITIVES else None
    if reading is None or type(value) is not kind:
        return None
    made: Any = value
    if kind is datetime:
        return "datetime", in_utc(made)
    if kind is UUID:
        return "text", str(made)
    if kind is Decimal and not made.is_finite():
        return None
    return reading, made


def _fit(member: Node, value: Any) -> Fitted | None:
    match member:
        case Choice():
            return _fit_choice(member, value)
        case Primitive(python=python):
            if python in (int, float) and type(value) in (int, float):
                return "number" if python is int else "float", value
            if python is Decimal and type(value) is int:
                return "decimal", Decimal(value)
            return _convert(python, value)
    return None


def _fit_choice(choice: Choice, value: Any) -> Fitted | None:
    stored: Any = value.value if choice.python is not None and type(value) is choice.python else value
    fits = type(stored) is choice.stored and stored in choice.values
    return ("text" if choice.stored is str else "number", stored) if fits else None


def _misfit(node: Node, value: Any, label: str) -> InvalidQuery:
    choices = [str(one) for member in members(node) if isinstance(member, Choice) for one in member.values]
    if choices and isinstance(value, str | int):
        return InvalidQuery(f"{label} is never {value!r}", remedy=f"it is one of {', '.join(choices)}")
    if Primitive(Decimal) in members(node) and type(value) is float:
        return InvalidQuery(
            f"{label} is a Decimal, and a float is hardly ever equal to one", remedy=f'write Decimal("{value!r}")'
        )
    if any(isinstance(member, ListOf) for member in members(node)):
        remedy = "ask for its items with any_path() or all_path(), or for its length()"
    elif any(isinstance(member, Record | DictOf | Ref) for member in members(node)):
        remedy = 'ask for something inside with path("...")'
    else:
        remedy = None
    return InvalidQuery(f"{label} is {describe(node)}, it cannot be compared with {_shown(value)}", remedy=remedy)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


# --- orders and figures ---


def reading_of(node: Node, label: str, purpose: str) -> Reading | None:
    """The reading of all values of a field, to order or add them; None if it may have values of several types."""
    options = members(node)
    readings = {_single(member) for member in options}
    if None in readings and not any(isinstance(member, Anything) for member in options):
        raise InvalidQuery(f"{label} is {describe(node)}, which cannot be {purpose}")
    if readings <= {"number", "float", "decimal"} and readings:
        return _numeric(options)
    return readings.pop() if len(readings) == 1 else None


def _single(member: Node) -> Reading | None:
    match member:
        case Primitive(python=python):
            return PRIMITIVES[python].reading
        case Choice():
            return PRIMITIVES[member.stored].reading
    return None


def check_text(text: str, label: str) -> None:
    """Refuses text that is not Unicode."""
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise InvalidQuery(f"{label}: {text!r} is not text, it has half of a surrogate pair")


def require_text(node: Node, label: str) -> None:
    """Refuses a field that never has text."""
    texts = {Primitive(str), Primitive(UUID)}
    for member in members(node):
        if isinstance(member, Anything) or member in texts or (isinstance(member, Choice) and member.stored is str):
            return
    raise InvalidQuery(f"{label} is {describe(node)}, not text")


def pattern_text(pattern: str, *, folded: bool) -> str:
    """The pattern with explicit flags."""
    return f"(?i-ms){pattern}" if folded else f"(?-ims){pattern}"


@lru_cache(maxsize=256)
def check_pattern(pattern: str) -> str:
    """The pattern, or ``InvalidQuery`` if RE2 does not take it."""
    import pyarrow as pa  # noqa: PLC0415  # as below
    import pyarrow.compute as pc  # noqa: PLC0415  # declaring a type must not load Arrow

    try:
        pc.match_substring_regex(pa.array([""]), pattern_text(pattern, folded=False))
    except pa.ArrowInvalid as error:
        reason = str(error).partition(": ")[2].replace(pattern_text("", folded=False), "")
        raise InvalidQuery(
            f"{pattern!r} is not a regular expression ({reason})",
            remedy="patterns are those of RE2: without look-around and without back references",
        ) from error
    return pattern
