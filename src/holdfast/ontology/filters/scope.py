"""Where the SQL compilers find the fields of a row: their scope. Pure.

A query reads up to three tables: the rows themselves, and the entities at the two ends of a relation. Each is a
``Source``: the SQL of its ``fields_json``, and the typed columns that can be relied on. Whoever builds the query decides
which columns those are, file by file; a column that is not named here is not touched.

    scope = {"own": Source('r."fields_json"', {"age": TypedColumn('r."age"', "int", complete=True)})}
    compile_where(predicate, scope) -> Sql(text, params)

``text`` has one ``?`` for each parameter, in order. Where an end does not exist, all columns of its source are NULL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from holdfast.ontology.filters.ast import End
from holdfast.ontology.typespec import Choice, ListOf, Node, Primitive, without_null

Form = Literal["text", "int", "float", "bool", "timestamp", "date", "decimal", "blob", "json", "list", "key"]
"""What a column holds: one of the types of ``ontology/columns.py``.

"json" is the canonical JSON of a field that has no type of its own; "list" is a list of any of the others, of which
only the length and the nulls are used; "key" is a text column of identity (``entity_key``, ``left_key``,
``instance_key``), from which a value is read as its field is declared.
"""


class Sql(NamedTuple):
    """A piece of SQL and the values of its ``?``, in order. No value and no name of a user is ever part of ``text``
    without being quoted."""

    text: str
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TypedColumn:
    """``sql`` is the quoted column. ``complete``: NULL there means null in ``fields_json``, for every row in scope; false
    if a file lacks the column, has it in another form, or names it as partial. Then ``fields_json`` is asked where the
    column is NULL; every value that is there must still be of this form."""

    sql: str
    form: Form
    complete: bool


@dataclass(frozen=True)
class Source:
    """One table. Without typed columns everything is read from ``fields_json``."""

    fields_json: str
    columns: Mapping[str, TypedColumn] = field(default_factory=dict)


Scope = Mapping[End, Source]


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


_FORMS: dict[str, Form] = {
    "str": "text",
    "UUID": "text",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "datetime": "timestamp",
    "date": "date",
    "Decimal": "decimal",
    "bytes": "blob",
}


def form_of(node: Node) -> Form:
    """The form of the typed column that ``columns.typed_columns`` makes for a field of this type."""
    match without_null(node)[0]:
        case Primitive() as primitive:
            return _FORMS.get(primitive.name, "json")
        case Choice() as choice:
            return "text" if choice.stored is str else "int"
        case ListOf(item=item):
            return "json" if form_of(item) in ("json", "list") and not _typed_list(item) else "list"
    return "json"


def _typed_list(node: Node) -> bool:
    inner = without_null(node)[0]
    return isinstance(inner, ListOf) and form_of(inner) == "list"
