"""Parts of a question in words, besides its condition: fields, orders, figures, tests of groups, hops. Pure.

age desc nulls first                             an order
count()  n=count_where(age > 3)  avg(age)  p90=quantile(age, 0.9)
reverse Knows depth 1..3 where since > 2000 to name == "Ada"
first 3 skip 1 by age desc, id along Knows       a hop from some of them
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast, get_args

from holdfast.ontology.filters.evaluate import evaluate
from holdfast.ontology.filters.parse import parse, tokens
from holdfast.ontology.query.aggregation import Key
from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import (
    Aggregate,
    AggregateTerm,
    AvgLen,
    Count,
    End,
    FieldPath,
    Order,
    Predicate,
)
from holdfast.ontology.types.expressions.fitting import item_node, node_at, reading_of
from holdfast.ontology.types.expressions.terms import Function
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.typespec import Anything, Node, Primitive, without_null

_ORDER = re.compile(r"(?P<way>asc|desc)?\s*(?:nulls\s+(?P<nulls>first|last))?", re.IGNORECASE)
_FIGURE = re.compile(r"(?:(?P<name>\w+)\s*=(?!=)\s*)?(?P<function>\w+)\s*\((?P<inside>.*)\)", re.DOTALL)
_DEPTH = re.compile(r"(?P<least>\d+)(?:(?P<span>\.\.)(?P<most>\d*))?")
_BEGIN = re.compile(
    r"(?:first\s+(?P<first>\d+)(?:\s+|$))?(?:skip\s+(?P<skip>\d+)(?:\s+|$))?(?:by\s+(?P<by>.+))?", re.DOTALL
)
_NUMBERS = ("number", "real", "float", "decimal")
FUNCTIONS: tuple[Function, ...] = get_args(Function)


@dataclass(frozen=True)
class Figured:
    """A figure by its name; ``node`` is what it is, for tests of groups."""

    name: str
    term: AggregateTerm
    node: Node


@dataclass(frozen=True)
class HopWords:
    """One hop, taken apart."""

    relation: str
    reverse: bool
    least: int
    most: int | None
    where: str | None
    to: str | None
    told: bool
    """Whether it says how often."""
    first: int | None = None
    """From so many of the entities, in an order; None for all."""
    skip: int = 0
    by: tuple[str, ...] = ()


def field(text: str, described: TypeInfo) -> tuple[FieldPath, Node]:
    """``age``, ``left.name``, ``profile.city``, and names with odd characters in backquotes."""
    (first, *steps), rest = _names(text)
    if rest:
        raise InvalidQuery(f"{text!r} is not a field", remedy="write a name, or names with dots in between")
    return _field(first, steps, described)


def _names(text: str) -> tuple[list[str], str]:
    """The path that a text begins with, and what comes after it."""
    found, names, number = tokens(text), [], 0
    while found[number].kind == "name":
        names.append(found[number].value)
        number += 1
        if not (found[number].kind == "symbol" and found[number].value == "."):
            break
        number += 1
    if not names or (number and found[number - 1].kind == "symbol"):
        raise InvalidQuery(f"{text!r} does not begin with a field", remedy="write a name, as in age or profile.city")
    return names, text[found[number].position :].strip()


def _field(first: str, steps: list[str], described: TypeInfo) -> tuple[FieldPath, Node]:
    sides: tuple[End, ...] = ("left", "right")
    end: End = next((each for each in sides if each == first and steps and described.ends is not None), "own")
    name, rest = (first, steps) if end == "own" else (steps[0], steps[1:])
    return FieldPath(end, name, tuple(rest)), node_at(described.node_of(end, name), tuple(rest), name)


def order(text: str, described: TypeInfo) -> Order:
    (first, *steps), rest = _names(text)
    found = _ORDER.fullmatch(rest)
    if found is None:
        raise InvalidQuery(f"{text!r} is not an order", remedy='write a field, and desc if need be, as in "age desc"')
    path, node = _field(first, steps, described)
    reading = reading_of(node, text, "ordered")
    descending = (found["way"] or "asc").lower() == "desc"
    return Order(path, reading, descending, "first" if (found["nulls"] or "").lower() == "first" else "last")


def key(text: str, described: TypeInfo) -> tuple[Key, Node]:
    """What rows are grouped by."""
    path, node = field(text, described)
    name = ".".join((*(() if path.end == "own" else (path.end,)), path.field, *path.steps))
    return Key(name, path, reading_of(node, text, "grouped by")), node


def figure(text: str, described: TypeInfo) -> Figured:
    found = _FIGURE.fullmatch(text.strip())
    if found is None:
        raise InvalidQuery(f"{text!r} is not a figure", remedy="write count(), n=count(), avg(age), quantile(age, 0.5)")
    function, inside = found["function"], found["inside"].strip()
    name = found["name"] or (function if not inside else re.sub(r"\W+", "_", f"{function}_{inside}").strip("_"))
    match function:
        case "count" if not inside:
            return Figured(name, Count(), Primitive(int))
        case "count_where" if inside:
            return Figured(name, Count(parse(inside, described)), Primitive(int))
        case "avg_len" if inside:
            path, node = field(inside, described)
            item_node(without_null(node)[0], inside)
            return Figured(name, AvgLen(path), Primitive(float))
    if function not in FUNCTIONS or not inside:
        known = ", ".join(("count", "count_where", "avg_len", *FUNCTIONS))
        raise InvalidQuery(f"{text!r} is not a figure", remedy=f"there are: {known}; all but count are of a field")
    return _of_field(name, cast("Function", function), inside, described)


def _of_field(name: str, function: Function, inside: str, described: TypeInfo) -> Figured:
    at = None
    if function == "quantile":
        inside, _, share = inside.rpartition(",")
        try:
            at = float(share)
        except ValueError:
            at = -1.0
        if not inside or not 0 <= at <= 1:
            raise InvalidQuery(f"{share!r} is not a share", remedy="write quantile(age, 0.5), with a share from 0 to 1")
    path, node = field(inside, described)
    reading = reading_of(node, inside, "aggregated")
    if reading is None and isinstance(node, Anything):
        reading = "number"
    numbers = function in ("sum", "avg")
    if reading is None or (numbers and reading not in _NUMBERS):
        wanted = " that are numbers" if numbers else ""
        raise InvalidQuery(f"{inside}: {function} needs values of one kind{wanted}")
    kinds: dict[str, Node] = {"avg": Primitive(float), "count_distinct": Primitive(int)}
    return Figured(name, Aggregate(function, path, reading, at), kinds.get(function, node))


def test_of_groups(text: str, columns: Mapping[str, Node]) -> Predicate:
    """A condition on the keys and figures of a group, by their names."""
    return parse(_whole_names(text, columns), TypeInfo(TypeId("entity", "the group"), {}, columns))


def _whole_names(text: str, columns: Mapping[str, Node]) -> str:
    """A key such as left.tier is one name of the group, not a path: it gets its quotes."""
    found = tokens(text)
    parts, done = [], 0
    for name in range(len(found)):
        if found[name].position < done or found[name].kind != "name" or not found[name].plain:
            continue
        end, path = name, found[name].value
        while found[end + 1].kind == "symbol" and found[end + 1].value == "." and found[end + 2].kind == "name":
            end += 2
            path += f".{found[end].value}"
        if end > name and path in columns:
            parts += [text[done : found[name].position], f"`{path}` "]
            done = found[end + 1].position
    return "".join([*parts, text[done:]])


def passes(test: Predicate, group: Mapping[str, Any]) -> bool:
    return evaluate(test, {name: _stored(value) for name, value in group.items()})


def _stored(value: Any) -> Any:
    """As ``fields_json`` has such a value."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    return value


