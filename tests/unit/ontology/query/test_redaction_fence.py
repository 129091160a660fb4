"""Payload is destroyed at every point of every kind of read: each answer is of before or of after, never of both."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.config import Settings
from holdfast.base.errors import Conflict, HoldfastError
from holdfast.objects.store import Store
from holdfast.ontology.chain.history import Window
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.format import layout
from holdfast.ontology.maintain import erase
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.query.cache.loaded import OldCopy
from holdfast.ontology.query.statement import Need
from holdfast.ontology.types.errors import Overtaken
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.fence_kit import (
    BY,
    DESTROYED,
    MORE,
    PATIENT,
    READS,
    SECRET,
    Between,
    Patient,
    copied,
    erased,
    half_erased,
    made,
    purged,
    session,
)


@pytest.mark.parametrize("read", READS)
async def test_an_answer_is_of_before_or_of_after(read: str, tmp_path: Path) -> None:
    model = await made()

    async def outcome(desk: Desk, store: Store, armed: Callable[[], None]) -> Any:
        desk.folder = tmp_path  # type: ignore[attr-defined]
        try:
            return await READS[read](store, desk, armed)
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


async def test_a_snapshot_of_redacted_files_records_it() -> None:
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
            await engine.at(lambda moment: moment.tables([Need(shape, span)]), ledger, RedactionFence())


async def test_while_payload_is_being_destroyed_nothing_is_compacted() -> None:
    desk = await made(fan=9)
    await half_erased(desk)
    report = await verify(desk.store)
    assert "redaction_unfinished" in {each.rule.name for each in report.findings}
    with pytest.raises(Conflict, match="ordered payload to be destroyed, and that is not done"):
        await Compactor(desk.store, desk.ambient, fan=2).compact(PATIENT)
    async with session(desk.store, desk) as onto:  # opened while it is under way
        assert await onto.query(Patient).as_of(3).where(Patient.id == "p1").count() == 0
        assert (await erase.resume(desk.store, desk.ambient)).finished == [6]
    assert await erase.resume(desk.store, desk.ambient) == erase.Resumed([], [])
    assert not [key for key, each in desk.shelf.objects.items() if "Patient" in key and SECRET.encode() in each.body]
    assert (await verify(desk.store, deep=True)).good


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


async def test_a_head_that_is_older_than_its_files_is_reported() -> None:
    """As after a backup of which not everything was restored."""
    desk = await made()
    head = desk.shelf.objects[layout.HEAD]
    await erased(desk)
    desk.shelf.place(head)
    async with session(desk.store, desk) as onto:
        with pytest.raises(Overtaken, match="after the commit that is read"):
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
        await cache.discard([key])
        files[0].write_bytes(before[files[0]])  # what another process read just before
        await hf.store.get(key)
        files[0].write_bytes(after[files[0]])
        assert SECRET.encode() in str((await hf.store.get(key)).body).encode() or await cache.contains(key)
    assert await seen() == wanted
    files[0].write_bytes(before[files[0]])  # restored from an older backup
    async with holdfast.open(uri) as hf, hf.ontology(Patient) as onto:
        with pytest.raises(OldCopy, match="from before commit 3"):
            await onto.query(Patient).with_history().all()
