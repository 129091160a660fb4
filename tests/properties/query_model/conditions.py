"""Random conditions, each said twice: to the library, and as a function of plain Python that decides the same.

There are two truth values. What is null, or of another type than what it is compared with, is like nothing: ``!=``
alone holds for it.
"""

import operator
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

from holdfast.ontology import Condition, left, right
from tests.properties.query_model import values
from tests.properties.query_model.classes import CLASSES, Person
from tests.properties.query_model.past import ENDS, Holds, Kind, Sight

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NOTES = ("x", "y", "")
Pick = Callable[[Random, Any], "Leaf"]


class Where(NamedTuple):
    asked: Condition
    holds: Holds


class Leaf(NamedTuple):
    """A test of one value, said twice."""

    asked: Condition
    holds: Callable[[Any], bool]


def compared(sign: str, found: Any, given: Any) -> bool:
    return sign == "!=" if found is None else bool(OPERATORS[sign](found, given))


def compared_if_alike(sign: str, found: Any, given: Any) -> bool:
    """Numbers with numbers, texts with texts, booleans with booleans."""
    return compared(sign, found if _sort(found) == _sort(given) else None, given)


def _sort(value: Any) -> str:
    return "number" if type(value) in {int, float} else type(value).__name__


def folded(text: str) -> str:
    """Letter by letter: one letter stays one."""
    return "".join("i" if letter == "İ" else letter.lower() for letter in text)


def comparison(pool: Sequence[Any], meaning: Callable[[Any], Any] = lambda given: given) -> Pick:
    def pick(rng: Random, term: Any) -> Leaf:
        sign, given = rng.choice(list(OPERATORS)), rng.choice(pool)
        return Leaf(OPERATORS[sign](term, given), lambda found: compared(sign, found, meaning(given)))

    return pick


def between(pool: Sequence[Any]) -> Pick:
    def pick(rng: Random, term: Any) -> Leaf:
        low, high = rng.choice(pool), rng.choice(pool)
        return Leaf(term.between(low, high), lambda found: found is not None and low <= found <= high)

    return pick


def membership(pool: Sequence[Any]) -> Pick:
    def pick(rng: Random, term: Any) -> Leaf:
        given = rng.choices(pool, k=rng.randint(0, 4))
        return Leaf(term.in_(given), lambda found: any(_is(found, each) for each in given))

    return pick


def _is(found: Any, each: Any) -> bool:
    return each is None if found is None else bool(found == each)


def wording(pool: Sequence[str]) -> Pick:
    def pick(rng: Random, term: Any) -> Leaf:
        test, fold, whole = (
            rng.choice(("contains", "startswith", "endswith", "equals")),
            rng.random() < 0.4,
            rng.choice(pool),
        )
        part = whole[: rng.randint(0, len(whole))]

        def holds(found: str | None) -> bool:
            if found is None:
                return False
            text, wanted = (folded(found), folded(part)) if fold else (found, part)
            says = {"contains": wanted in text, "equals": wanted == text}
            says |= {"startswith": text.startswith(wanted), "endswith": text.endswith(wanted)}
            return says[test]

        return Leaf(getattr(term, test)(part, fold=fold), holds)

    return pick


def length(rng: Random, term: Any) -> Leaf:
    pick = comparison(range(4))(rng, term.length())
    return Leaf(pick.asked, lambda found: pick.holds(None if found is None else len(found)))


def each_tag(rng: Random, term: Any) -> Leaf:
    whether, item = _quantified(rng, term, "")
    test = comparison(values.TEXTS)(rng, item)
    return Leaf(test.asked, lambda found: found is not None and whether(map(test.holds, found)))


def within_document(rng: Random, term: Any) -> Leaf:
    path, sign = rng.choice(("c", "c.d", "zz")), rng.choice(list(OPERATORS))
    given = rng.choice((*values.TEXTS, *values.WHOLES, True))

    def holds(found: Any) -> bool:
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return compared_if_alike(sign, found, given)

    return Leaf(OPERATORS[sign](term.path(path), given), holds)


def each_document(rng: Random, term: Any) -> Leaf:
    name, given = rng.choice((("k", rng.choice(values.TEXTS)), ("v", 1), ("v", "x")))
    sign = rng.choice(list(OPERATORS))
    whether, item = _quantified(rng, term.path("l"), name)

    def holds(found: Any) -> bool:
        listed = found.get("l") if isinstance(found, dict) else None
        if not isinstance(listed, list):
            return False
        return whether(compared_if_alike(sign, each.get(name), given) for each in listed)

    return Leaf(OPERATORS[sign](item, given), holds)


