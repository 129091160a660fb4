"""Parts of large files beside what changes them: redactions, other questions of the session, names of other writers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.objects.layer import Layer
from holdfast.objects.store import Part
from holdfast.ontology import left
from holdfast.ontology.compact import Compactor
from holdfast.ontology.refs import TypeId
from holdfast.ontology.session import Ontology
from holdfast.ontology.sqltables import SqlTables
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.test_erase import erased
from tests.unit.ontology.test_sparse import Link, Thing, large, stocked
from tests.unit.ontology.test_sqltables import ODD, odd_names


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)


class Interposed(Layer):
    """Something happens before a range is read."""

    before: Callable[[str], Awaitable[None]] | None = None

    async def part(self, key: str, start: int, end: int) -> Part:
        if self.before is not None:
            await self.before(key)
        return await super().part(key, start, end)


async def test_a_question_on_its_way_while_another_one_hears_of_a_redaction_is_put_again() -> None:
    desk = Desk()
    await stocked(desk, compacted=True)
    store = Interposed(desk.store)
    async with Ontology(store, desk.ambient, (Thing, Link)) as onto:
        links = onto.query(Link).where(left(Link).value > 4).select("weight")

        async def redacted(key: str) -> None:
            if "/Thing" in key:  # and what is needed of the links is at hand
                store.before = None
                await erased(desk, "k09", "k04", name="Link")
                await onto.query(Link).count()

        await onto.query(Link).count()
        store.before = redacted
        asked = (await links.arrow()).to_pylist()
        assert store.before is None
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
            assert sql._warm._narrower._files, "it came in parts"
