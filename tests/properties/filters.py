"""Generated schemas, rows and predicates, for the tests of the query language."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

from hypothesis import strategies as st
from typing_extensions import TypedDict

from holdfast.ontology.types.codecs import Codec
from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import (
    And,
    Comparison,
    End,
    FieldPath,
    In,
    IsNull,
    Length,
    Not,
    Or,
    Order,
    Predicate,
    Quantified,
    Text,
    TextOperator,
)
from holdfast.ontology.types.expressions.fitting import fitted, item_node, node_at, reading_of
from holdfast.ontology.types.typespec import Node, analyse, without_null

FAMILY = (*'aAb%_éÉİß𝄞\uffff\x00"\\', "", "ab", "a%", "a_b", "\u03c2", "\u03a3", "\u03c3", "1.5", "NaN", "Infinity")
FAMILY += (
    "2024-02-29",
    "20240229",
    "2024-02-29T12:00:00",
    "2024-02-29 12:00:00+01:00",
    "2024-02-29T12",
    "QQ==",
    "QR==",
)
PATTERNS = ("a", "^a", "b$", "^.$", r"\s", r"\w", "[É-é]", "\u03c3", "(a|b)+_?$", "x{0,2}", r"\bA")
EDGES = (0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63))
BEYOND = (2**63, -(2**63) - 1, 2**64, 10**30, -(10**45))
"""Numbers that no field holds; conditions may name them, and fields of any shape hold them."""
FRACTIONS = (0.0, -0.0, 0.1, 1.5, float(2**53), 1e23, -1e300, 5e-324, 2.0**64)

texts = st.sampled_from(FAMILY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
wholes = st.sampled_from(EDGES) | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
finite = st.sampled_from(FRACTIONS) | st.floats(allow_nan=False, allow_infinity=False)
floats = finite | st.sampled_from((float("nan"), float("inf"), float("-inf")))
ODD_DECIMALS = ("0", "-0.00", "1.0", "1.00", "0.1", "1E+5", "1E-18", "-2.5", "1E+19")
decimals = st.sampled_from(list(map(Decimal, ODD_DECIMALS)))
decimals |= st.decimals(-(10**20) + 1, 10**20 - 1, places=18)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])
moments = st.sampled_from([datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC)])
moments |= st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=zones)  # noqa: DTZ001  # zones are drawn
days = st.sampled_from([date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]) | st.dates()


class Tier(Enum):
    GOLD = "gold"
    STANDARD = 'ständ"ard'


class Level(Enum):
    LOW = 1
    HIGH = 2**62


class Place(TypedDict):
    city: str
    visits: int


class Event(TypedDict):
    kind: str
    at: datetime | None
    weight: float


@dataclass(frozen=True)
class Kind:
    """An annotation and the values that fields of it have."""

    annotation: Any
    values: st.SearchStrategy[Any]

    @property
    def node(self) -> Node:
        return analyse(self.annotation, "field")


places = st.fixed_dictionaries({"city": texts, "visits": wholes})
events = st.fixed_dictionaries({"kind": texts, "at": st.none() | moments, "weight": floats})
json_leaves = st.none() | st.booleans() | wholes | st.sampled_from(BEYOND) | finite | texts
json_values = st.recursive(
    json_leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["city", "kind", "a", "0", 'q"', "\\"]), inner)
    ),
    max_leaves=5,
)
SCALARS = [
    Kind(str, texts),
    Kind(int, wholes),
    Kind(float, floats),
    Kind(bool, st.booleans()),
    Kind(datetime, moments),
    Kind(date, days),
    Kind(Decimal, decimals),
    Kind(bytes, st.binary(max_size=3)),
    Kind(UUID, st.uuids()),
    Kind(Tier, st.sampled_from(Tier)),
    Kind(Level, st.sampled_from(Level)),
    Kind(Literal["a", "b"], st.sampled_from(["a", "b"])),
]
KINDS = [
    *SCALARS,
    *(Kind(each.annotation | None, st.none() | each.values) for each in SCALARS[:9]),
    *(Kind(list[each.annotation], st.lists(each.values, max_size=3)) for each in SCALARS),  # type: ignore[name-defined]
    Kind(list[list[int]], st.lists(st.lists(wholes, max_size=2), max_size=2)),
    Kind(list[str | None] | None, st.none() | st.lists(st.none() | texts, max_size=3)),
    Kind(int | float, wholes | floats),
    Kind(int | str | None, st.none() | wholes | texts),
    Kind(Place, places),
    Kind(list[Event], st.lists(events, max_size=3)),
    Kind(dict[str, int], st.dictionaries(st.sampled_from(["city", "a"]), wholes, max_size=2)),
    Kind(Any, json_values),
    Kind(list[Any], st.lists(json_values, max_size=3)),
]
kinds = st.sampled_from(KINDS)
ANY_VALUE = [*(each.values for each in SCALARS), st.sampled_from(BEYOND)]


def stored(kind: Kind) -> st.SearchStrategy[Any]:
    """JSON values of a field: mostly its own, sometimes those of another type, as after a change of the schema."""
    own, drifted = _written(kind), kinds.flatmap(_written)
    return st.one_of(own, own, own, st.none(), drifted, json_values)


def _written(kind: Kind) -> st.SearchStrategy[Any]:
    texts = Codec(kind.node).texts
    return kind.values.map(lambda value: json.loads(texts([value])[0]))


def rows(schema: Mapping[str, Kind]) -> st.SearchStrategy[dict[str, Any]]:
    """What ``fields_json`` may say; fields may be absent."""
    return st.fixed_dictionaries({}, optional={name: stored(kind) for name, kind in schema.items()})


schemas = st.lists(kinds, min_size=1, max_size=3).map(lambda found: {f"f{n}": kind for n, kind in enumerate(found)})
TESTS: tuple[TextOperator, ...] = ("equals", "contains", "startswith", "endswith")
STEPS = ("city", "visits", "kind", "a", "0", 'q"', "\\", "absent")


@dataclass(frozen=True)
class Located:
    """A path and its declared type."""

    path: FieldPath
    node: Node
    values: st.SearchStrategy[Any]


@st.composite
def located(draw: st.DrawFn, schema: Mapping[str, Kind], end: End = "own") -> Located:
    name = draw(st.sampled_from(sorted(schema)))
    kind = schema[name]
    steps: tuple[str, ...] = ()
    if draw(st.booleans()):
        steps = (draw(st.sampled_from(STEPS)),)
    try:
        return Located(FieldPath(end, name, steps), node_at(kind.node, steps, name), kind.values)
    except InvalidQuery:
        return Located(FieldPath(end, name), kind.node, kind.values)


@st.composite
def value_for(draw: st.DrawFn, place: Located) -> Any:
    """A reading and a value that this place can be compared with; None if there is none."""
    for strategy in (place.values, *draw(st.permutations(ANY_VALUE))):
        value = draw(strategy)
        value = draw(st.sampled_from(value)) if isinstance(value, list) and value else value
        try:
            return fitted(place.node, value, "field")
        except (InvalidQuery, RecursionError):
            continue
    return None


@st.composite
def atoms(draw: st.DrawFn, place: Located) -> Predicate:
    path = place.path
    found = draw(value_for(place))
    choice = draw(st.integers(0, 6))
    if found is None or choice == 0:
        return IsNull(path)
    reading, value = found
    if choice == 1:
        others = [other for _ in range(2) if (other := draw(value_for(place))) is not None]
        return In(path, (value, *(other for kind, other in others if kind == reading)), reading)
    if choice == 2:
        other = draw(value_for(place))
        if other is not None:
            return And((Comparison(path, ">=", value, reading), Comparison(path, "<=", other[1], other[0])))
    if reading == "text" and choice in (3, 4):
        operator = draw(st.sampled_from(TESTS))
        return Text(path, operator, value[: draw(st.integers(0, 3))], draw(st.booleans()))
    if reading == "text" and choice == 5:
        return Text(path, "matches", draw(st.sampled_from(PATTERNS)), draw(st.booleans()))
    return Comparison(path, draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="])), value, reading)


@st.composite
def quantified(draw: st.DrawFn, place: Located) -> Predicate:
    try:
        node = item_node(without_null(place.node)[0], "field")
    except InvalidQuery:
        return draw(atoms(place))
    if draw(st.booleans()):
        return Length(place.path, draw(st.sampled_from(["==", "!=", "<", ">="])), draw(st.integers(-1, 3)))
    steps: tuple[str, ...] = (draw(st.sampled_from(STEPS)),) if draw(st.booleans()) else ()
    try:
        inner = node_at(node, steps, "item")
    except InvalidQuery:
        inner, steps = node, ()
    item = Located(FieldPath("item", "", steps), inner, place.values)
    where = draw(st.recursive(atoms(item), lambda inner: combined(inner, 1), max_leaves=2))
    return Quantified(draw(st.sampled_from(["any", "all"])), place.path, where)


def combined(inner: st.SearchStrategy[Predicate], least: int = 0) -> st.SearchStrategy[Predicate]:
    several = st.lists(inner, min_size=least, max_size=3).map(tuple)
    return inner.map(Not) | several.map(And) | several.map(Or)


def predicates(schema: Mapping[str, Kind], ends: tuple[End, ...] = ("own",)) -> st.SearchStrategy[Predicate]:
    leaves = st.one_of([located(schema, end).flatmap(lambda place: atoms(place) | quantified(place)) for end in ends])
    return st.recursive(leaves, combined, max_leaves=4)


@st.composite
def orders(draw: st.DrawFn, schema: Mapping[str, Kind]) -> list[Order]:
    found = []
    for _ in range(draw(st.integers(1, 2))):
        place = draw(located(schema))
        try:
            reading = reading_of(place.node, "field", "ordered")
        except InvalidQuery:
            continue
        found.append(Order(place.path, reading, draw(st.booleans()), draw(st.sampled_from(["first", "last"]))))
    return found


def body(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
