"""Erasure: the payload of one object is gone from every object of the store; the store stays sound."""

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.config import Settings
from holdfast.base.errors import Conflict, Invalid, NotFound
from holdfast.objects.layer import Layer
from holdfast.objects.store import Store
from holdfast.ontology.chain.history import find_commit
from holdfast.ontology.feed import Feed
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.rows import from_parquet
from holdfast.ontology.maintain import erase
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.fence_kit import SECRET, Knows, Patient


def session(desk: Desk) -> Ontology:
    return desk.session(Patient, Knows)


async def history(desk: Desk) -> None:
    async with session(desk) as onto:
        for number in range(4):
            onto.ensure([Patient(id="p1", name=f"{SECRET} {number}", age=77), Patient(id="p2", name="Bo", age=number)])
            onto.ensure(Knows(left_key="p1", right_key="p2", note=f"{SECRET} {number}"))
            await onto.commit()


async def erased(desk: Desk, *key: str, name: str = "Patient", store: Store | None = None) -> Any:
    found = await erase.preview(store or desk.store, name, *key)
    options: Any = {"by": "dpo", "why": "asked for"}
    return await erase.apply(store or desk.store, desk.ambient, found, found.token, **options)


def payload(objects: dict[str, bytes]) -> set[str]:
    """The keys of objects that still have the secret in them, in files of patients and in what describes them."""
    found = set()
    for key, body in objects.items():
        if key.endswith(".parquet"):
            columns = from_parquet(body, key=key).to_pydict()
            text = json.dumps(columns, default=str)
        else:
            text = body.decode()
        if SECRET in text:
            found.add(key)
    return found


def bodies(desk: Desk) -> dict[str, bytes]:
    return {key: each.body for key, each in desk.shelf.objects.items()}


async def test_the_payload_is_gone_from_all_objects(desk: Desk) -> None:
    await history(desk)
    await Compactor(desk.store, desk.ambient, fan=2).compact(type_info(Patient).type_id)
    assert any(key.startswith("snapshots/") for key in payload(bodies(desk)))
    found = await erase.preview(desk.store, "Patient", "p1")
    assert (found.rows, found.commits) == (4, (1, 2, 3, 4))
    commit = await erased(desk, "p1")
    assert commit.commit_id == 5
    with pytest.raises(NotFound):
        await erase.preview(desk.store, "Patient", "p1")
    with pytest.raises(Invalid, match="two keys"):
        await erase.preview(desk.store, "Knows", "p1")
    manifest = await find_commit(desk.store, 5)
    assert manifest.metadata["erase"] == {
        "type": "entity/Patient",
        "key": ["p1"],
        "rows": 4,
        "by": "dpo",
        "why": "asked for",
    }
    left = payload(bodies(desk))
    assert left
    assert not [key for key in left if "Knows" not in key and not key.endswith("manifest.json")]
    await erased(desk, "p1", "p2", name="Knows")
    assert payload(bodies(desk)) == set()
    report = await verify(desk.store, deep=True)
    assert report.good
    assert {each.rule.name for each in report.findings} <= {"index_lag"}
    (first, _) = sorted(key for key in desk.shelf.objects if key.startswith(layout.REDACTIONS))
    record = json.loads(desk.shelf.objects[first].body)
    assert len(record["files"]) == 4
    assert all(each["sha256_before"] != each["sha256_after"] for each in record["files"])


async def test_followers_hear_of_it(desk: Desk) -> None:
    await history(desk)
    early = Feed(desk.store)
    assert [each.identity async for each in early.changes() if each.identity == ("p1",)]
    await erased(desk, "p1")
    once = Feed(desk.store, once=True)
    for feed in (early, once, Feed(desk.store, since=4), Feed(desk.store)):
        seen = [each async for each in feed.changes() if each.identity == ("p1",)]
        assert [(each.change_type, each.commit_version, each.fields) for each in seen] == [
            ("retract", 5, {"_erased": True, "id": "p1"})
        ]


