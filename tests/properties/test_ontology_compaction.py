"""Over random histories, whatever upkeep has done in between: every reader gets the rows of a plain model."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.objects.store import OVERWRITE
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.state import read_latest, read_ledger
from holdfast.ontology.format import layout
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.verify.verify import verify
from tests.unit.ontology.desk import CUSTOMER, PRODUCT, Desk, put

TYPES = (CUSTOMER, PRODUCT)
KEYS = st.sampled_from(["a", "b", "c", "d"])
WRITE = st.tuples(st.just("write"), st.sampled_from(TYPES), KEYS, st.none() | st.integers(0, 3))
STEPS = st.lists(
    st.one_of(
        *[WRITE] * 4,
        st.tuples(st.just("plain"), KEYS, st.integers(0, 3)),
        st.tuples(st.just("compact"), st.sampled_from(TYPES), st.sampled_from([2, 3, 8])),
        st.just(("repair",)),
        st.just(("sweep",)),
        st.tuples(st.just("forget"), st.sampled_from(TYPES)),
        st.tuples(st.just("rewind"), st.sampled_from(TYPES)),
        st.tuples(st.just("lose"), st.integers(0, 9)),
    ),
    max_size=40,
)
State = dict[Any, dict[str, int]]


class World:
    def __init__(self) -> None:
        self.desk = Desk()
        self.writer = self.desk.committer()
        self.states: list[State] = [{each: {} for each in TYPES}]
        """At each commit."""
        self.old: dict[str, bytes] = {}

    async def step(self, step: tuple[Any, ...]) -> None:
        desk = self.desk
        match step:
            case ("write", type_id, key, value):
                if await put(self.writer, (key, value), type_id=type_id) is not None:
                    self._committed(type_id, key, value)
            case ("plain", key, value):
                await desk.plain.commit({("entity", "Customer"): [(key, {"v": value})]})
                self._committed(CUSTOMER, key, value)
            case ("compact", type_id, fan):
                self._remember()
                await Compactor(desk.store, desk.ambient, fan=fan).compact(type_id)
            case ("repair",):
                self._remember()
                await repair_indexes(desk.store, desk.ambient, apply=True)
            case ("sweep",):
                await Compactor(desk.store, desk.ambient).sweep(TYPES)
            case ("forget", type_id):
                await desk.bare.delete(layout.index_key(*type_id))
            case ("rewind", type_id) if (key := layout.index_key(*type_id)) in self.old:
                await desk.bare.put(key, self.old[key], OVERWRITE)
            case ("lose", number):
                found = sorted(key for key in desk.shelf.objects if key.startswith(layout.SNAPSHOTS))
                if found:
                    await desk.bare.delete(found[number % len(found)])

    def _remember(self) -> None:
        """As a backup does."""
        for type_id in TYPES:
            key = layout.index_key(*type_id)
            if key in self.desk.shelf.objects:
                self.old.setdefault(key, self.desk.shelf.objects[key].body)

    def _committed(self, type_id: Any, key: str, value: int | None) -> None:
        after = {each: dict(state) for each, state in self.states[-1].items()}
        if value is None:
            after[type_id].pop(key, None)
        else:
            after[type_id][key] = value
        self.states.append(after)

    async def check(self) -> None:
        chain = Chain(self.desk.store)
        head = await read_ledger(self.desk.store, chain)
        assert head.commit_id == len(self.states) - 1
        for commit_id in {0, head.commit_id // 2, head.commit_id}:
            ledger = await chain.ledger(await chain.at(head.place, commit_id) if commit_id else None)
            for type_id in TYPES:
                latest = await read_latest(self.desk.store, chain, ledger, type_id)
                found = {key: json.loads(row.fields_json)["v"] for (key,), (_, row) in latest.rows.items()}
                assert found == self.states[commit_id][type_id]


@given(STEPS)
def test_readers_get_the_same_rows_whatever_upkeep_has_done(steps: list[tuple[Any, ...]]) -> None:
    async def work() -> None:
        world = World()
        for step in steps:
            await world.step(step)
        await world.check()
        await repair_indexes(world.desk.store, world.desk.ambient, apply=True)
        await world.check()
        report = await verify(world.desk.store, deep=True)
        assert report.good, report.findings

    asyncio.run(work())
