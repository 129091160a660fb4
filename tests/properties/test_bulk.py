"""Bulk loads against a dictionary: whatever is there, however rows are dealt out, whichever rules."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Conflict
from holdfast.objects.memory import MemoryStore
from holdfast.ontology.bulk.decide import RETRACTS, Policy, Rules
from holdfast.ontology.bulk.stage import SIZES
from holdfast.ontology.maintain.verify.verify import verify
from tests.soak import examples
from tests.unit.ontology.bulk_kit import SPREAD, Customer, Yard, table

KEYS = st.text(st.sampled_from("aZ0-é\U0001f600 "), min_size=1, max_size=3)
NAMES = st.sampled_from(["x", "y", 'quoted "z"', ""])
ROWS = st.dictionaries(KEYS, NAMES, max_size=12)
RULES = st.builds(Rules, st.sampled_from(list(Policy)), absent=st.booleans(), instead=st.booleans())


def rows_of(named: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"id": key, "name": name, "age": len(key)} for key, name in named.items()]


def expected(current: Mapping[str, str], wanted: Mapping[str, str], rules: Rules) -> dict[str, str] | None:
    """What is there afterwards; None if the load is refused."""
    if rules.absent and current.keys() & wanted.keys():
        return None
    differ = {key for key in wanted if current.get(key, wanted[key]) != wanted[key]}
    if differ and rules.on_conflict is Policy.ERROR:
        return None
    kept = {key: current[key] for key in differ} if rules.on_conflict is Policy.SKIP else {}
    base = {key: current[key] for key in current if key in wanted} if rules.instead else dict(current)
    return {**base, **wanted, **kept}


@examples(12)
@given(
    history=st.lists(ROWS, max_size=3), gone=st.sets(KEYS, max_size=2), wanted=ROWS, rules=RULES, spread=st.booleans()
)
def test_a_load_gives_what_its_rules_say(
    history: list[dict[str, str]], gone: set[str], wanted: dict[str, str], rules: Rules, spread: bool
) -> None:
    asyncio.run(_check(history, gone, wanted, rules, spread))


async def _check(
    history: list[dict[str, str]], gone: set[str], wanted: dict[str, str], rules: Rules, spread: bool
) -> None:
    yard = Yard(MemoryStore(), sizes=SPREAD if spread else SIZES)
    current: dict[str, str] = {}
    async with yard.session() as onto:
        for rows in history:
            onto.ensure([Customer(**each) for each in rows_of(rows)])
            await onto.commit()
            current |= rows
        for key in gone & current.keys():
            onto.retract(Customer, key)
            del current[key]
        await onto.commit()
    before = (await yard.ledger()).commit_id
    after = expected(current, wanted, rules)
    try:
        landed = await yard.load(table(rows_of(wanted)), rules=rules)
    except Conflict:
        assert after is None
        assert (await yard.ledger()).commit_id == before
        return
    assert after is not None
    assert await yard.names() == after
    assert (landed.commit is not None) == (after != current)
    assert (await yard.ledger()).commit_id == before + (landed.commit is not None)
    assert (await verify(yard.store, deep=True)).good


CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y"]), st.none() | st.integers(0, 3), st.booleans()),
    max_size=8,
)


@examples(12)
@given(loads=st.lists(CHANGES, max_size=4), spread=st.booleans())
def test_the_newest_row_wins_in_whatever_order_rows_and_loads_arrive(
    loads: list[list[tuple[str, str, int | None, bool]]], spread: bool
) -> None:
    """Rows are (key, name, age, retracts): within a load, beside stored rows, and beside retractions."""
    asyncio.run(_check_newest(loads, spread))


async def _check_newest(loads: list[list[tuple[str, str, int | None, bool]]], spread: bool) -> None:
    yard = Yard(MemoryStore(), sizes=SPREAD if spread else SIZES)
    known: dict[str, tuple[str, int | None, bool]] = {}
    for rows in loads:
        newest = _newest_of(rows)
        columns = list(zip(*rows, strict=True)) or [()] * 4
        kinds = (pa.string(), pa.string(), pa.int64(), pa.bool_())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        incoming = pa.table(arrays, ["id", "name", "age", RETRACTS])
        try:
            await yard.load(incoming, rules=Rules(Policy.REPLACE, latest_by="age", retracts=True))
        except Conflict:
            assert newest is None
            continue
        assert newest is not None
        for key, (name, age, retracts) in newest.items():
            stored = known.get(key)
            if stored is None and retracts:
                continue  # nothing was ever stored
            if stored is not None and ((stored[2] and retracts) or _rank(age) < _rank(stored[1])):
                continue
            kept = stored[1] if retracts and age is None and stored is not None else age
            known[key] = (name, kept, retracts)
        assert await yard.names() == {key: name for key, (name, _, gone) in known.items() if not gone}


def _rank(age: int | None) -> int:
    return -1 if age is None else age


def _newest_of(rows: list[tuple[str, str, int | None, bool]]) -> dict[str, tuple[str, int | None, bool]] | None:
    """By identity; None if two of the newest differ. Of a row that retracts, the name means nothing."""
    found: dict[str, set[tuple[str, int | None, bool]]] = {}
    for key, name, age, retracts in rows:
        best = max((_rank(each[1]) for each in found.get(key, ())), default=-2)
        if _rank(age) > best:
            found[key] = set()
        if _rank(age) >= best:
            found[key].add(("" if retracts else name, age, retracts))
    if any(len(each) > 1 for each in found.values()):
        return None
    return {key: next(iter(each)) for key, each in found.items()}
