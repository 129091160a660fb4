"""Predicates and orderings in SQL for DuckDB. Pure: values are parameters, and names are quoted by the scope.

A field is read from its typed column if the scope has one of the right form. If that column is complete, the predicate
is a plain comparison, so statistics of files and row groups can prune. Otherwise ``fields_json`` is read where the
column is NULL.

SQL has three truth values, and this language has two. NULL counts as false, so a condition may be NULL as a filter.
Below ``NOT`` it may not: there ``strict`` turns NULL into false.
"""

from dataclasses import dataclass

from holdfast.ontology.filters.jsonsql import NUMBERS, SPECIAL, WHOLES, JsonPlace, KeyPlace
from holdfast.ontology.filters.operand import (
    ALWAYS,
    NEVER,
    Domain,
    Operand,
    Scope,
    Source,
    Sql,
    Test,
    TypedColumn,
    fill,
    joined,
)
from holdfast.ontology.types.expressions.ast import (
    And,
    Comparison,
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
)
from holdfast.ontology.types.readings import Reading
from holdfast.ontology.types.typespec import Form

_READ_FROM: dict[Reading, tuple[Form, Domain]] = {
    "text": ("text", "text"),
    "number": ("int", "int"),
    "float": ("float", "double"),
    "decimal": ("decimal", "decimal"),
    "bool": ("bool", "bool"),
    "datetime": ("timestamp", "timestamp"),
    "date": ("date", "date"),
    "bytes": ("blob", "blob"),
}
"""The form of column that can be used for a reading, and its domain."""
_ITEM = "item"
_NOTHING = "CAST(NULL AS JSON)"


def compile_where(predicate: Predicate, scope: Scope) -> Sql:
    """A condition for WHERE or FILTER: true for the rows for which the predicate holds, otherwise false or NULL."""
    return _Compiler(scope).holds(predicate, strict=False)


@dataclass(frozen=True)
class Place:
    """Where the value of a path is: in a typed column, in JSON, or in both."""

    json: JsonPlace | KeyPlace
    column: TypedColumn | None = None

    def typed(self, reading: Reading) -> Operand | None:
        """The typed column as an operand, if it can be used for this reading."""
        form, domain = _READ_FROM.get(reading, (None, None))
        if self.column is None or domain is None or self.column.form != form:
            return None
        return Operand(Sql(self.column.sql), domain)

    @property
    def complete(self) -> bool:
        return self.column is not None and self.column.complete

    def test(self, reading: Reading, of: Test) -> Sql:
        """``of`` applied to the value; NULL if there is none."""
        operand = self.typed(reading)
        if operand is None:
            return self.json.test(reading, of)
        return self.either(of(operand), self.json.test(reading, of))

    def operand(self, reading: Reading) -> Operand | None:
        """The value as an operand; None if it has several domains."""
        typed = self.typed(reading)
        if typed is not None and self.complete:
            return typed
        found = self.json.operand(reading)
        if found is None or typed is None:
            return found
        return Operand(self.either(typed.sql, found.sql), found.domain)

    def either(self, typed: Sql, otherwise: Sql) -> Sql:
        """The first if the column has a value, otherwise the second."""
        if self.column is None:
            return otherwise
        if self.column.complete:
            return typed
        return fill(f"CASE WHEN {self.column.sql} IS NOT NULL THEN {{}} ELSE {{}} END", typed, otherwise)


def place_of(path: FieldPath, scope: Scope) -> Place:
    source = scope[path.end]
    column = source.columns.get(path.field)
    steps = path.steps if path.end == "item" else (path.field, *path.steps)
    if column is not None and column.form == "key":
        return Place(JsonPlace(_NOTHING, ()) if path.steps else KeyPlace(column.sql))
    if column is not None and column.form == "json" and column.complete:
        return Place(JsonPlace(column.sql, path.steps))
    if column is None or path.steps or column.form == "json":
        return Place(JsonPlace(source.fields_json, steps))
    return Place(JsonPlace(source.fields_json, steps), column)


