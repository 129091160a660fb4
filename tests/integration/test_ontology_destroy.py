"""Migration, erasure, drop and purge on real stores, each beside a writer that is in the way."""

from typing import Any

import pytest

import holdfast
from holdfast.base.errors import Conflict, Refused
from holdfast.ontology import Entity, Field, upgrader
from holdfast.ontology.commit.lock import Open
from holdfast.ontology.maintain import drop, erase
from holdfast.ontology.maintain.verify.verify import verify
from tests.integration.run_places import Place


class Guest(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[str]


class Newer(Entity, name="Guest"):
    id: Field[str] = Field(primary_key=True)
    years: Field[int]


@upgrader(Newer, from_version=1, to_version=2)
def counted(fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": fields["id"], "years": int(fields["age"])}


async def test_a_type_is_migrated_erased_and_purged(place: Place) -> None:
    options: Any = {"turn": Open(), "by": "x", "why": "y"}
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        async with hf.ontology(Guest) as onto:
            for age in range(3):
                onto.ensure([Guest(id="a", age=str(age)), Guest(id="b", age=str(age))])
                await onto.commit()
        async with hf.ontology(Newer) as onto:
            plan = await onto.migrate()
            async with hf.ontology(Guest) as other:
                other.ensure(Guest(id="c", age="9"))
                await other.commit()
            with pytest.raises(Refused):
                await onto.migrate(plan.token)
            plan = await onto.migrate()
            assert await onto.migrate(plan.token) is not None
            assert {one.id: one.years for one in await onto.query(Newer).as_of(1).all()} == {"a": 0, "b": 0}
            erasing = await erase.preview(hf.store, "Guest", "a")
            onto.ensure(Newer(id="d", years=1))
            await onto.commit()
            with pytest.raises(Conflict):
                await erase.apply(hf.store, hf.ambient, erasing, erasing.token, **options)
            erasing = await erase.preview(hf.store, "Guest", "a")
            await erase.apply(hf.store, hf.ambient, erasing, erasing.token, **options)
            assert [one.id for one in await onto.query(Newer).as_of(2).all()] == ["b"]
            assert [one.id for one in await onto.query(Newer).all()] == ["b", "c", "d"]
        assert (await verify(hf.store, deep=True)).good
        dropping = await drop.preview(hf.store, "Guest", purge=True)
        await drop.apply(hf.store, hf.ambient, dropping, dropping.token, **options)
        async with hf.ontology(Newer) as onto:
            assert await onto.query(Newer).as_of(2).count() == 0
        report = await verify(hf.store, deep=True)
        assert report.good, report.findings
