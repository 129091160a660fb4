"""Questions without classes: by the names of types and fields, from text. For the command line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from holdfast.base.errors import NotFound
from holdfast.ontology.chain.times import LATEST, When
from holdfast.ontology.filters.parse import parse, tokens
from holdfast.ontology.format.chainstate import fate
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.query.statement import ENDS, Ask
from holdfast.ontology.query.tabular import Columns, columns_of
from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import And, End, FieldPath, Order
from holdfast.ontology.types.expressions.fitting import node_at, reading_of
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema

_ORDER = re.compile(r"(?P<way>asc|desc)?\s*(?:nulls\s+(?P<nulls>first|last))?", re.IGNORECASE)


@dataclass(frozen=True)
class Wording:
    """A question in words."""

    type_name: str
    where: Sequence[str] = ()
    """Conditions, all of which must hold."""
    order_by: Sequence[str] = ()
    columns: Sequence[str] = ()
    limit: int | None = None
    offset: int = 0
    when: When = LATEST


async def understood(tables: SqlTables, wording: Wording) -> Columns:
    """The question, and the columns of its result."""
    known = await tables.tables(wording.when)
    shape = known.get(wording.type_name)
    if shape is None:
        if (gone := fate(await tables.engine.pinned(), wording.type_name)) is not None:
            raise gone
        close = get_close_matches(wording.type_name, known, n=1)
        listed = f"the types are: {', '.join(known) or 'none yet'}"
        raise NotFound(f"there is no type {wording.type_name}", remedy=f"did you mean {close[0]}?" if close else listed)
    by_type = {each.type_id: each for each in known.values()}
    # A relation has keys of ends also where their types have no rows yet.
    ends = tuple(by_type.get(end.type_id) or of_schema(end.type_id, {}) for end in shape.ends or ())
    described = shape if shape.ends is None else replace(shape, ends=(ends[0], ends[1]))
    terms = [parse(text, described) for text in wording.where]
    ask = Ask(
        shape,
        {end: each for end, each in zip(ENDS, ends, strict=False) if each.type_id in by_type},
        where=terms[0] if len(terms) == 1 else And(tuple(terms)),
        when=wording.when,
        order=tuple(order(text, described) for text in wording.order_by),
        limit=wording.limit,
        offset=wording.offset,
    )
    return columns_of(ask, wording.columns)


def order(text: str, described: TypeInfo) -> Order:
    """``age desc nulls first``; names with odd characters in backquotes."""
    found, names, number = tokens(text), [], 0
    while found[number].kind == "name":
        names.append(found[number].value)
        number += 1
        if not (found[number].kind == "symbol" and found[number].value == "."):
            break
        number += 1
    words = _ORDER.fullmatch(text[found[number].position :].strip())
    if not names or found[number - 1].kind == "symbol" or words is None:
        raise InvalidQuery(f"{text!r} is not an order", remedy='write a field, then desc if wanted, as in "age desc"')
    first, *steps = names
    end: End = next((each for each in ENDS if each == first and steps and described.ends is not None), "own")
    name, rest = (first, steps) if end == "own" else (steps[0], steps[1:])
    path = FieldPath(end, name, tuple(rest))
    reading = reading_of(node_at(described.node_of(end, name), path.steps, name), text, "ordered")
    descending = (words["way"] or "asc").lower() == "desc"
    return Order(path, reading, descending, "first" if (words["nulls"] or "").lower() == "first" else "last")
