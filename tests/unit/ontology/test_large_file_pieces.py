"""Pieces of large files give what whole files give, whatever is asked; files are large from the first byte on here."""

import random
import re
from typing import Any

import pytest

from holdfast.ontology import Entity, Field
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.lifespans import lasting_in
from holdfast.ontology.format.data.remote_parquet import RemoteParquet
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.results import meta
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk

THING = TypeId("entity", "Thing")


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]
    born: Field[int]


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("maintain.merge", "format.data.rows"):
        monkeypatch.setattr(f"holdfast.ontology.{place}.ROW_GROUP", 4)
    monkeypatch.setattr("holdfast.ontology.format.data.remote_parquet.WHOLE_BYTES", 0)
    monkeypatch.setattr("holdfast.ontology.format.data.remote_parquet.TAIL_BYTES", 256)
    monkeypatch.setattr("holdfast.ontology.query.cache.large_files.WHOLE_BYTES", 0)
    monkeypatch.setattr("holdfast.ontology.query.cache.large_files.RUNS", 10**6)
    monkeypatch.setattr("holdfast.ontology.format.data.remote_parquet.GAP_BYTES", 0)
    monkeypatch.setattr("holdfast.ontology.format.data.remote_parquet.SHARE", 2)


async def filled(desk: Desk, seed: int) -> None:
    rng = random.Random(seed)
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        onto.ensure([Thing(id=f"k{n:02d}", value=n % 7, born=n) for n in range(40)])
        await onto.commit()
        for number in range(rng.randrange(1, 6)):
            some = rng.sample(range(48), 6)
            onto.ensure([Thing(id=f"k{n:02d}", value=rng.randrange(7), born=n + 100 * number) for n in some])
            if number % 2:
                onto.retract(Thing, f"k{some[0]:02d}")
            await onto.commit()
    if seed % 3:
        await Compactor(desk.store, desk.ambient, fan=2, whole=seed % 3 == 1).compact(THING)
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for _ in range(seed % 4):
            onto.ensure([Thing(id=f"k{n:02d}", value=9, born=n) for n in rng.sample(range(48), 3)])
            await onto.commit()


def asked(onto: Ontology) -> dict[str, Query[Any]]:
    things = onto.query(Thing)
    return {
        "key": things.where(Thing.id == "k17"),
        "keys": things.where(Thing.id.in_(["k03", "k39", "k47", "none"])),
        "range": things.where(Thing.id.between("k10", "k13"), Thing.value > 2),
        "narrow": things.where(Thing.born.between(20, 23)),
        "either": things.where((Thing.born == 5) | (Thing.born == 35)),
        "not": things.where(Thing.born < 8, Thing.value != 3),
        "null": things.where(Thing.born.is_null()),
        "past": things.where(Thing.born < 6).as_of(2),
        "history": things.where(Thing.born < 6).with_history(),
        "since": things.where(Thing.id == "k05").history_since(1),
        "all": things,
    }


async def rows(query: Query[Any]) -> list[Any]:
    return [(meta(one), vars(one)) for one in await query.all()]


@pytest.mark.parametrize("seed", range(6))
async def test_pieces_and_whole_files_give_the_same_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    await filled(desk, seed)
    pieces: dict[str, Any] = {}
    made = 0
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for name, query in asked(onto).items():
            pieces[name] = await rows(query)
            assert name == "all" or await rows(query) == pieces[name]
            made += "file_row_number BETWEEN" in (await query.explain()).sql
    assert made
    for name in ("narrow", "past", "history"):
        async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
            assert await rows(asked(onto)[name]) == pieces[name], f"{name}, asked first"
    monkeypatch.setattr("holdfast.ontology.query.cache.large_files.WHOLE_BYTES", 1 << 60)
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for name, query in asked(onto).items():
            assert await rows(query) == pieces[name], name
        assert not onto._warm._large._files


async def test_a_snapshot_that_is_removed_between_two_pieces_is_looked_for_elsewhere() -> None:
    desk = Desk()
    await filled(desk, 4)
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        (before,) = await onto.query(Thing).where(Thing.id == "k00").all()
        await desk.store.delete_many([key for key in desk.shelf.objects if key.startswith(layout.SNAPSHOTS)])
        assert await onto.query(Thing).where(Thing.id.in_(["k00", "k22"])).count() == 2
        assert await onto.query(Thing).where(Thing.id == "k00").all() == [before]


async def test_a_file_that_is_replaced_between_two_pieces_is_read_anew() -> None:
    desk = Desk()
    await filled(desk, 4)
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        (before,) = await onto.query(Thing).where(Thing.id == "k00").all()
        for key, each in list(desk.shelf.objects.items()):
            if key.startswith(layout.SNAPSHOTS):
                await desk.store.put(key, each.body)
        assert await onto.query(Thing).where(Thing.id == "k22").count() == 1
        assert await onto.query(Thing).where(Thing.id == "k00").all() == [before]


async def test_row_groups_of_rows_that_have_ended_are_left_out_by_who_asks_for_the_latest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RemoteParquet, "complete", False)  # of which all is here is no longer scanned by row groups
    desk = Desk()
    await filled(desk, 4)
    keys = [f"k{number:02d}" for number in range(48)]

    async def fetched(query: Query[Any], onto: Ontology) -> tuple[int, Any]:
        """How many row groups of the snapshot were scanned when every key was looked up, and its footer."""
        scanned: set[int] = set()
        for key in keys:
            found = (await query.where(Thing.id == key).explain()).sql
            for first, last in re.findall(r"file_row_number BETWEEN (\d+) AND (\d+)", found):
                scanned |= {*range(int(first) // 4, int(last) // 4 + 1)}
        (file,) = [f for path, f in onto._warm._large._files.items() if path.startswith(layout.SNAPSHOTS)]
        return len(scanned), file.remote.metadata

    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        latest, footer = await fetched(onto.query(Thing), onto)
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        history, _ = await fetched(onto.query(Thing).with_history(), onto)
    answer = lasting_in(footer.metadata)
    assert answer is not None
    assert (latest, history) == (-(-answer.first // 4), footer.num_row_groups)
    assert latest < history
