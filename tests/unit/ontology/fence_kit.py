"""Every kind of read, ways to destroy payload under it, and stores that let something happen between two requests."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.objects.layer import Layer
from holdfast.objects.store import NotModified, Object, Part, Store, Version
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.bulk.transfer import export_file
from holdfast.ontology.feed import Feed, diff
from holdfast.ontology.maintain import drop, erase, revert
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.results import meta
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.desk import Desk

SECRET = "Geheimnis"
BY: Any = {"by": "x", "why": "y"}


class Patient(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int]


class Knows(Relation[Patient, Patient]):
    note: Field[str] = Field(default="")


PATIENT = type_info(Patient).type_id


class Killed(Exception):
    pass


class Between(Layer):
    """Does something before the request with a given number; requests are counted from when it is armed."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.at: int | None = None
        self.then: Callable[[], Awaitable[None]] | None = None
        self.requests = 0

    def arm(self, at: int, then: Callable[[], Awaitable[None]]) -> None:
        self.at, self.then, self.requests = at, then, 0

    async def _step(self) -> None:
        if self.then is None:
            return
        self.requests += 1
        if self.requests - 1 == self.at:
            await self.then()

    async def get(self, key: str) -> Object:
        await self._step()
        return await super().get(key)

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        await self._step()
        return await super().get_unless(key, version)

    async def range(self, key: str, start: int, end: int) -> Part:
        await self._step()
        return await super().range(key, start, end)


class Dying(Layer):
    """Dies after so many files were rewritten."""

    def __init__(self, inner: Store, rewrites: int) -> None:
        super().__init__(inner)
        self._left = rewrites

    async def put(self, key: str, *details: Any) -> Any:
        if key.endswith("Patient.parquet") and "/commits/6-" not in f"/{key}":
            if not self._left:
                raise Killed
            self._left -= 1
        return await super().put(key, *details)


# --- a store, and what is destroyed in it ---


async def made(*, fan: int = 3) -> Desk:
    """p1 has another name in each of five commits, p2 is always the same but for the last; the first three are one."""
    desk = Desk()
    async with desk.session(Patient, Knows) as onto:
        for number in range(5):
            onto.ensure([Patient(id="p1", name=f"{SECRET} {number}", age=70 + number)])
            onto.ensure([Patient(id="p2", name="Bo", age=5 + number // 4), Patient(id=f"q{number}", name="Q", age=1)])
            onto.ensure(Knows(left_key="p1", right_key="p2", note=f"{number}"))
            await onto.commit()
    await Compactor(desk.store, desk.ambient, fan=fan).compact(PATIENT)
    return desk


def copied(desk: Desk) -> Desk:
    made = Desk()
    for each in desk.shelf.objects.values():
        made.shelf.place(each)
    return made


async def erased(desk: Desk) -> None:
    found = await erase.preview(desk.store, "Patient", "p1")
    await erase.apply(desk.store, desk.ambient, found, found.token, **BY)


async def purged(desk: Desk) -> None:
    found = await drop.preview(desk.store, "Patient", purge=True)
    await drop.apply(desk.store, desk.ambient, found, found.token, **BY)


async def half_erased(desk: Desk) -> None:
    found = await erase.preview(desk.store, "Patient", "p1")
    with pytest.raises(Killed):
        await erase.apply(Dying(desk.store, 2), desk.ambient, found, found.token, **BY)


async def half_purged(desk: Desk) -> None:
    found = await drop.preview(desk.store, "Patient", purge=True)
    with pytest.raises(Killed):
        await drop.apply(Dying(desk.store, 3), desk.ambient, found, found.token, **BY)


async def twice(desk: Desk) -> None:
    """An erasure that is under way, and another one on top."""
    await half_erased(desk)
    found = await erase.preview(desk.store, "Patient", "p2")
    with pytest.raises(Killed):
        await erase.apply(Dying(desk.store, 5), desk.ambient, found, found.token, **BY)


# --- readers ---

Read = Callable[[Store, Desk, Callable[[], None]], Awaitable[Any]]


def session(store: Store, desk: Desk) -> Ontology:
    return Ontology(store, desk.ambient, [Patient, Knows])


def asking(question: Callable[[Ontology], Awaitable[Any]]) -> Read:
    async def read(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
        async with session(store, desk) as onto:
            armed()
            return await question(onto)

    return read


async def rows(query: Query[Any]) -> list[Any]:
    return [(meta(one), sorted((name, str(value)) for name, value in vars(one).items())) for one in await query.all()]


async def related(onto: Ontology) -> Any:
    found = await onto.query(Knows).as_of(5).linked()
    return [(str(each.relation), str(each.left), str(each.right)) for each in found]


async def half_warm(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    """Some of the files are here from an earlier question."""
    async with session(store, desk) as onto:
        await onto.query(Patient).as_of(3).all()
        armed()
        return await rows(onto.query(Patient).as_of(5))


async def sql(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with SqlTables(store) as tables:
        armed()
        text = "SELECT p.*, k.note FROM Patient__as_of_5 p LEFT JOIN Knows k ON k.left_key = p.id ORDER BY ALL"
        return (await tables.run(text)).to_pylist()


async def exported(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    armed()
    path = Path(str(desk.folder)) / "out.jsonl"  # type: ignore[attr-defined]  # set by the test
    await export_file(store, "Patient", path, as_of=5)
    return path.read_text()


async def fed(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    """What the changes add up to."""
    armed()
    current: dict[Any, Any] = {}
    async for change in Feed(store):
        if change.change_type == "retract":
            current.pop((change.type_id, change.identity), None)
        elif change.change_type != "update_preimage":
            current[change.type_id, change.identity] = change.fields_json
    return sorted(current.items())


async def compared(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    armed()
    return [str(each) for each in await diff(store, 2, 5)]


async def reverted(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    armed()
    return sorted(map(str, (await revert.preview(store, 4)).intents))


READS: dict[str, Read] = {
    "as of": asking(lambda onto: rows(onto.query(Patient).as_of(4))),
    "whole history": asking(lambda onto: rows(onto.query(Patient).between(2, 5))),
    "point": asking(lambda onto: rows(onto.query(Patient).where(Patient.id == "p1").as_of(5))),
    # Older rows match: wherever a newer one is lost, one of them would show.
    "by a column": asking(lambda onto: onto.query(Patient).as_of(5).where(Patient.age.in_([72, 5])).count()),
    "related": asking(related),
    "traversed": asking(lambda onto: rows(onto.query(Patient).as_of(5).where(Patient.age == 74).via(Knows))),
    "half warm": half_warm,
    "sql": sql,
    "exported": exported,
    "fed": fed,
    "compared": compared,
    "reverted": reverted,
}
DESTROYED = (purged, half_erased)
MORE: dict[str, Any] = dict.fromkeys(("as of", "whole history"), (erased, half_purged, twice))