def hop(text: str) -> HopWords:
    parts = _parts(text)
    words = parts["hop"].split()
    reverse = bool(words) and words[0].lower() == "reverse"
    words = words[reverse:]
    depth = None
    if len(words) == 3 and words[1].lower() == "depth":
        depth = _DEPTH.fullmatch(words[2])
    if not words or (len(words) > 1 and depth is None):
        raise InvalidQuery(
            f"{text!r} is not a hop",
            remedy='write a relation, as in "Knows", or "reverse Knows depth 1..3 where since > 2000 to age > 30"',
        )
    first, skip, by = _beginning(text, parts.get("begin", ""))
    least, most = 1, cast("int | None", 1)
    if depth is not None:
        least = int(depth["least"])
        most = least if not depth["span"] else int(depth["most"]) if depth["most"] else None
    said = (parts.get("where"), parts.get("to"), depth is not None)
    return HopWords(words[0], reverse, least, most, *said, first, skip, by)


def _beginning(text: str, begin: str) -> tuple[int | None, int, tuple[str, ...]]:
    """``first 3 skip 1 by age desc, id``: from which of the entities a hop leads."""
    found = _BEGIN.fullmatch(begin)
    if found is None:
        raise InvalidQuery(
            f"{text!r} does not say where it begins", remedy="write it as in: first 3 by age desc along Knows"
        )
    by = found["by"] or ""
    commas = [token.position for token in tokens(by) if token.kind == "symbol" and token.value == ","]
    spans = zip([0, *(comma + 1 for comma in commas)], [*commas, len(by)], strict=True)
    orders = tuple(by[start:end].strip() for start, end in spans) if by.strip() else ()
    return int(found["first"]) if found["first"] else None, int(found["skip"] or 0), orders


def _parts(text: str) -> dict[str, str]:
    """What comes before ``along``, after it, after ``where``, and after ``to``: words by themselves, not in quotes."""
    marks: list[tuple[str, int]] = [("hop", 0)]
    wanted: Sequence[str] = ("along", "where", "to")
    for token in tokens(text.replace("..", "  ")):  # a span of depths is no token of conditions
        if token.plain and token.kind == "name" and token.value in wanted:
            marks.append((token.value, token.position))
            wanted = wanted[wanted.index(token.value) + 1 :]
    ends = [position for _, position in marks[1:]] + [len(text)]
    found = {}
    for (name, position), end in zip(marks, ends, strict=True):
        found[name] = text[position + (0 if name == "hop" else len(name)) : end].strip()
    return found if "along" not in found else {**found, "begin": found["hop"], "hop": found["along"]}
