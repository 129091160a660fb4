"""Random histories with everything mixed: commits, compaction, lost and old indexes, repair, migration, drops and new
lives, purges, erasures, a store made anew. Every way of asking gives the rows of a plain model, warm and cold."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import NotFound
from holdfast.objects.store import OVERWRITE
from holdfast.ontology import Entity, Field, upgrader
from holdfast.ontology.format import layout
from holdfast.ontology.maintain import drop, erase, migrate
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.query.results import meta
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.typeinfo import TypeInfo, type_info
from tests.soak import examples
from tests.unit.ontology.desk import Desk, begin_anew


class Old(Entity, name="Thing"):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class New(Entity, name="Thing"):
    id: Field[str] = Field(primary_key=True)
    score: Field[int]


@upgrader(New, from_version=1, to_version=2)
def scored(fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": fields["id"], "score": fields["value"] * 10}


FORM: TypeInfo = type_info(New)
INDEX = layout.index_key(*FORM.type_id)
KEYS = st.sampled_from(["a", "b", "c"])
WRITE = st.tuples(st.just("write"), st.dictionaries(KEYS, st.none() | st.integers(0, 3), min_size=1))
STEPS = st.lists(
    st.one_of(
        *[WRITE] * 5,
        st.sampled_from([("compact", 2), ("compact", 3), ("repair",), ("forget",), ("rewind",), ("sweep",), ("look",)]),
        st.sampled_from([("migrate",), ("drop", False), ("drop", True), ("restart",)]),
        st.tuples(st.just("erase"), KEYS),
    ),
    min_size=1,
    max_size=14,
)
Rows = list[tuple[int, str, int | None, bool]]
"""Commit, key, score (None if it was erased) and whether it was retracted."""


@dataclass
class Life:
    generation: int
    end: int | None = None
    purged: bool = False
    rows: Rows = field(default_factory=list)

    def state(self, upper: int) -> dict[str, tuple[int, int | None]]:
        found: dict[str, tuple[int, int | None]] = {}
        for commit_id, key, score, gone in self.rows:
            if commit_id <= upper:
                found.pop(key, None)
                if not gone:
                    found[key] = commit_id, score
        return found


class World:
    def __init__(self) -> None:
        self.desk = Desk()
        self.old_index: bytes | None = None
        self.warm: Ontology | None = None
        self._begin()

    def _begin(self) -> None:
        self.head = 0
        self.lives: list[Life] = []
        self.python: Any = Old

    @property
    def present(self) -> Life | None:
        return self.lives[-1] if self.lives and self.lives[-1].end is None else None

    def life_at(self, commit_id: int) -> Life | None:
        for life in self.lives:
            if life.generation <= commit_id and (life.end is None or commit_id < life.end) and not life.purged:
                return life
        return None

    async def step(self, step: tuple[Any, ...]) -> None:
        desk = self.desk
        if INDEX in desk.shelf.objects and self.old_index is None:
            self.old_index = desk.shelf.objects[INDEX].body
        match step:
            case ("write", changes):
                await self._write(changes)
            case ("compact", fan):
                await Compactor(desk.store, desk.ambient, fan=fan).compact(FORM.type_id)
            case ("repair",):
                await repair_indexes(desk.store, desk.ambient, apply=True)
            case ("forget",):
                await desk.bare.delete(INDEX)
            case ("sweep",):
                await Compactor(desk.store, desk.ambient).sweep([FORM.type_id])
            case ("rewind",) if self.old_index is not None:
                await desk.bare.put(INDEX, self.old_index, OVERWRITE)
            case ("look",):
                await self.check(await self.reader())
            case ("migrate",):
                await self._migrate()
            case ("drop", purge):
                await self._drop(purge=purge)
            case ("erase", key):
                await self._erase(key)
            case ("restart",):
                await begin_anew(desk)
                self._begin()

    async def _write(self, changes: dict[str, int | None]) -> None:
        life = self.present or Life(self.head + 1)
        now, made = life.state(self.head), []
        async with Ontology(self.desk.store, self.desk.ambient, [self.python]) as onto:
            for key, value in sorted(changes.items()):
                if value is None:
                    onto.retract(self.python, key)
                    if key in now:
                        made.append((self.head + 1, key, now[key][1], True))
                    continue
                onto.ensure(Old(id=key, value=value) if self.python is Old else New(id=key, score=value * 10))
                if key not in now or now[key][1] != value * 10:
                    made.append((self.head + 1, key, value * 10, False))
            done = await onto.commit()
        assert (done is not None) == bool(made)
        if made:
            if life is not self.present:
                self.lives.append(life)
            life.rows += made
            self.head += 1

    async def _migrate(self) -> None:
        if self.python is New or self.present is None:
            return
        store, forms = self.desk.store, {FORM.type_id: FORM}
        found = await migrate.preview(store, forms)
        assert await migrate.apply(store, self.desk.ambient, found, found.token, by="x", why="")
        live = self.present.state(self.head)
        self.head += 1
        self.present.rows += [(self.head, key, score, False) for key, (_, score) in sorted(live.items())]
        self.python = New

    async def _drop(self, *, purge: bool) -> None:
        store = self.desk.store
        try:
            found = await drop.preview(store, "Thing", purge=purge)
        except NotFound:
            assert self.present is None
            return
        await drop.apply(store, self.desk.ambient, found, found.token, by="x", why="")
        self.head += 1
        if self.present is not None:
            self.present.end = self.head
        for life in self.lives if purge else ():
            life.purged, life.rows = True, []
        self.python = New

    async def _erase(self, key: str) -> None:
        store = self.desk.store
        try:
            found = await erase.preview(store, "Thing", key)
        except NotFound:
            return
        await erase.apply(store, self.desk.ambient, found, found.token, by="x", why="")
        self.head += 1
        for life in self.lives:
            life.rows = [(n, each, None, True) if each == key else (n, each, s, g) for n, each, s, g in life.rows]
        if self.present is not None:
            self.present.rows.append((self.head, key, None, True))

    async def reader(self) -> Ontology:
        if self.warm is None or next(iter(self.warm._types.values())).python is not self.python:
            await self.close()
            self.warm = Ontology(self.desk.store, self.desk.ambient, [self.python])
        return self.warm

    async def close(self) -> None:
        if self.warm is not None:
            await self.warm.close()
            self.warm = None

    async def seen(self, query: Any) -> Rows:
        found: Rows = []
        for one in await query.all():
            known = meta(one)
            score = None if known.erased else one.score if self.python is New else one.value * 10
            found.append((known.commit_id, one.id, score, known.retracted))
        return found

    async def check(self, onto: Ontology) -> None:
        query = onto.query(self.python)
        for upper in range(self.head + 1):
            life = self.life_at(upper)
            expected = life.state(upper) if life is not None else {}
            listed = [(commit_id, key, score, False) for key, (commit_id, score) in sorted(expected.items())]
            assert await self.seen(query.as_of(upper)) == listed, upper
            rows = sorted(row for row in life.rows if row[0] <= upper) if life is not None else []
            assert await self.seen(query.between(0, upper)) == rows, upper
        now = self.life_at(self.head)
        assert await self.seen(query) == await self.seen(query.as_of(self.head))
        assert await query.count() == len(now.state(self.head) if now is not None else {})
        assert await self.seen(query.with_history()) == sorted(now.rows if now is not None else [])
        assert [one.id for one in await onto.all(self.python)] == [row[1] for row in await self.seen(query)]


@examples(8)
@given(STEPS)
async def test_every_way_of_asking_gives_the_rows_of_the_model(steps: list[tuple[Any, ...]]) -> None:
    world = World()
    try:
        for step in steps:
            await world.step(step)
        await world.check(await world.reader())
        async with Ontology(world.desk.store, world.desk.ambient, [world.python]) as cold:
            await world.check(cold)
        await repair_indexes(world.desk.store, world.desk.ambient, apply=True)
        report = await verify(world.desk.store, deep=True)
        assert report.good, report.findings
    finally:
        await world.close()
