"""Columns of large files: what a statement reads is here when it runs, and what it does not read stays away.

Files are large from the first byte on here, a range is a column of a row group, and there may be any number of them: a
column that was not asked for is a hole, which DuckDB refuses.
"""

import math
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.objects.layer import Layer
from holdfast.objects.store import Part
from holdfast.ontology import Entity, Field, Relation, count, left
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.remote_parquet import RemoteParquet, missing
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.results import meta
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.maintain.test_erase import erased

KEYS = 40


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]
    name: Field[str]
    tags: Field[list[str]]


class Link(Relation[Thing, Thing]):
    weight: Field[int]


THING = TypeId("entity", "Thing")


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)


def large(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {
        "maintain.merge.ROW_GROUP": 8,
        "format.data.rows.ROW_GROUP": 8,
        "query.cache.large_files.WHOLE_BYTES": 0,
        "query.cache.large_files.RUNS": 10**6,
    }
    ranges = {"WHOLE_BYTES": 0, "TAIL_BYTES": 256, "GAP_BYTES": 0, "GAP_SHARE": 0, "RANGES": 10**6, "SHARE": 2}
    changed |= {f"format.data.remote_parquet.{name}": value for name, value in ranges.items()}
    for place, value in changed.items():
        monkeypatch.setattr(f"holdfast.ontology.{place}", value)


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ontology.query.cache.large_files.WHOLE_BYTES", 1 << 60)


async def stocked(desk: Desk, *, compacted: bool) -> None:
    rng = random.Random(5)
    async with desk.session(Thing, Link) as onto:
        for number in range(4):
            some = range(KEYS) if number == 0 else rng.sample(range(KEYS), 9)
            onto.ensure([Thing(id=f"k{n:02d}", value=n % 7 + number, name=f"n{n}", tags=[str(n)]) for n in some])
            onto.ensure([Link(left_key=f"k{n:02d}", right_key=f"k{n // 2:02d}", weight=n + number) for n in some])
            if number == 2:
                onto.retract(Thing, "k07")
            await onto.commit()
    if compacted:
        for type_id in (THING, TypeId("relation", "Link")):
            await Compactor(desk.store, desk.ambient, whole=True).compact(type_id)


async def answers(onto: Ontology) -> dict[str, Any]:
    things, links = onto.query(Thing), onto.query(Link)
    found: dict[str, Any] = {
        "figures": await things.group_by(Thing.value).agg(n=count(), least=Thing.name.min()),
        "count": await things.where(Thing.value > 3).count(),
        "columns": (await things.where(Thing.value < 5).select("name").arrow()).to_pylist(),
        "arrow": (await things.arrow()).to_pylist(),
        "as of": (await things.as_of(2).arrow()).to_pylist(),
        "history": (await things.with_history().select("value").arrow()).to_pylist(),
        "key": (await things.where(Thing.id == "k09").arrow()).to_pylist(),
        "keys": (await things.where(Thing.id.in_(["k03", "k39", "none"])).arrow()).to_pylist(),
        "range": (await things.where(Thing.id.between("k10", "k13"), Thing.value > 2).arrow()).to_pylist(),
        "either": (await things.where((Thing.value == 5) | (Thing.name == "n35")).arrow()).to_pylist(),
        "null": await things.where(Thing.value.is_null()).count(),
        "past": (await things.where(Thing.value < 3).as_of(2).arrow()).to_pylist(),
        "since": (await things.where(Thing.id == "k05").history_since(1).arrow()).to_pylist(),
        "lists": await things.where(Thing.tags.any_path() == "5").count(),
        "ends": (await links.where(left(Link).value > 4).arrow()).to_pylist(),
        "via": (await things.where(Thing.value == 3).via(Link).arrow()).to_pylist(),
        "stream": sorted([one.id async for one in things.stream()]),
        "objects": [(meta(one), vars(one)) for one in await things.all()],
    }
    return found


@pytest.mark.parametrize("compacted", [False, True])
async def test_columns_and_whole_files_give_the_same_answers(
    compacted: bool, monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> None:
    await stocked(desk, compacted=compacted)
    async with desk.session(Thing, Link) as onto:
        first = await answers(onto)
        assert onto._warm._large._files
        assert await answers(onto) == first
    async with SqlTables(desk.store) as tables:
        text = "SELECT name, value FROM Thing WHERE value > 3 ORDER BY name"
        answer = (await tables.run(text)).to_pylist()
    whole(monkeypatch)
    async with desk.session(Thing, Link) as onto:
        assert await answers(onto) == first
    async with SqlTables(desk.store) as tables:
        assert (await tables.run(text)).to_pylist() == answer


def snapshot(onto: Ontology) -> RemoteParquet:
    (found,) = {each for each in onto._warm._large._remote.values() if each.key.startswith(layout.SNAPSHOTS)}
    return found


def columns_of(file: RemoteParquet) -> set[str]:
    """Those that are here."""
    return {each.column for group in file.chunks for each in group if not missing([each.extent], file._here)}


async def test_a_statement_brings_what_it_reads_and_the_next_one_what_is_missing(desk: Desk) -> None:
    await stocked(desk, compacted=True)
    async with desk.session(Thing, Link) as onto:
        things = onto.query(Thing)
        await things.group_by(Thing.value).agg(n=count())
        file = snapshot(onto)
        here = columns_of(file)
        assert here == {"commit_id", "entity_key", "value", "_retracted", "_until"}
        before = sum(tally.requests for tally in desk.usage.tallies.values())
        await things.group_by(Thing.value).agg(n=count(), most=Thing.value.max())
        assert sum(tally.requests for tally in desk.usage.tallies.values()) == before + 1, "the head"
        await things.select("name").arrow()
        assert columns_of(file) == here | {"name"}
        await things.all()
        assert columns_of(file) >= here | {"name", "fields_json"}
        assert not file.complete


@pytest.mark.parametrize("gone", [False, True])
async def test_a_file_that_goes_between_its_footer_and_its_columns_is_looked_for_again(gone: bool, desk: Desk) -> None:
    await stocked(desk, compacted=True)
    async with desk.session(Thing, Link) as onto:
        things = onto.query(Thing)
        before = await things.group_by(Thing.value).agg(n=count())
        snapshots = {key: each.body for key, each in desk.shelf.objects.items() if key.startswith(layout.SNAPSHOTS)}
        if gone:
            await desk.store.delete_many(list(snapshots))
        else:
            for key, body in snapshots.items():
                await desk.store.put(key, body)
        found = (await things.select("name").arrow()).to_pylist()
        assert sorted(one["name"] for one in found) == sorted(f"n{n}" for n in range(KEYS) if n != 7)
        assert await things.group_by(Thing.value).agg(n=count()) == before


async def test_a_file_of_a_writer_who_puts_more_into_it_comes_whole(tmp_path: Path, desk: Desk) -> None:
    """DuckDB writes Bloom filters, which it looks at for a key, and which lie beside the columns."""
    await stocked(desk, compacted=True)
    ((key, body),) = [
        (key, each.body) for key, each in desk.shelf.objects.items() if re.match(r"snapshots/.*Thing", key)
    ]
    (tmp_path / "ours.parquet").write_bytes(body)
    duckdb.sql(f"COPY (FROM '{tmp_path}/ours.parquet') TO '{tmp_path}/theirs.parquet' (ROW_GROUP_SIZE 2048)")
    theirs = (tmp_path / "theirs.parquet").read_bytes()
    metadata = pq.read_metadata(pa.BufferReader(theirs))
    assert any(metadata.row_group(0).column(n).bloom_filter_offset for n in range(metadata.num_columns))
    async with desk.session(Thing, Link) as onto:
        expected = await answers(onto)
    await desk.store.put(key, theirs)
    async with desk.session(Thing, Link) as onto:
        assert (await onto.query(Thing).where(Thing.id == "k09").arrow()).to_pylist() == expected["key"]
        assert await onto.query(Thing).where(Thing.value > 3).count() == expected["count"]
        (here,) = (each for each in onto._warm._types.values() if each.shape.name == "Thing")
        assert key in here.files


async def test_row_groups_of_rows_that_have_ended_are_left_out_of_states(
    monkeypatch: pytest.MonkeyPatch, desk: Desk
) -> None:
    monkeypatch.setattr(RemoteParquet, "complete", False)  # of which all is here is no longer scanned by row groups
    await stocked(desk, compacted=True)

    async def scanned(query: Query[Any]) -> set[int]:
        """The numbers of the rows of the snapshot that lookups of all keys name."""
        found: set[int] = set()
        for number in range(KEYS):
            sql = (await query.where(Thing.id == f"k{number:02d}").explain()).sql
            for first, last in re.findall(r"file_row_number BETWEEN (\d+) AND (\d+)", sql):
                found |= {*range(int(first), int(last) + 1)}
        return found

    async with desk.session(Thing, Link) as onto:
        latest = await scanned(onto.query(Thing))
        key = snapshot(onto).key
    async with desk.session(Thing, Link) as onto:
        history = await scanned(onto.query(Thing).with_history())
    ends = pq.read_table(pa.BufferReader(desk.shelf.objects[key].body)).column("_until")
    assert latest
    assert max(latest) < ends.null_count <= max(history)


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


async def test_a_question_on_its_way_while_another_one_hears_of_a_redaction_is_put_again(desk: Desk) -> None:
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
    async with desk.session(Thing, Link) as onto:
        links = onto.query(Link).where(left(Link).value > 4).select("weight")
        assert asked == (await links.arrow()).to_pylist()


class Score(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int | None] = Field(default=None)
    score: Field[float] = Field(default=math.nan)


@pytest.mark.parametrize("rows", [2, 100])
async def test_statistics_of_files_hide_no_row(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB believes them: those of floats leave NaN out, and those of row groups may be all null."""
    monkeypatch.setattr("holdfast.ontology.format.data.rows.ROW_GROUP", rows)
    desk = Desk()
    scores = [math.nan, 5.0, 2.0, 5.0, math.nan, 5.0]
    async with desk.session(Score) as onto:
        made = [Score(id=f"k{n}", score=score, value=3 if n > 3 else None) for n, score in enumerate(scores)]
        onto.ensure(made)
        await onto.commit()

    async def keys(where: Any) -> list[str]:
        async with desk.session(Score) as onto:
            return [one.id for one in await onto.query(Score).where(where).all()]

    assert await keys(~(Score.score >= 1.5)) == await keys(~(Score.score < 9)) == ["k0", "k4"]
    assert await keys(Score.score > 1) == await keys(Score.score < 9) == ["k1", "k2", "k3", "k5"]
    assert await keys(Score.score == 5.0) == ["k1", "k3", "k5"]
    assert await keys(Score.score != 5.0) == ["k0", "k2", "k4"]
    assert await keys((Score.value != 3) | (Score.value > 3)) == ["k0", "k1", "k2", "k3"]
    async with desk.session(Score) as onto:
        greatest = await onto.query(Score).agg(most=Score.score.max())
        assert math.isnan(greatest["most"])
    async with desk.session(Score) as onto:
        first = await onto.query(Score).order_by(Score.score.desc()).limit(1).all()
        assert [one.id for one in first] == ["k0"]
