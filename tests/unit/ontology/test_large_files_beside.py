"""Parts of large files beside what changes them: redactions, other questions of the session, names of other writers."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast.objects.layer import Layer
from holdfast.objects.store import Part
from holdfast.ontology import Entity, Field, left
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.test_erase import erased
from tests.unit.ontology.test_large_files import Link, Thing, large, stocked
from tests.unit.ontology.test_sqltables import ODD, odd_names


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)


class Interposed(Layer):
    """Something happens before a range is read."""

    before: Callable[[str], Awaitable[None]] | None = None

    @property
    def waits(self) -> bool:
        return self.before is not None

    async def range(self, key: str, start: int, end: int) -> Part:
        if self.before is not None:
            await self.before(key)
        return await super().range(key, start, end)


async def test_a_question_on_its_way_while_another_one_hears_of_a_redaction_is_put_again() -> None:
    desk = Desk()
    await stocked(desk, compacted=True)
    store = Interposed(desk.store)
    async with Ontology(store, desk.ambient, (Thing, Link)) as onto:
        links = onto.query(Link).where(left(Link).value > 4).select("weight")

        async def redacted(key: str) -> None:
            if "/Thing" in key:  # and what is needed of the links is here
                store.before = None
                await erased(desk, "k09", "k04", name="Link")
                await onto.query(Link).count()

        await onto.query(Link).count()
        store.before = redacted
        asked = (await links.arrow()).to_pylist()
        assert not store.waits
    async with Ontology(desk.store, desk.ambient, (Thing, Link)) as onto:
        links = onto.query(Link).where(left(Link).value > 4).select("weight")
        assert asked == (await links.arrow()).to_pylist()


async def test_a_name_with_dots_is_the_name_of_one_column() -> None:
    desk = Desk()
    await odd_names(desk)
    for number in range(3):
        rows = [(f"m{number}", {"id": f"m{number}", **{name: f"{name} {number}" for name in ODD}})]
        await desk.plain.commit({("entity", "Odd"): rows})
    await Compactor(desk.store, desk.ambient, whole=True).compact(TypeId("entity", "Odd"))
    for name in ("a.b", "a?b"):
        async with SqlTables(desk.store) as sql:
            found = await sql.run(f'SELECT "{name}" AS found FROM Odd ORDER BY id')
            assert found.column("found").to_pylist() == [f"{name}!", None, *(f"{name} {n}" for n in range(3))]
            assert sql._warm._large._files, "it came in parts"


async def test_who_explains_a_question_is_told_all_that_it_fetches_and_nothing_of_files_that_are_replaced() -> None:
    desk = Desk()
    await stocked(desk, compacted=True)
    store = Interposed(desk.store)
    async with Ontology(store, desk.ambient, (Thing, Link)) as onto:
        things = onto.query(Thing).where(Thing.value > 3)
        seen: list[str] = []

        async def replaced(key: str) -> None:
            seen.append(key)
            if seen.count(key) == 2:  # its footer is here
                store.before = None
                await erased(desk, "k09", name="Thing")

        store.before = replaced
        found = await things.explain(profile=True)
        assert found.profile is not None
        assert not store.waits
    async with holdfast.open("memory:") as hf:
        async with hf.ontology(Thing) as onto:
            onto.ensure([Thing(id=f"k{n}", value=n, name="n", tags=[]) for n in range(20)])
            await onto.commit()
        async with hf.ontology(Thing) as onto:
            before = hf.store.usage.requests()
            found = await onto.query(Thing).where(Thing.value > 3).explain(profile=True)
            assert found.requests == hf.store.usage.requests() - before


class Odd(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int | None] = Field(default=None)
    score: Field[float] = Field(default=math.nan)


@pytest.mark.parametrize("rows", [2, 100])
async def test_statistics_of_files_hide_no_row(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB believes them: those of floats leave NaN out, and those of row groups may be all null."""
    monkeypatch.setattr("holdfast.ontology.format.data.rows.ROW_GROUP", rows)
    desk = Desk()
    scores = [math.nan, 5.0, 2.0, 5.0, math.nan, 5.0]
    async with Ontology(desk.store, desk.ambient, [Odd]) as onto:
        made = [Odd(id=f"k{n}", score=score, value=3 if n > 3 else None) for n, score in enumerate(scores)]
        onto.ensure(made)
        await onto.commit()

    async def keys(where: Any) -> list[str]:
        async with Ontology(desk.store, desk.ambient, [Odd]) as onto:
            return [one.id for one in await onto.query(Odd).where(where).all()]

    assert await keys(~(Odd.score >= 1.5)) == await keys(~(Odd.score < 9)) == ["k0", "k4"]
    assert await keys(Odd.score > 1) == await keys(Odd.score < 9) == ["k1", "k2", "k3", "k5"]
    assert await keys(Odd.score == 5.0) == ["k1", "k3", "k5"]
    assert await keys(Odd.score != 5.0) == ["k0", "k2", "k4"]
    assert await keys((Odd.value != 3) | (Odd.value > 3)) == ["k0", "k1", "k2", "k3"]
    async with Ontology(desk.store, desk.ambient, [Odd]) as onto:
        greatest = await onto.query(Odd).agg(most=Odd.score.max())
        assert math.isnan(greatest["most"])
    async with Ontology(desk.store, desk.ambient, [Odd]) as onto:
        first = await onto.query(Odd).order_by(Odd.score.desc()).limit(1).all()
        assert [one.id for one in first] == ["k0"]
