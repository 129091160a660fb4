"""Payload is destroyed at every point of every kind of read: each answer is of before or of after, never of both."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.config import Settings
from holdfast.base.errors import HoldfastError
from holdfast.objects.layer import Layer
from holdfast.objects.store import NotModified, Object, Part, Store, Version
from holdfast.ontology import Entity, Field, Relation, drop, erase, history, layout, revert
from holdfast.ontology.arrival import OldCopy
from holdfast.ontology.changes import Feed
from holdfast.ontology.compact import Compactor
from holdfast.ontology.errors import Overtaken
from holdfast.ontology.form import Form
from holdfast.ontology.results import meta
from holdfast.ontology.session import Ontology
from holdfast.ontology.sight import Sight
from holdfast.ontology.sqltables import SqlTables
from holdfast.ontology.times import Window
from holdfast.ontology.transfer import export_file
from holdfast.ontology.turn import Open
from holdfast.ontology.verify import verify
from tests.unit.ontology.desk import Desk

SECRET = "Geheimnis"
BY: Any = {"turn": Open(), "by": "x", "why": "y"}


class Patient(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[int]


class Knows(Relation[Patient, Patient]):
    note: Field[str] = Field(default="")


PATIENT = Form(Patient).type_id


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

    async def part(self, key: str, start: int, end: int) -> Part:
        await self._step()
        return await super().part(key, start, end)


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
    async with Ontology(desk.store, desk.ambient, [Patient, Knows]) as onto:
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


@asynccontextmanager
async def session(store: Store, desk: Desk, *, warm: bool = False) -> AsyncIterator[Ontology]:
    async with Ontology(store, desk.ambient, [Patient, Knows]) as onto:
        if warm:
            onto._warm.gather_after = 1
        yield onto


def told(found: list[Any]) -> list[Any]:
    return [(meta(one), sorted((name, str(value)) for name, value in vars(one).items())) for one in found]


async def state(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        return told(await onto.query(Patient).all())


async def as_of(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        return told(await onto.query(Patient).as_of(4).all())


async def whole_history(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        return told(await onto.query(Patient).between(2, 5).all())


async def point(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        return told(await onto.query(Patient).where(Patient.id == "p1").as_of(5).all())


async def by_a_column(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    """Older rows match: wherever a newer one is lost, one of them would show."""
    async with session(store, desk) as onto:
        armed()
        return await onto.query(Patient).as_of(5).where((Patient.age == 72) | (Patient.age == 5)).count()


async def differences(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        found = await onto.query(Patient).diff(2, 5)
        return [(each.key, str(each.before), str(each.after)) for each in found]


async def related(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        found = await onto.query(Knows).as_of(5).linked()
        return [(str(each.relation), str(each.left), str(each.right)) for each in found]


async def traversed(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        return told(await onto.query(Patient).as_of(5).where(Patient.age == 74).via(Knows).all())


async def streamed(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        return sorted(str(one) for one in [one async for one in onto.query(Patient).as_of(5).stream()])


async def half_warm(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    """Some of the files are here from an earlier question."""
    async with session(store, desk) as onto:
        await onto.query(Patient).as_of(3).all()
        armed()
        return told(await onto.query(Patient).as_of(5).all())


async def gathered(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    """All of the files are here, as one table; the answer is of the head of now all the same."""
    async with session(store, desk, warm=True) as onto:
        for _ in range(2):
            await onto.query(Patient).all()
            await onto.settled()
        armed()
        return told(await onto.query(Patient).as_of(5).all())


async def got(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    async with session(store, desk) as onto:
        armed()
        return [str(one) for one in await onto.all(Patient)]


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
    return [str(each) for each in await history.diff(store, 2, 5)]


async def reverted(store: Store, desk: Desk, armed: Callable[[], None]) -> Any:
    armed()
    return sorted(map(str, (await revert.preview(store, 4)).intents))


READS: tuple[Read, ...] = (
    state, as_of, whole_history, point, by_a_column, differences, related, traversed, streamed, half_warm, gathered,
    got, sql, exported, fed, compared, reverted,
)  # fmt: skip
DESTROYED = (purged, half_erased)
MORE: dict[Read, Any] = dict.fromkeys((as_of, whole_history), (erased, half_purged, twice))


@pytest.mark.parametrize("read", READS, ids=lambda each: each.__name__)
async def test_an_answer_is_of_before_or_of_after(read: Read, tmp_path: Path) -> None:
    model = await made()

    async def outcome(desk: Desk, store: Store, armed: Callable[[], None]) -> Any:
        desk.folder = tmp_path  # type: ignore[attr-defined]
        try:
            return await read(store, desk, armed)
        except HoldfastError as error:  # there is no such type any more
            return type(error), str(error)

    mixed: list[Any] = []
    for destroy in (*DESTROYED, *MORE.get(read, ())):
        desk = copied(model)
        before = await outcome(desk, desk.store, lambda: None)
        await destroy(desk)
        after = await outcome(desk, desk.store, lambda: None)
        assert SECRET not in str(after)
        at, more = 0, True
        while more:
            desk = copied(model)
            store = Between(desk.store)

            then = partial(destroy, desk)
            found = await outcome(desk, store, partial(store.arm, at, then))
            if found not in (before, after):
                mixed.append((destroy.__name__, at, found))
            at, more = at + 1, store.requests > at
    assert mixed == []


@pytest.mark.parametrize("destroy", [erased, purged], ids=lambda each: each.__name__)
async def test_a_check_that_payload_is_destroyed_under_finds_nothing(destroy: Any) -> None:
    model = await made()
    at, more = 0, True
    while more:
        desk = copied(model)
        store = Between(desk.store)
        store.arm(at, partial(destroy, desk))
        report = await verify(store, deep=True)
        assert report.good, (at, report.findings)
        at, more = at + 1, store.requests > at


async def test_a_compaction_that_payload_is_destroyed_under_begins_anew() -> None:
    model = await made(fan=9)
    at = 0
    while True:
        desk = copied(model)
        store = Between(desk.store)
        store.arm(at, partial(erased, desk))
        await Compactor(store, desk.ambient, fan=2).compact(PATIENT)
        if store.requests <= at:
            break
        assert not [key for key, each in desk.shelf.objects.items() if SECRET.encode() in each.body]
        async with session(desk.store, desk) as onto:
            assert await onto.query(Patient).where(Patient.id == "p1").as_of(4).count() == 0
            assert await onto.query(Patient).as_of(5).count() == 6
        at += 1
    assert at > 8


async def test_a_snapshot_of_redacted_files_tells_of_it() -> None:
    """A reader of an earlier head would find what never was: rows of its head, without those that are gone."""
    desk = await made()
    async with session(desk.store, desk) as early:
        engine, shape = early._engine, early.query(Patient).ask.shape
        ledger = await engine.pinned()
        await erased(desk)
        async with session(desk.store, desk) as onto:
            onto.ensure(Patient(id="q9", name="Q", age=1))
            await onto.commit()
        assert await Compactor(desk.store, desk.ambient, fan=2).compact(PATIENT)
        (index,) = [json.loads(each.body) for key, each in desk.shelf.objects.items() if "indices/entities" in key]
        snapshots = [each for each in index["entries"] if each["min_commit_id"] < each["max_commit_id"]]
        assert {each["stats"]["redacted"] for each in snapshots} == {6}
        span = Window(0, ledger.commit_id, history=False)
        with pytest.raises(Overtaken, match="commit 6"):
            await engine._at(lambda moment: moment.table(shape, span), ledger, Sight())


async def test_it_costs_no_request() -> None:
    desk = await made()
    async with session(desk.store, desk) as onto:
        await onto.query(Patient).all()
        desk.spent()
        await onto.query(Patient).all()
        assert desk.spent() == {"get": 1}
    await erased(desk)
    async with session(desk.store, desk) as onto:
        await onto.query(Patient).all()
        desk.spent()
        await onto.query(Patient).with_history().all()
        assert desk.spent() == {"get": 1}


async def test_a_head_that_is_older_than_its_files_is_told() -> None:
    """As after a backup of which not everything was restored."""
    desk = await made()
    head = desk.shelf.objects[layout.HEAD]
    await erased(desk)
    desk.shelf.place(head)
    async with session(desk.store, desk) as onto:
        with pytest.raises(Overtaken, match="knows nothing of"):
            await onto.query(Patient).all()


async def test_a_copy_that_came_too_late_into_a_disk_cache_is_not_believed(tmp_path: Path) -> None:
    uri, cached = f"file:{tmp_path / 'store'}", Settings.model_validate({"cache": {"dir": str(tmp_path / "cache")}})
    async with holdfast.open(uri) as hf, hf.ontology(Patient) as onto:
        for number in range(2):
            onto.ensure([Patient(id="p1", name=f"{SECRET} {number}", age=1), Patient(id="p2", name="Bo", age=1)])
            await onto.commit()
    files = sorted((tmp_path / "store").rglob("Patient.parquet"))
    before = {path: path.read_bytes() for path in files}
    async with holdfast.open(uri) as hf:
        found = await erase.preview(hf.store, "Patient", "p1")
        await erase.apply(hf.store, hf.ambient, found, found.token, **BY)
    after = {path: path.read_bytes() for path in files}

    async def seen() -> list[str]:
        async with holdfast.open(uri, settings=cached) as hf, hf.ontology(Patient) as onto:
            return [str(one.name) for one in await onto.query(Patient).with_history().all()]

    wanted = await seen()
    assert SECRET not in str(wanted)
    key = str(files[0].relative_to(tmp_path / "store"))
    async with holdfast.open(uri, settings=cached) as hf:
        cache = hf.store.cache
        assert cache is not None
        await cache.forget([key])
        files[0].write_bytes(before[files[0]])  # what another process read just before
        await hf.store.get(key)
        files[0].write_bytes(after[files[0]])
        assert SECRET.encode() in str((await hf.store.get(key)).body).encode() or await cache.holds(key)
    assert await seen() == wanted
    files[0].write_bytes(before[files[0]])  # restored from an older backup
    async with holdfast.open(uri) as hf, hf.ontology(Patient) as onto:
        with pytest.raises(OldCopy, match="from before commit 3"):
            await onto.query(Patient).with_history().all()
