"""Random commits, made in the library and in the model alike."""

from collections.abc import Callable
from datetime import datetime
from random import Random
from typing import Any, NamedTuple

from holdfast.ontology import Mixin
from holdfast.ontology.session import Ontology
from tests.properties.query_model import values
from tests.properties.query_model.classes import CLASSES, Buys, Item, Knows, Person
from tests.properties.query_model.past import Fact, Key, Kind, Past, Write

OFTEN: tuple[Kind, ...] = ("Person", "Person", "Person", "Item", "Knows", "Knows", "Buys")


class Made(NamedTuple):
    """One object, as the library takes it and as the model keeps it."""

    key: Key
    given: Mixin
    fact: Fact


def _person(rng: Random) -> Made:
    name, fields = rng.choice(values.PEOPLE), values.person(rng)
    kept = {field: values.in_utc(value) if isinstance(value, datetime) else value for field, value in fields.items()}
    return Made((name,), Person(id=name, **fields), {"id": name, **kept})


def _item(rng: Random) -> Made:
    sku, cost = rng.choice(values.ITEMS), rng.choice(values.DECIMALS)
    return Made((str(sku),), Item(sku=sku, cost=cost), {"sku": sku, "cost": cost})


def _knows(rng: Random) -> Made:
    near, far, note = rng.choice(values.PEOPLE), rng.choice(values.PEOPLE), rng.choice(("x", "y"))
    fact: dict[str, Any] = {
        "left_key": near,
        "right_key": far,
        "note": note,
        "weight": rng.choice((None, *values.WHOLES)),
    }
    return Made((near, far, note), Knows(**fact), fact)


def _buys(rng: Random) -> Made:
    buyer, sku, quantity = rng.choice(values.PEOPLE), rng.choice(values.ITEMS), rng.choice(values.WHOLES)
    given = Buys(left_key=buyer, right_key=sku, quantity=quantity)
    return Made((buyer, str(sku), ""), given, {"left_key": buyer, "right_key": str(sku), "quantity": quantity})


MAKERS: dict[Kind, Callable[[Random], Made]] = {"Person": _person, "Item": _item, "Knows": _knows, "Buys": _buys}


async def grow(rng: Random, onto: Ontology, past: Past, commits: int) -> None:
    for _ in range(commits):
        writes: list[Write] = []
        present = {(kind, key) for kind, facts in past.states[-1].items() for key in facts}
        for _ in range(rng.randint(1, 6)):
            kind = rng.choice(OFTEN)
            key, given, fact = MAKERS[kind](rng)
            gone = rng.random() < 0.2 and (kind, key) in present
            if gone:
                onto.retract(CLASSES[kind], *_named(kind, key))
                present.remove((kind, key))
            else:
                onto.ensure(given)
                present.add((kind, key))
            writes.append(Write(kind, key, None if gone else fact))
        made = await onto.commit()
        assert (None if made is None else made.commit_id) == past.commit(writes), writes


def _named(kind: Kind, key: Key) -> tuple[Any, ...]:
    """The key as a caller gives it."""
    if kind == "Item":
        return (int(key[0]),)
    return key[:2] if kind == "Buys" else key