def _quantified(rng: Random, term: Any, path: str) -> tuple[Callable[[Any], bool], Any]:
    return (any, term.any_path(path)) if rng.random() < 0.5 else (all, term.all_path(path))


def nullity(rng: Random, term: Any) -> Leaf:
    if rng.random() < 0.5:
        return Leaf(term.is_null(), lambda found: found is None)
    return Leaf(term.is_not_null(), lambda found: found is not None)


def _texts(pool: Sequence[str], *, nullable: bool = False) -> list[Pick]:
    some = membership([*pool, None] if nullable else pool)
    return [comparison(pool), comparison(pool), some, between(pool), wording(pool), wording(pool), wording(pool)]


_NUMBERS = [*[comparison(values.NUMBERS)] * 4, between(values.NUMBERS), membership(values.NUMBERS)]
_AMOUNTS = [comparison((*values.DECIMALS, 5, 0))]
PICKS: dict[Kind, dict[str, list[Pick]]] = {
    "Person": {
        "id": _texts(values.PEOPLE),
        "tier": _texts(values.TEXTS, nullable=True),
        "age": _NUMBERS,
        "score": _NUMBERS,
        "price": _AMOUNTS,
        "tags": [length, each_tag, each_tag],
        "profile": [within_document, each_document],
        "day": [comparison(values.DAYS)],
        "at": [comparison(values.MOMENTS, values.in_utc)],
        "flag": [comparison((True, False))],
    },
    "Item": {"sku": _NUMBERS, "cost": _AMOUNTS},
    "Knows": {"left_key": _texts(values.PEOPLE), "note": _texts(NOTES), "weight": _NUMBERS},
    "Buys": {"right_key": _texts([str(each) for each in values.ITEMS]), "quantity": _NUMBERS},
}


def about(rng: Random, kind: Kind, depth: int) -> Where:
    """A condition on a fact of this kind and, of a relation, on its ends; sometimes one that holds for all of them."""
    found = _tree(rng, depth, lambda: _seen(rng, kind))
    return found if rng.random() < 0.7 else Where(found.asked | ~found.asked, lambda _: True)


def about_own(rng: Random, kind: Kind, depth: int) -> Where:
    """A condition on its own fields."""
    return _tree(rng, depth, lambda: _on(rng, CLASSES[kind], kind, "own"))


def some_people(rng: Random) -> Where:
    """Those of whom something holds, or one."""
    if rng.random() < 0.5:
        return about_own(rng, "Person", 1)
    key = rng.choice(values.PEOPLE)
    return Where(Person.id == key, lambda sight: sight.own["id"] == key)


def _seen(rng: Random, kind: Kind) -> Where:
    if kind not in ENDS:
        return _on(rng, CLASSES[kind], kind, "own")
    relation: Any = CLASSES[kind]
    places: list[tuple[Any, Kind, Literal["own", "left", "right"]]] = [
        (relation, kind, "own"),
        (left(relation), ENDS[kind][0], "left"),
        (right(relation), ENDS[kind][1], "right"),
    ]
    return _on(rng, *rng.choice(places))


def _on(rng: Random, root: Any, kind: Kind, end: Literal["own", "left", "right"]) -> Where:
    name = rng.choice(list(PICKS[kind]))
    pick = nullity if rng.random() < 0.12 else rng.choice(PICKS[kind][name])
    leaf = pick(rng, getattr(root, name))

    def holds(sight: Sight) -> bool:
        fact = getattr(sight, end)
        return leaf.holds(None if fact is None else fact[name])

    return Where(leaf.asked, holds)


def _tree(rng: Random, depth: int, leaf: Callable[[], Where]) -> Where:
    shape = rng.random()
    if depth == 0 or shape < 0.4:
        return leaf()
    one = _tree(rng, depth - 1, leaf)
    if shape < 0.55:
        return Where(~one.asked, lambda sight: not one.holds(sight))
    other = _tree(rng, depth - 1, leaf)
    if shape < 0.78:
        return Where(one.asked & other.asked, lambda sight: one.holds(sight) and other.holds(sight))
    return Where(one.asked | other.asked, lambda sight: one.holds(sight) or other.holds(sight))
