"""Where the next page begins: after a row, in whatever order the rows come. Pure.

A row is named by its identity, in history by its commit too. What it is ordered by is looked up in the same statement,
at the commit of all pages: so a cursor carries no payload, and no value has to survive a way to text and back. Rows
that are equal in all that is asked for go on by identity; nulls stand where the order has them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.ontology.filters.ast import Order
from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.ordersql import sort_values
from holdfast.ontology.filters.scope import Sql

if TYPE_CHECKING:
    from holdfast.ontology.statement import Rows

Place = tuple[int | str, ...]
"""The identity of a row; in history its commit comes first."""


def beyond(rows: "Rows", place: Place) -> "Rows":
    """Only those that come after this row."""
    names = rows.identity
    listed, marks = ", ".join(names), ", ".join(["?"] * len(place))
    if not rows.ask.order:
        return replace(rows, conditions=(*rows.conditions, Sql(f"({listed}) > ({marks})", place)))
    terms = [(order, value) for order in rows.ask.order for value in sort_values(order, rows.scope)]
    columns = [fill(f"{{}} AS v{number}", value) for number, (_, value) in enumerate(terms)]
    columns += [Sql(f"{name} AS i{number}") for number, name in enumerate(names)]
    shown = joined(", ", columns)
    itself = replace(rows, conditions=(Sql(f"({listed}) = ({marks})", place),))
    last = fill("SELECT {} {}", shown, itself.source(shown.text))
    later = Sql(f"({listed}) > ({', '.join(f'mark.i{number}' for number in range(len(names)))})")
    return replace(rows, last=last, conditions=(*rows.conditions, _later(terms, later)))


def _later(terms: Sequence[tuple[Order, Sql]], rest: Sql) -> Sql:
    """Whether a row comes after the last one; ``rest`` decides where all terms are equal."""
    for number, (order, value) in reversed(list(enumerate(terms))):
        mark, sign = f"mark.v{number}", "<" if order.descending else ">"
        if order.nulls == "last":
            after = fill(f"({mark} IS NOT NULL AND ({{}} IS NULL OR {{}} {sign} {mark}))", value, value)
        else:
            after = fill(f"(({mark} IS NULL AND {{}} IS NOT NULL) OR {{}} {sign} {mark})", value, value)
        rest = fill(f"({{}} OR ({{}} IS NOT DISTINCT FROM {mark} AND {{}}))", after, value, rest)
    return rest
