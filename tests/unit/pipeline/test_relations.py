"""Relational steps of a job: each source is read once, what is staged counts once, and the driver holds little."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pyarrow as pa
import pytest

from holdfast.base.errors import HoldfastError
from holdfast.objects.store import Store
from holdfast.pipeline.engine import Inline, staged, unwatched
from holdfast.pipeline.engine.local import BATCH_ROWS
from holdfast.pipeline.engine.protocol import Spread
from holdfast.pipeline.engine.relations import Relations, relations
from holdfast.pipeline.tables.objects import MOST_CUTS, ObjectsTable, Span, divided
from tests.unit.pipeline.audit_desk import Place, place
from tests.unit.pipeline.field import HOUR

WORDS = pa.schema([("word", pa.string()), ("bytes", pa.int64())])


@dataclass(frozen=True)
class Words:
    """Reads objects, and gives their words."""

    schema: pa.Schema = WORDS

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            for key in batch.column("key").to_pylist():
                words = (await store.get(key)).body.decode().split()
                yield pa.RecordBatch.from_pylist([{"word": each, "bytes": len(each)} for each in words], WORDS)


BY_KEY = Spread(by=("key",), worth=2)


def working(here: Place, run_id: str = "run") -> AbstractAsyncContextManager[Relations]:
    return relations(here.store, Inline(), run_id, lambda name: unwatched)


async def read(work: Relations) -> list[tuple[str, int]]:
    await work.scan("objects", ObjectsTable(("texts/",)))
    await work.map("words", "SELECT key FROM objects WHERE size > 0", Words(), BY_KEY)
    work.view("counted", "SELECT word, count(*) AS n FROM words GROUP BY word")
    work.view("repeated", "SELECT word, n FROM counted WHERE n > 1")
    return [(row["word"], row["n"]) for row in await work.rows("SELECT * FROM repeated ORDER BY word")]


async def fill(here: Place) -> None:
    for number, text in enumerate(("a b c", "b c d", "", "c d")):
        await here.store.put(f"texts/{number % 2}/{number}", text.encode())


async def test_steps_are_sql_over_rows_that_were_read_once() -> None:
    async with place() as here:
        await fill(here)
        async with working(here) as work:
            assert await read(work) == [("b", 2), ("c", 3), ("d", 2)]
            before = dict(here.store.usage.by_verb)
            await here.store.put("texts/0/9", b"a a a")  # after the snapshot
            assert await read(work) == [("b", 2), ("c", 3), ("d", 2)]
            assert here.store.usage.by_verb.get("list", 0) == before["list"]
            await work.remove()
        assert [key async for key in here.store.keys(staged.STAGED)] == []


async def test_the_next_driver_of_a_run_goes_on_with_the_same_rows() -> None:
    async with place() as here:
        await fill(here)
        async with working(here) as work:
            first = await read(work)
        await here.store.delete_many([key async for key in here.store.keys("texts/")])
        async with working(here) as again:
            assert await read(again) == first
        async with working(here, "another") as other:
            assert await read(other) == []


async def test_of_two_drivers_one_decides_which_rows_a_table_has() -> None:
    async with place() as here:
        await fill(here)
        async with working(here) as one, working(here) as two:
            target = staged.Target("run", "words", WORDS)
            rows = [pa.RecordBatch.from_pylist([{"word": word, "bytes": 1}], WORDS) for word in ("one", "two")]
            won = await staged.publish(here.store, target, await staged.write_parts(here.store, target, _of(rows[0])))
            lost = await staged.publish(here.store, target, await staged.write_parts(here.store, target, _of(rows[1])))
            assert won == lost
            for work in (one, two):
                await work.map("words", "SELECT 1 AS key", Words(), BY_KEY)
                assert await work.rows("SELECT word FROM words") == [{"word": "one"}]


async def _of(*batches: pa.RecordBatch) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        yield batch


async def test_large_tables_have_several_parts_and_small_ones_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "PART_BYTES", 10_000)
    monkeypatch.setattr(staged, "GROUP_ROWS", 1_000)
    async with place() as here, working(here) as work:
        schema = pa.schema([("n", pa.int64())])

        async def numbers() -> AsyncIterator[pa.RecordBatch]:
            for start in range(0, 20_000, 500):
                yield pa.RecordBatch.from_pylist([{"n": (start + each) ** 2} for each in range(500)], schema)

        large = await work.put("large", schema, numbers())
        assert (large.rows, len(large.parts) > 3) == (20_000, True)
        small = await work.put("small", schema, _of())
        assert (small.rows, len(small.parts)) == (0, 0)
        (row,) = await work.rows("SELECT count(*) AS n, max(n) AS most FROM large")
        assert row == {"n": 20_000, "most": 19_999**2}
        assert await work.rows("SELECT * FROM small") == []
        with pytest.raises(HoldfastError, match="more than 10 rows"):
            await work.rows("SELECT * FROM large", most=10)


@dataclass(frozen=True)
class Counts:
    """Gives the number of rows in each batch."""

    schema: pa.Schema = WORDS

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            yield pa.RecordBatch.from_pylist([{"word": "", "bytes": batch.num_rows}], WORDS)


async def test_a_kernel_gets_few_rows_at_a_time_and_more_memory_is_named() -> None:
    rows = 3 * BATCH_ROWS + 1
    words = pa.RecordBatch.from_pydict({"word": [str(n) for n in range(rows)], "bytes": [1] * rows}, WORDS)
    async with place() as here, working(here) as work:
        await work.put("words", WORDS, _of(words))
        await work.map("counts", "SELECT * FROM words", Counts(), Spread(("word",), worth=1))
        counts = [row["bytes"] for row in await work.rows("SELECT bytes FROM counts")]
        assert (max(counts), sum(counts)) == (BATCH_ROWS, rows)
        with pytest.raises(HoldfastError) as caught:
            await work.rows("SELECT sum(length(word)) FROM (SELECT list(repeat(word, 100000)) AS word FROM words)")
        assert "pipeline.memory" in str(caught.value.remedy)


async def test_what_dead_runs_have_left_goes_after_a_day() -> None:
    async with place() as here:
        await fill(here)
        async with working(here) as work:
            await work.scan("objects", ObjectsTable(("texts/",)))
        assert await staged.sweep(here.store, here.clock.now_ns + HOUR) == 0
        assert await staged.sweep(here.store, here.clock.now_ns + staged.DEAD_NS + HOUR) == 1
        assert [key async for key in here.store.keys(staged.STAGED)] == []


async def test_a_listing_is_divided_between_folders_and_nothing_is_listed_twice() -> None:
    async with place() as here:
        keys = sorted(f"many/{number:03d}/{each}" for number in range(40) for each in range(2))
        for key in keys:
            await here.store.put(key, b"")
        for most in (1, 3, 8, 1000):
            spans = await divided(here.store, Span("many/"), most)
            assert len(spans) <= most + 1
            assert all(sum(span.holds(key) for span in spans) == 1 for key in keys)
        assert await divided(here.store, Span("nothing/"), MOST_CUTS) == []


def test_tasks_follow_the_work_and_are_no_more_than_can_get_rows() -> None:
    spread = Spread(("hour", "bucket"), 50_000, work="records")
    assert [spread.tasks(work, 1_000) for work in (0, 50_000, 50_001, 10_000_000)] == [1, 1, 2, 200]
    assert spread.tasks(10_000_000, 8) == 8
    assert spread.tasks(0, 0) == 0


async def test_a_kernel_without_rows_is_not_run_and_stages_nothing() -> None:
    async with place() as here:
        async with working(here) as work:
            await work.map("words", "SELECT 'texts/0/0' AS key WHERE 1 = 0", Words(), BY_KEY)
            assert await work.rows("SELECT word FROM words") == []
        assert [key async for key in here.store.keys(staged.STAGED)] == []
