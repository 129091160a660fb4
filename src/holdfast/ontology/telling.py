"""A question in a line, for people: ``<Query Customer where tier == "Gold" as of 7 limit 20>``. Pure."""

from holdfast.ontology.filters.ast import And, Order
from holdfast.ontology.filters.render import to_text
from holdfast.ontology.filters.tokens import name_text
from holdfast.ontology.statement import Ask
from holdfast.ontology.times import When


def told(ask: Ask) -> str:
    parts = [ask.shape.type_id.name]
    if ask.origin is not None:
        hop = ask.origin
        way = "" if hop.forward else "reverse "
        parts = [f"{told(hop.ask)} via {way}{hop.relation.type_id.name} to {parts[0]}"]
    terms = ask.where.terms if isinstance(ask.where, And) else (ask.where,)
    if terms := tuple(term for term in terms if term != And(())):
        parts.append(f"where {to_text(And(terms) if len(terms) > 1 else terms[0])}")
    parts += _moments(ask.when)
    if ask.order:
        parts.append(f"order by {', '.join(map(_order, ask.order))}")
    if ask.limit is not None:
        parts.append(f"limit {ask.limit}")
    if ask.offset:
        parts.append(f"offset {ask.offset}")
    return " ".join(parts)


def _moments(when: When) -> list[str]:
    if when.first is not None:
        return [f"between {when.first} and {when.last}"]
    history = "with history" if when.after is None else f"history since {when.after}"
    return [*([history] if when.mode == "history" else []), *([] if when.last is None else [f"as of {when.last}"])]


def _order(order: Order) -> str:
    path = order.path
    end = () if path.end == "own" else (path.end,)
    name = ".".join((*end, *map(name_text, (path.field, *path.steps))))
    return f"{name} desc" if order.descending else name
