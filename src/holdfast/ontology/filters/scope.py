"""Where the SQL compilers find the fields of a row: their scope. Pure.

A query reads up to three tables: the rows themselves, and the entities at the two ends of a relation. Each is a
``Source``: the SQL of its ``fields_json``, and the typed columns that can be relied on. The caller decides which those
are, file by file; a column that is not named here is not used.

    scope = {"own": Source('r."fields_json"', {"age": TypedColumn('r."age"', "int", complete=True)})}
    compile_where(predicate, scope) -> Sql(text, params)

``text`` has one ``?`` for each parameter, in order. Where an end does not exist, all columns of its source are NULL.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.ontology.types.expressions.ast import End
from holdfast.ontology.types.typespec import Form, ListOf, Node, form_of, without_null


class Sql(NamedTuple):
    """A piece of SQL and the values of its ``?``, in order. No value and no name of a user is ever part of ``text``
    without being quoted."""

    text: str
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TypedColumn:
    """One column, quoted.

    ``complete``: NULL there means null in ``fields_json``, for every row in scope. It is false if a file lacks the
    column, has it in another form, or names it as partial; then ``fields_json`` is asked where the column is NULL, and
    whatever is not NULL must still be of this form. ``items`` is the form of the items of a list.
    """

    sql: str
    form: Form
    complete: bool
    items: Form | None = None


@dataclass(frozen=True)
class Source:
    """One table. Without typed columns everything is read from ``fields_json``."""

    fields_json: str
    columns: Mapping[str, TypedColumn] = field(default_factory=dict)


Scope = Mapping[End, Source]


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def typed_column(sql: str, node: Node, *, complete: bool) -> TypedColumn:
    """The column of a field of this type, as ``columns.typed_columns`` makes it."""
    plain, form = without_null(node)[0], form_of(node)
    items = form_of(plain.item) if isinstance(plain, ListOf) and form == "list" else None
    return TypedColumn(sql, form, complete, items)
