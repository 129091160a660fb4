"""Random histories, by our writer and a plain one, with indexes that lag, lie or are gone, compacted and not, with
files in tables and on disk: every way of asking about time gives what a plain Python model says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.objects.store import OVERWRITE
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.format import layout
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.cache.warm import TABLE_BYTES
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.results import meta
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.soak import examples
from tests.unit.ontology.desk import Desk


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Link(Relation[Thing, Thing]):
    value: Field[int]


KEYS = ("a", "b", "c", "d")
THING, LINK = TypeId("entity", "Thing"), TypeId("relation", "Link")
INDEX = "meta/indices/entities/Thing.json"

key = st.sampled_from(KEYS)
value = st.one_of(st.integers(0, 3), st.none())
changes = st.dictionaries(key, value, min_size=1, max_size=3)
links = st.dictionaries(st.tuples(key, key), value, max_size=2)
step: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("ours"), changes, links),
    st.tuples(st.just("ours"), changes, links),
    st.tuples(st.just("plain"), changes, st.just({})),
    st.tuples(st.just("look"), st.just({}), st.just({})),
    st.tuples(st.sampled_from(["no index", "lying index", "flush"]), st.just({}), st.just({})),
    st.tuples(st.sampled_from(["compact", "lose snapshot"]), st.just({}), st.just({})),
    st.tuples(st.just("compact"), st.just({}), st.just({})),
)
steps = st.lists(step, min_size=1, max_size=9)
tables = st.sampled_from([0, 2_600, 3_200, TABLE_BYTES])
"""Up to which size files are loaded into tables: none, some, all."""

Rows = list[tuple[int, Any, int, bool]]
"""Commit, key, value and whether it was retracted."""


class Model:
    def __init__(self) -> None:
        self.head = 0
        self.things: Rows = []
        self.links: Rows = []

    def commit(self, things: dict[str, Any], links: dict[Any, Any], *, plain: bool) -> None:
        """As the store does it: only what changes is written, and a commit that changes nothing is none."""
        new = self._changes(self.things, things, plain), self._changes(self.links, links, plain)
        if any(new):
            self.head += 1
            self.things += [(self.head, *row) for row in sorted(new[0])]
            self.links += [(self.head, *row) for row in sorted(new[1])]

    def _changes(self, rows: Rows, wanted: dict[Any, Any], plain: bool) -> list[Any]:
        now = state(rows, self.head)
        found = []
        for name, one in wanted.items():
            if one is None and not plain and name in now:
                found.append((name, now[name][1], True))
            elif one is not None and (plain or name not in now or now[name][1] != one):
                found.append((name, one, False))
        return found


def state(rows: Rows, upper: int) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for commit_id, name, one, gone in rows:
        if commit_id <= upper:
            found.pop(name, None) if gone else found.update({name: (commit_id, one)})
    return found


def identity(obj: Any) -> Any:
    return obj.id if isinstance(obj, Thing) else (obj.left_key, obj.right_key)


async def seen(query: Query[Any]) -> Rows:
    return [(meta(one).commit_id, identity(one), one.value, meta(one).retracted) for one in await query.all()]


async def check(onto: Ontology, python: type[Any], rows: Rows, head: int) -> None:
    query = onto.query(python)
    await check_states(query, rows, head)
    assert await seen(query.with_history()) == rows
    assert await query.with_history().count() == len(rows)
    for commit_id in range(head + 2):
        assert await seen(query.history_since(commit_id)) == [row for row in rows if row[0] > commit_id]
    low, high = head // 3, head - head // 3
    assert await seen(query.between(low, high)) == [row for row in rows if low <= row[0] <= high]


async def check_states(query: Query[Any], rows: Rows, head: int) -> None:
    for upper, asked in [(head, query), *((upper, query.as_of(upper)) for upper in range(head + 3))]:
        expected = state(rows, min(upper, head))
        listed = [(commit_id, name, one, False) for name, (commit_id, one) in sorted(expected.items())]
        assert await seen(asked) == listed
        assert await asked.count() == len(listed)


async def rested(onto: Ontology) -> None:
    """It has nothing left to write, and does not hold the lock."""
    await onto.flush()
    await onto._lock.close()


async def act(desk: Desk, onto: Ontology, model: Model, name: str, things: Any, links: Any) -> None:
    if name == "ours":
        for each, one in things.items():
            onto.retract(Thing, each) if one is None else onto.ensure(Thing(id=each, value=one))
        for (left, right), one in links.items():
            if one is None:
                onto.retract(Link, left, right)
            else:
                onto.ensure(Link(left_key=left, right_key=right, value=one))
        model.commit(things, links, plain=False)
        done = await onto.commit()
        assert (done.commit_id if done is not None else model.head) == model.head
    elif name == "plain":
        written = [(each, {"id": each, "value": one}) for each, one in things.items() if one is not None]
        if written:
            await rested(onto)  # a plain writer waits for the lock
            model.commit(things, {}, plain=True)
            await desk.plain.commit({("entity", "Thing"): written})
    elif name == "flush":
        await onto.flush()
    elif name == "compact":
        await rested(onto)  # its indexes are then written
        for type_id in (THING, LINK):
            await Compactor(desk.store, desk.ambient, fan=2).compact(type_id)
    elif name == "lose snapshot":
        for path in [path for path in desk.shelf.objects if path.startswith(layout.SNAPSHOTS)][:1]:
            await desk.bare.delete(path)
    elif name == "no index":
        await desk.bare.delete(INDEX)
    elif name == "lying index":
        entry = {"min_commit_id": 1, "max_commit_id": 1, "path": "commits/1-00000000/entities/Thing.parquet"}
        lie = {"type_name": "Thing", "max_indexed_commit": model.head, "entries": [entry] if model.head else []}
        await desk.bare.put(INDEX, json.dumps(lie).encode(), OVERWRITE)


@pytest.fixture(autouse=True, scope="module")
def _files_are_scanned_one_by_one() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.ontology.query.type_table.SMALL_BYTES", 0)
        yield


@examples(10)
@given(steps, tables)
async def test_every_moment_is_as_it_was(history: list[Any], table_bytes: int) -> None:
    desk, model = Desk(), Model()
    onto = Ontology(desk.store, desk.ambient, [Thing, Link])
    onto._warm.table_bytes = table_bytes
    try:
        for name, things, links in history:
            await act(desk, onto, model, name, things, links)
            if name == "look":
                await check_states(onto.query(Thing), model.things, model.head)
        cold = Ontology(desk.store, desk.ambient, [Thing, Link])
        cold._warm.table_bytes = table_bytes
        for session in (onto, cold):
            await check(session, Thing, model.things, model.head)
            await check(session, Link, model.links, model.head)
            await session.close()
    finally:
        await onto.close()