async def test_rows_of_plain_writers_are_erased_too(desk: Desk) -> None:
    rows: Any = [("a", {"name": SECRET}), ("b", {"name": "x"})]
    await desk.plain.commit({("entity", "Guest"): rows})
    await erased(desk, "a", name="Guest")
    assert payload(bodies(desk)) == set()
    assert (await verify(desk.store, deep=True)).good
    assert (await desk.reader.latest("entity", "Guest"))["b"] == {"name": "x"}


async def test_disk_caches_of_others_are_brought_up_to_date(tmp_path: Path) -> None:
    uri, cache = f"file:{tmp_path / 'store'}", tmp_path / "cache"
    cached = Settings.model_validate({"cache": {"dir": str(cache)}})

    async def seen() -> int:
        async with holdfast.open(uri, settings=cached) as hf, hf.ontology(Patient) as onto:
            return await onto.query(Patient).as_of(1).count()

    def kept() -> bool:
        return any(SECRET.encode() in each.read_bytes() for each in cache.rglob("*") if each.is_file())

    async with holdfast.open(uri) as hf, hf.ontology(Patient) as onto:
        onto.ensure([Patient(id="p1", name=SECRET, age=1), Patient(id="p2", name="Bo", age=1)])
        await onto.commit()
    assert await seen() == 2
    assert kept()
    async with holdfast.open(uri) as hf:
        found = await erase.preview(hf.store, "Patient", "p1")
        await erase.apply(hf.store, hf.ambient, found, found.token, by="x", why="")
    assert await seen() == 1
    assert not kept()
    assert await seen() == 1


async def test_what_a_killed_compactor_wrote_later_is_named_and_removed(desk: Desk) -> None:
    await history(desk)

    class Killed(Exception):
        pass

    class Dying(Layer):
        async def put(self, key: str, *details: Any) -> Any:
            done = await super().put(key, *details)
            if key.startswith(layout.SNAPSHOTS):
                raise Killed
            return done

    class Slow(Compactor):
        async def _merged(self, wanted: Any) -> Any:
            made = await super()._merged(wanted)
            await erased(desk, "p1")
            return made

    slow = Slow(Dying(desk.store), desk.ambient, fan=2)
    planned = (await slow.outlook(type_info(Patient).type_id)).merges[0]
    with pytest.raises(Killed):
        await slow.perform(planned)
    (left,) = [key for key in payload(bodies(desk)) if "Patient" in key]
    report = await verify(desk.store)
    assert [(each.rule.name, each.key) for each in report.findings if each.severity == "error"] == [
        ("erased_payload", left)
    ]
    assert await erase.resume(desk.store, desk.ambient) == erase.Resumed([], [left])
    assert (await verify(desk.store, deep=True)).good
    assert not [key for key in payload(bodies(desk)) if "Patient" in key]


async def test_attempts_that_lost_lose_the_payload_too(desk: Desk) -> None:
    await history(desk)
    manifest = await find_commit(desk.store, 3)
    for key in [each for each in desk.shelf.objects if each.startswith(layout.folder_of(manifest.path) or "?")]:
        copy = key.replace(layout.attempt_of_folder(layout.folder_of(key) or "")[1], "0badcafe")
        await desk.bare.put(copy, desk.shelf.objects[key].body)
    await erased(desk, "p1")
    assert not [key for key in desk.shelf.objects if "0badcafe" in key]
    assert not [key for key in payload(bodies(desk)) if "Patient" in key]
    await desk.bare.put("commits/9-0badcafe/entities/Patient.parquet", b"of a writer that is still at work")
    assert await erase.resume(desk.store, desk.ambient) == erase.Resumed([], [])


async def test_pages_do_not_continue_after_an_erasure(desk: Desk) -> None:
    """Later rows have moved up."""
    async with session(desk) as onto:
        onto.ensure([Patient(id=f"p{number}", name="x", age=number) for number in range(6)])
        await onto.commit()
        page = await onto.query(Patient).page(2)
        await erased(desk, "p0")
        with pytest.raises(Conflict, match="rows were erased since the page before"):
            await onto.query(Patient).page(2, after=page.cursor)