class _Compiler:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def holds(self, predicate: Predicate, *, strict: bool) -> Sql:
        match predicate:
            case And(terms=terms):
                return self._combined(terms, " AND ", ALWAYS, strict=strict)
            case Or(terms=terms):
                return self._combined(terms, " OR ", NEVER, strict=strict)
            case Not(term=term):
                return fill("(NOT {})", self.holds(term, strict=True))
            case IsNull(path=path):
                return self._is_null(path)
            case Comparison(operator="!="):
                return self._differs(predicate)
            case Length(path=path, operator="!=", value=value):
                return fill("(NOT {})", self.holds(Length(path, "==", value), strict=True))
        return self._strictly(self._atom(predicate), strict)

    def _combined(self, terms: tuple[Predicate, ...], word: str, empty: Sql, *, strict: bool) -> Sql:
        if not terms:
            return empty
        parts = joined(word, [self.holds(term, strict=strict) for term in terms])
        return fill("({})", parts)

    @staticmethod
    def _strictly(condition: Sql, strict: bool) -> Sql:
        return fill("coalesce({}, false)", condition) if strict else fill("({})", condition)

    def _atom(self, predicate: Comparison | In | Text | Length | Quantified) -> Sql:
        place = place_of(predicate.path, self._scope)
        match predicate:
            case Comparison(operator=operator, value=value, reading=reading):
                return place.test(reading, lambda operand: operand.compare(operator, value))
            case In(values=values, reading=reading):
                return place.test(reading, lambda operand: operand.among(values))
            case Text(operator=text_operator, value=text, fold=folded):
                return place.test("text", lambda operand: operand.text(text_operator, text, folded=folded))
            case Length():
                return self._length(predicate, place)
            case Quantified():
                return self._quantified(predicate, place)

    def _differs(self, predicate: Comparison) -> Sql:
        """Not equal, which null and unlike values are."""
        place = place_of(predicate.path, self._scope)
        operand = place.typed(predicate.reading) if place.complete else None
        plain = None if operand is None else operand.differs(predicate.value)
        if plain is not None:
            return fill("({})", plain)
        equal = Comparison(predicate.path, "==", predicate.value, predicate.reading)
        return fill("(NOT {})", self.holds(equal, strict=True))

    def _is_null(self, path: FieldPath) -> Sql:
        place = place_of(path, self._scope)
        absent = Sql(f"{place.json.column} IS NULL") if isinstance(place.json, KeyPlace) else place.json.is_null
        if place.column is None:
            return fill("({})", absent)
        column = Sql(f"{place.column.sql} IS NULL")
        return fill("({})", column) if place.complete else fill("({} AND {})", column, absent)

    def _length(self, predicate: Length, place: Place) -> Sql:
        def compared(length: Sql) -> Sql:
            return Operand(length, "int").compare(predicate.operator, predicate.value)

        typed = place.column.sql if place.column is not None and place.column.form == "list" else None
        if isinstance(place.json, KeyPlace):
            return NEVER
        listed = fill("CASE WHEN {} = 'ARRAY' THEN {} END", place.json.type, compared(place.json.length))
        return listed if typed is None else place.either(compared(Sql(f"len({typed})")), listed)

    def _quantified(self, predicate: Quantified, place: Place) -> Sql:
        if isinstance(place.json, KeyPlace):
            return NEVER
        listed = fill(
            "CASE WHEN {} = 'ARRAY' THEN {} END",
            place.json.type,
            self._each(predicate, place.json.items, Source(_ITEM)),
        )
        if place.column is None or place.column.form != "list" or place.column.items is None:
            return listed
        item = Source(_NOTHING, {"": TypedColumn(_ITEM, place.column.items, complete=True)})
        typed = fill(
            f"CASE WHEN {place.column.sql} IS NOT NULL THEN {{}} END",
            self._each(predicate, Sql(place.column.sql), item),
        )
        return place.either(typed, listed)

    def _each(self, predicate: Quantified, items: Sql, item: Source) -> Sql:
        where = _Compiler({**self._scope, "item": item}).holds(predicate.where, strict=True)
        function, of_none = ("list_bool_or", "false") if predicate.quantifier == "any" else ("list_bool_and", "true")
        return fill(f"coalesce({function}(list_transform({{}}, lambda {_ITEM}: {{}})), {of_none})", items, where)


def compile_order(order: Order, scope: Scope) -> Sql:
    """One or more terms for ORDER BY, with commas in between."""
    direction = f"{'DESC' if order.descending else 'ASC'} NULLS {order.nulls.upper()}"
    return joined(", ", [fill(f"{{}} {direction}", value) for value in sort_values(order, scope)])


def sort_values(order: Order, scope: Scope) -> list[Sql]:
    """The values to sort by; NULL for null and unlike values."""
    place = place_of(order.path, scope)
    if order.reading is not None and (operand := place.operand(order.reading)) is not None:
        return [operand.sql]
    if isinstance(place.json, KeyPlace):
        return [Sql(place.json.column)]
    return _any(place.json) if order.reading is None else _numbers(place.json, special=order.reading == "real")


def _any(place: JsonPlace) -> list[Sql]:
    """Booleans, numbers, texts."""
    rank = fill(
        f"CASE WHEN {{}} = 'BOOLEAN' THEN 0 WHEN {{}} IN {NUMBERS} THEN 1 WHEN {{}} = 'VARCHAR' THEN 2 END",
        place.type,
        place.type,
        place.type,
    )
    single = [place.test(reading, lambda operand: operand.sql) for reading in ("bool", "text")]
    return [rank, *_numbers(place, special=False), *single]


def _numbers(place: JsonPlace, *, special: bool) -> list[Sql]:
    """As a double, and as a whole number, which orders numbers whose doubles are equal."""
    matching = fill(f"{{}} IN {NUMBERS}", place.type)
    if special:
        matching = fill(f"({{}} OR ({{}} = 'VARCHAR' AND {{}} IN {SPECIAL}))", matching, place.type, place.text)
    double = fill("CASE WHEN {} THEN TRY_CAST({} AS DOUBLE) END", matching, place.text)
    whole = fill(
        f"CASE WHEN {{}} IN {WHOLES} THEN TRY_CAST({{}} AS HUGEINT) ELSE TRY_CAST({{}} AS HUGEINT) END",
        place.type,
        place.text,
        double,
    )
    return [double, whole]
