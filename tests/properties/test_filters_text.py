"""Every predicate can be written as text, and is read back as it was."""

import math
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.ontology.filters.parse import Misread, parse
from holdfast.ontology.filters.render import to_text
from holdfast.ontology.types.expressions.ast import And, Comparison, Or
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from tests.properties.filters import Kind, predicates, schemas

many = settings(suppress_health_check=list(HealthCheck))


def declared(schema: dict[str, Kind]) -> Any:
    """A relation between two things of its own kind, as far as fields go."""
    nodes = {name: kind.node for name, kind in schema.items()}
    end = TypeInfo(TypeId("entity", "End"), {}, nodes)
    return TypeInfo(TypeId("relation", "Thing"), {}, nodes, (end, end))


def plain(predicate: Any) -> Any:
    """Without conjunctions of one, which nobody can write; and NaN made equal to itself."""
    match predicate:
        case And(terms=(only,)) | Or(terms=(only,)):
            return plain(only)
        case And(terms=terms):
            return And(tuple(map(plain, terms)))
        case Or(terms=terms):
            return Or(tuple(map(plain, terms)))
    inner = (
        {
            name: plain(value) if not isinstance(value, float | tuple) else repr(value)
            for name, value in vars(predicate).items()
        }
        if hasattr(predicate, "__dataclass_fields__")
        else None
    )
    return predicate if inner is None else (type(predicate), sorted(inner.items()))


@many
@given(st.data())
def test_text_gives_the_predicate_back(data: st.DataObject) -> None:
    schema = data.draw(schemas)
    predicate = data.draw(predicates(schema, ("own", "left", "right")))
    text = to_text(predicate)
    assert plain(parse(text, declared(schema))) == plain(predicate), text


@many
@given(schemas, st.text(st.sampled_from('f0 .[]()"\\`=<>!andornotin,any1-e')) | st.text())
def test_other_texts_are_refused_and_never_break_the_parser(schema: dict[str, Kind], text: str) -> None:
    try:
        found = parse(text, declared(schema))
    except Misread as error:
        assert 0 <= error.position <= len(text)  # noqa: PT017  # most texts are refused, some are not
    else:
        assert plain(parse(to_text(found), declared(schema))) == plain(found)


def test_infinities_and_nan_are_numbers() -> None:
    thing = declared({"f0": Kind(float, st.floats())})
    found = parse("f0 == nan or f0 < -inf", thing)
    assert isinstance(found, Or)
    first, second = found.terms
    assert isinstance(first, Comparison)
    assert isinstance(first.value, float)
    assert math.isnan(first.value)
    assert isinstance(second, Comparison)
    assert second.value == -math.inf
