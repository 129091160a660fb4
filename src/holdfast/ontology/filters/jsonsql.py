"""Values inside JSON in SQL: ``types/readings.py`` for DuckDB. Pure.

``JsonPlace`` is a place in a JSON document, ``KeyPlace`` a text of identity. ``test(reading, of)`` applies ``of`` to
the value that is read there, and is NULL if there is none. All casts are TRY_CAST: no row may fail a query.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.ontology.filters.operand import Domain, Operand, Sql, Test, bound, fill
from holdfast.ontology.types import readings as forms
from holdfast.ontology.types.readings import Reading

WHOLES = "('UBIGINT', 'BIGINT')"
NUMBERS = "('UBIGINT', 'BIGINT', 'DOUBLE')"
SPECIAL = "('NaN', 'Infinity', '-Infinity')"
_YEARS = (
    "TIMESTAMPTZ '0001-01-01 00:00:00+00:00'",
    "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00:00'",
)


def let(value: Sql, name: str, body: Callable[[Sql], Sql]) -> Sql:
    """The body with a name for the value, which is then computed and written once."""
    return fill(f"list_transform([{{}}], lambda {name}: {{}})[1]", value, body(Sql(name)))


def matches(text: Sql, pattern: str) -> Sql:
    return fill("regexp_full_match({}, {})", text, bound(pattern, "VARCHAR"))


def decimal_of(text: Sql) -> Sql:
    """The value of a decimal number's text; NULL if DECIMAL(38, 18) cannot hold it exactly (the cast would round)."""

    def parts(number: Sql) -> Sql:
        fraction = fill("regexp_extract({}, '[.]([0-9]*)', 1)", number)
        digits = fill("regexp_extract({}, '^[+-]?([0-9]*)', 1) || {}", number, fraction)
        exponent = fill("coalesce(TRY_CAST(regexp_extract({}, '[eE]([+-]?[0-9]+)$', 1) AS BIGINT), 0)", number)
        return fill("struct_pack(t := {}, digits := {}, places := length({}) - {})", number, digits, fraction, exponent)

    def value(part: Sql) -> Sql:
        name = part.text
        significant = f"rtrim({name}.digits, '0')"
        places = f"{name}.places - length({name}.digits) + length({significant})"
        cast = f"TRY_CAST({name}.t AS DECIMAL(38, {forms.PLACES}))"
        return Sql(f"CASE WHEN {significant} = '' THEN 0 WHEN {places} <= {forms.PLACES} THEN {cast} END")

    return let(let(text, "number", parts), "part", value)


def _cast(text: Sql, domain: Domain) -> Operand:
    """The value of a text that has the right form."""
    match domain:
        case "whole":
            return Operand(fill("TRY_CAST({} AS HUGEINT)", text), domain)
        case "double":
            return Operand(fill("TRY_CAST({} AS DOUBLE)", text), domain)
        case "decimal":
            return Operand(decimal_of(text), domain)
        case "bool":
            return Operand(fill("({} = 'true')", text), domain)
        case "timestamp":
            return Operand(_moment(text), domain)
        case "date":
            tried = fill("TRY_CAST({} AS DATE)", text)
            return Operand(fill("CASE WHEN {} >= DATE '0001-01-01' THEN {} END", tried, tried), domain)
        case "blob":
            return Operand(fill("TRY(from_base64({}))", text), domain)
    return Operand(text, "text")


def _value(operand: Operand) -> Sql:
    return operand.sql


def _moment(text: Sql) -> Sql:
    zoned = fill(
        "TRY_CAST(CASE WHEN regexp_matches({}, {}) THEN {} ELSE {} || '+00:00' END AS TIMESTAMPTZ)",
        text,
        bound(f"{forms.ZONE}$", "VARCHAR"),
        text,
        text,
    )
    return fill(f"CASE WHEN {{}} BETWEEN {_YEARS[0]} AND {_YEARS[1]} THEN {{}} END", zoned, zoned)


_TEXT_FORMS: dict[Reading, tuple[str, Domain]] = {
    "decimal": (forms.DECIMAL, "decimal"),
    "datetime": (forms.DATETIME, "timestamp"),
    "date": (forms.DATE, "date"),
    "bytes": (forms.BASE64, "blob"),
}


