"""Bulk loads against a dictionary: whatever is there, however rows are dealt out, whichever rules."""

import asyncio
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import Conflict
from holdfast.objects.memory import MemoryStore
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.stage import SIZES
from holdfast.ontology.maintain.verify.verify import verify
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


@settings(max_examples=30, deadline=None)
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