_DOMAINS: dict[Reading, Domain] = {
    "text": "text",
    "bool": "bool",
    "float": "double",
    **{reading: domain for reading, (_, domain) in _TEXT_FORMS.items()},
}


def json_path(steps: Sequence[str]) -> str:
    """A path as DuckDB reads it. Names may contain anything."""
    return "$" + "".join(f'."{_escaped(step)}"' for step in steps)


@dataclass(frozen=True)
class JsonPlace:
    """``document`` is the SQL of a JSON document, ``path`` leads to a place in it."""

    document: str
    steps: tuple[str, ...]

    @property
    def _path(self) -> str:
        return json_path(self.steps)

    def _with_path(self, function: str, path: str) -> Sql:
        return Sql(f"{function}({self.document}, CAST(? AS VARCHAR))", (path,))

    @property
    def type(self) -> Sql:
        """NULL if there is no value; 'NULL' if it is null."""
        return self._with_path("json_type", self._path)

    @property
    def text(self) -> Sql:
        return self._with_path("json_extract_string", self._path)

    @property
    def document_part(self) -> Sql:
        """The value as JSON."""
        return self._with_path("json_extract", self._path)

    @property
    def items(self) -> Sql:
        return self._with_path("json_extract", f"{self._path}[*]")

    @property
    def length(self) -> Sql:
        return self._with_path("json_array_length", self._path)

    @property
    def is_null(self) -> Sql:
        return fill("coalesce({} = 'NULL', true)", self.type)

    def operand(self, reading: Reading) -> Operand | None:
        """The value; None for numbers, which have several domains."""
        domain = _DOMAINS.get(reading)
        return None if domain is None else Operand(self.test(reading, _value), domain)

    def test(self, reading: Reading, of: Test) -> Sql:
        kind, text = self.type, self.text
        match reading:
            case "text":
                return fill("CASE WHEN {} = 'VARCHAR' THEN {} END", kind, of(_cast(text, "text")))
            case "bool":
                return fill("CASE WHEN {} = 'BOOLEAN' THEN {} END", kind, of(_cast(text, "bool")))
            case "number" | "real":
                return self._number(of, special=reading == "real")
            case "float":
                matching = fill(f"({{}} IN {NUMBERS} OR ({{}} = 'VARCHAR' AND {{}} IN {SPECIAL}))", kind, kind, text)
                return fill("CASE WHEN {} THEN {} END", matching, of(_cast(text, "double")))
        pattern, domain = _TEXT_FORMS[reading]
        matching = fill("{} = 'VARCHAR' AND {}", kind, matches(text, pattern))
        if reading == "decimal":
            whole = fill(f"{{}} IN {NUMBERS} AND {{}}", kind, matches(text, forms.WHOLE))
            matching = fill("(({}) OR ({}))", matching, whole)
        return fill("CASE WHEN {} THEN {} END", matching, of(_cast(text, domain)))

    def _number(self, of: Test, *, special: bool) -> Sql:
        """Whole numbers of 64 bits, and doubles. Each has its own domain, so that nothing is rounded."""
        kind, text = self.type, self.text
        parts = [
            fill(f"WHEN {{}} IN {WHOLES} THEN {{}}", kind, of(_cast(text, "whole"))),
            fill("WHEN {} = 'DOUBLE' THEN {}", kind, of(_cast(text, "double"))),
        ]
        if special:
            test = of(_cast(text, "double"))
            parts.append(fill(f"WHEN {{}} = 'VARCHAR' AND {{}} IN {SPECIAL} THEN {{}}", kind, text, test))
        return fill(f"CASE {' '.join(['{}'] * len(parts))} END", *parts)


def _escaped(step: str) -> str:
    return step.replace("\\", "\\\\").replace('"', '\\"')


@dataclass(frozen=True)
class KeyPlace:
    """The text of a key, which is that of its value (``typeinfo.key_text``)."""

    column: str

    def operand(self, reading: Reading) -> Operand:
        return Operand(self.test(reading, _value), _DOMAINS.get(reading, "whole"))

    def test(self, reading: Reading, of: Test) -> Sql:
        text = Sql(self.column)
        if reading == "text":
            return of(Operand(text, "text"))
        pattern, domain = _TEXT_FORMS.get(reading, (forms.WHOLE, "whole"))
        return fill("CASE WHEN {} THEN {} END", matches(text, pattern), of(_cast(text, domain)))
