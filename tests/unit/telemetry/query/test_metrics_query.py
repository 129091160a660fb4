"""Answers are the same numbers whatever has been derived, and only objects that can matter are read. Random courses are
those of ``tests/properties/test_metrics_answers.py``."""

import asyncio
import math
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.errors import Corrupt, Invalid, NotFound
from holdfast.telemetry.batches import BatchCache, memory_of
from holdfast.telemetry.query.answer import Answer
from holdfast.telemetry.query.question import moment_ns, span_ns
from holdfast.telemetry.records import Counter, Gauge, Histogram, Log
from holdfast.telemetry.rollup import layout
from tests.unit.pipeline.field import HOUR, SECOND, START
from tests.unit.telemetry.query.desk import SPAN, ask, before_and_after, platform, values
from tests.unit.telemetry.query.plain_answers import agree, answers
from tests.unit.telemetry.rollup.rolled import batch

MINUTE = 60 * SECOND
UNTIL = START + 3 * HOUR


async def test_quantiles_are_within_one_percent() -> None:
    async with platform() as (hf, field):
        records: dict[int, Any] = {n: Gauge("g", float(n * n % 997), START + n * SECOND) for n in range(400)}
        records |= {1000 + n: Histogram("h", (1.0, 2.0, 4.0), (1, 2, 0, 1), 5.0, START + n * SECOND) for n in range(9)}
        await field.accept("a", "0", records)
        async for _ in before_and_after(hf):
            for q in (0.0, 0.1, 0.5, 0.99, 1.0):
                found = await ask(hf, "g", step=5 * MINUTE, aggregate="quantile", q=q)
                expected = answers(field.batches, "g", START, START + HOUR, 5 * MINUTE, "quantile", None, q)
                agree(found, expected, rel_tol=0.01)
            assert await values(hf, "h", aggregate="quantile", q=0.5) == [1.5]


async def test_only_chunks_that_can_match_are_fetched() -> None:
    async with platform() as (hf, field):
        for number in range(4):
            for hour in range(3):
                at = START + hour * HOUR
                records = {hour: Gauge("load", 1.0, at), 100 + hour: Counter("requests", 2, at, {"x": str(number)})}
                await field.accept(f"agent-{number}", "0", records)
        await pipeline.run(hf.store, options=pipeline.Options(records_per_unit=2))

        async def read(metric: str, **asked: Any) -> tuple[int, int]:
            found = await ask(hf, metric, **{"until": UNTIL, "step": MINUTE, **asked})
            assert (found.read.batches, found.read.hours) == (0, (found.question.until_ns - START) // HOUR)
            return len(found.series), found.read.chunks

        series, chunks = await read("load", until=START + HOUR)
        assert series == 4
        assert await read("load") == (4, 3 * chunks)
        assert await read("load", agent="agent-2") == (1, 3)
        assert await read("requests", where=["x=~2|7"]) == (1, 3)
        assert await read("requests", where=["x=7"]) == (0, 0)
        series, some = await read("load", where=["agent=~.*-[12]"])
        assert series == 2
        assert 3 <= some < 3 * chunks


async def test_days_are_answered_from_the_chunks_of_days() -> None:
    day = START // (24 * HOUR) * 24 * HOUR
    async with platform() as (hf, field):
        await field.accept("a", "0", {n: Counter("c", n * 7 % 90, day + n * 3 * HOUR // 2) for n in range(32)})

        async def asked(aggregate: str) -> Answer:
            found = await ask(hf, "c", since=day, until=day + 48 * HOUR, step="1d", aggregate=aggregate)
            agree(found, answers(field.batches, "c", day, day + 48 * HOUR, 24 * HOUR, aggregate))
            return found

        await asked("sum")
        await pipeline.run(hf.store)
        requests = hf.store.usage.requests()
        read = (await asked("sum")).read
        assert hf.store.usage.requests() - requests == 2 + 3 + 2 + 2
        assert (read.batches, read.hours, read.chunks) == (0, 2, 2)
        assert (await asked("increase")).read.chunks == 2
        # A late sample: its day is answered from its hours, and the others as before.
        await field.accept("a", "0", {100: Counter("c", 5, day + 30 * HOUR + 1)})
        assert (await asked("sum")).read.batches == 2


@pytest.mark.parametrize("batches", [1, 30])
async def test_requests_of_a_query_do_not_grow_with_batches(batches: int) -> None:
    """The checkpoint and its ids; three LISTs, of references, manifests and listings; a generation and a chunk."""
    async with platform() as (hf, field):
        for number in range(batches):
            await field.accept("a", "0", {number: Gauge("load", 1.0, START + number * SECOND)})
        await pipeline.run(hf.store)
        before = hf.store.usage.requests()
        await ask(hf, "load", step=MINUTE)
        assert hf.store.usage.requests() - before == 7


async def test_conditions_choose_series_and_labels_group_them() -> None:
    asked: list[tuple[dict[str, Any], list[float]]] = [
        ({}, [0.0, 1.0, 2.0, 9.0]),
        ({"where": ["cpu=1"]}, [1.0]),
        ({"where": {"cpu": "1"}}, [1.0]),
        ({"where": ["cpu!=1"]}, [0.0, 2.0, 9.0]),
        ({"where": ["cpu=~[01]"]}, [0.0, 1.0]),
        ({"where": ["cpu!~[01]", "cpu!="]}, [2.0]),
        ({"where": ["agent=~web-.*"]}, [0.0, 1.0, 2.0]),
        ({"agent": "db-1"}, [9.0]),
        ({"where": ["cpu=7"]}, []),
        ({"where": ["cpu!~.*"]}, []),
        ({"by": "agent", "aggregate": "sum"}, [3.0, 9.0]),
        ({"by": [], "aggregate": "sum"}, [12.0]),
    ]
    async with platform() as (hf, field):
        await field.accept("web-1", "0", {n: Gauge("g", float(n), START, {"cpu": str(n)}) for n in range(3)})
        await field.accept("db-1", "0", {0: Gauge("g", 9.0, START, {"disk": "sda"})})
        async for _ in before_and_after(hf):
            for each, expected in asked:
                assert sorted(await values(hf, "g", **each)) == expected, each
            assert (await ask(hf, "g", where=["cqu=0"], by=["disk", "dusk"])).read.warnings == [
                "no series of g has the label cqu, dusk; its labels are agent, cpu, disk"
            ]


async def test_a_label_called_agent_is_shown_apart_from_the_sender() -> None:
    async with platform() as (hf, field):
        gauges = {n: Gauge("g", float(n), START, {"agent": name}) for n, name in enumerate(("x", "y"))}
        await field.accept(
            "web-1", "0", {**gauges, 2: Gauge("g", 2.0, START), 3: Log("hello", START, 9, {"agent": "x"})}
        )

        async def series(**asked: Any) -> list[tuple[dict[str, str], list[float]]]:
            found = await ask(hf, "g", aggregate="sum", **asked)
            return sorted(((each.labels, each.values) for each in found.series), key=lambda each: each[1])

        x, y, sender = {"agent": "web-1", "exported_agent": "x"}, {"agent": "web-1", "exported_agent": "y"}, "web-1"
        async for _ in before_and_after(hf):
            assert await series() == [(x, [0.0]), (y, [1.0]), ({"agent": sender}, [2.0])]
            assert await series(where=["exported_agent=y"]) == [(y, [1.0])]
            assert await series(where=["exported_agent=~x|y"], by="agent") == [({"agent": sender}, [1.0])]
            grouped = [({"exported_agent": each}, [value]) for each, value in (("x", 0.0), ("y", 1.0), ("", 2.0))]
            assert await series(by="exported_agent") == grouped
            labels = (await hf.metrics().labels("g", **SPAN)).rows
            expected = [("agent", "web-1", 3), ("exported_agent", "x", 1), ("exported_agent", "y", 1)]
            assert [tuple(row.values()) for row in labels] == expected
            for where, count in (("exported_agent=x", 1), ("exported_agent=y", 0), ("agent=web-1", 1)):
                rows = (await hf.logs().search("hello", **SPAN, where=[where])).rows
                assert [row["labels"] for row in rows] == [{"exported_agent": "x"}] * count


async def test_a_metric_without_samples_is_not_found_before_and_after_deriving() -> None:
    missing: list[tuple[dict[str, Any], str]] = [
        ({"agent": "web-2"}, "agent=web-2"),
        ({"agent": "web-9", "aggregate": "rate"}, "agent=web-9"),
        ({"where": ["agent=web-2"]}, "agent=web-2"),
        ({"where": ["cpu=7"], "agent": "web-1"}, "cpu=7, agent=web-1"),
    ]
    async with platform() as (hf, field):
        await field.accept("web-1", "0", {0: Gauge("load1", 1.0, START), 1: Counter("c", 1, START)})
        await field.accept("web-2", "0", {0: Gauge("h", 1.0, START)})
        async for _ in before_and_after(hf):
            for asked, conditions in missing:
                with pytest.raises(NotFound) as caught:
                    await ask(hf, "load1", **asked)
                assert str(caught.value) == f"no metric 'load1' with {conditions} has samples in this range"
            for question in (ask(hf, "laod1"), hf.metrics().labels("laod1", **SPAN)):
                with pytest.raises(NotFound, match="laod1") as misspelt:
                    await question
                assert misspelt.value.remedy == "did you mean load1?"
            with pytest.raises(Invalid, match="is a gauge"):
                await ask(hf, "load1", agent="web-1", aggregate="rate")
            assert (await ask(hf, "load1", where=["cpu=7"])).series == []


WRONG: list[dict[str, Any]] = [
    {"step": "1x"},
    {"step": 0},
    {"step": 1_500_000_000},
    {"step": "1s", "until": START + 100 * HOUR},
    {"since": "yesterday"},
    {"until": START},
    {"until": 2**63},
    {"aggregate": "median"},
    {"aggregate": "quantile"},
    {"aggregate": "quantile", "q": 1.5},
    {"q": 0.5},
    {"where": ["cpu"]},
    {"where": ["=x"]},
    {"where": ["cpu=~("]},
    {"where": ["cpu=~a)|(b"]},
    {"by": 7},
    {"by": ["cpu", 7]},
    {"metric": ""},
]


async def test_questions_that_make_no_sense_are_refused() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", 1.0, START)})
        for asked in WRONG:
            with pytest.raises(Invalid):
                await ask(hf, **{"metric": "g", **asked})


def test_times_may_be_given_in_several_ways() -> None:
    assert moment_ns("1970-01-01T00:00:01Z", 0) == SECOND
    assert (moment_ns("2h", 5 * HOUR), moment_ns(7, 0), span_ns("5m")) == (3 * HOUR, 7, 5 * MINUTE)


async def test_a_chunk_that_cannot_be_read_is_named() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", 1.0, START)})
        await pipeline.run(hf.store)
        [key] = [key async for key in hf.store.keys(layout.rollup_folder(HOUR, START // HOUR))]
        whole = (await hf.store.get(key)).body
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for spoilt in (b"no Parquet", bytes(flipped)):
            await hf.store.put(key, spoilt)
            with pytest.raises(Corrupt, match=f"{key}: its bytes are not those"):
                await ask(hf, "g")
        await hf.store.delete(key)
        with pytest.raises(Corrupt, match="missing"):
            await ask(hf, "g")


async def test_a_missing_listing_is_an_error_until_it_is_made_again() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", 1.0, START), 1: Log("hello", START)})
        await pipeline.run(hf.store)
        [key] = [key async for key in hf.store.keys(layout.BATCHES_BY_HOUR)]
        await hf.store.delete(key)
        assert await values(hf, "g") == [1.0]  # chunks are enough
        for question in (ask(hf, "g", step="7s"), hf.logs().search("hello", **SPAN)):
            with pytest.raises(Corrupt, match=key):
                await question
        await pipeline.run(hf.store, request={"full": True})
        assert await values(hf, "g", step="7s") == [1.0]
        assert len((await hf.logs().search("hello", **SPAN)).rows) == 1


async def test_a_batch_that_cannot_be_read_is_named_and_the_others_are_answered() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", 1.0, START), 1: Log("hello", START)})
        bad = await field.accept("b", "0", {0: Gauge("g", 1.0, START), 1: Log("hello", START)})
        await hf.store.put(bad.raw_blob_key, b"nothing")
        for _ in range(2):  # also from the cache
            found = await ask(hf, "g")
            assert [each.labels for each in found.series] == [{"agent": "a"}]
            assert found.read.unreadable == (bad.identity.manifest_id,)
        logs = await hf.logs().search("hello", **SPAN)
        assert ([row["agent"] for row in logs.rows], logs.read.unreadable) == (["a"], (bad.identity.manifest_id,))
        with pytest.raises(NotFound, match="1 batches could not be read"):
            await ask(hf, "g", agent="b")
        gone = await field.accept("c", "0", {0: Gauge("g", 1.0, START)})
        await pipeline.run(hf.store, ["reconcile"])
        await hf.store.delete(gone.raw_blob_key)
        await pipeline.run(hf.store)
        found = await ask(hf, "g")
        assert (len(found.series), found.read.chunks) == (1, 1)
        assert gone.identity.manifest_id in found.read.unreadable  # its unit says so


async def test_metrics_and_labels_are_listed() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {n: Gauge("load", 1.0, START + n * SECOND, {"cpu": str(n % 2)}) for n in range(4)})
        await field.accept("b", "0", {0: Counter("requests", 1, START + HOUR), 1: Gauge("load", 2.0, START + HOUR)})
        metrics, span = hf.metrics(), {**SPAN, "until": UNTIL}
        async for derived in before_and_after(hf):
            found = await metrics.list(**span)
            assert [tuple(row.values()) for row in found.rows] == [
                ("load", "gauge", 3, 2, 5, START, START + HOUR),
                ("requests", "counter", 1, 1, 1, START + HOUR, START + HOUR),
            ]
            assert (found.read.batches == 0) == derived
            assert [row["metric"] for row in (await metrics.list("re*", **span)).rows] == ["requests"]
            assert [row["agents"] for row in (await metrics.list(agent="b", **span)).rows] == [1, 1]
            assert (await metrics.list(since=START - HOUR, until=START)).rows == []
            labels = [tuple(row.values()) for row in (await metrics.labels("load", **span)).rows]
            assert labels == [("agent", "a", 2), ("agent", "b", 1), ("cpu", "0", 1), ("cpu", "1", 1)]


async def test_no_pattern_of_names_blocks_other_questions() -> None:
    """A matcher of globs that tries every place for every star did not end for these."""
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("a" * 200, 1.0, START)})
        slow = [hf.metrics().list("*a" * 100 + "*b", **SPAN) for _ in range(4)]
        found = await asyncio.gather(*slow, hf.metrics().list("a*a", **SPAN))
        assert [len(each.rows) for each in found] == [0, 0, 0, 0, 1]
        with pytest.raises(Invalid, match="1,000 are allowed"):
            await hf.metrics().list("*" * 2_000, **SPAN)
        with pytest.raises(NotFound):
            await ask(hf, "b" * 1_000_000)


def test_the_cache_of_batches_is_bounded() -> None:
    one = batch("a", "0", {n: Gauge("g", float(n), n) for n in range(100)})
    cache = BatchCache(max_bytes=3 * memory_of(one))
    for number in range(5):
        cache.put(str(number), one)
    assert [cache.get(str(number)) is not None for number in range(5)] == [False, False, True, True, True]


async def test_an_answer_is_rows_a_table_and_a_document() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", math.inf, START)})
        found = await ask(hf, "g", aggregate="last")
        assert found.rows() == [{"time_ns": START, "value": math.inf, "kind": "gauge", "labels": {"agent": "a"}}]
        assert found.table().column("time").cast("int64").to_pylist() == [START]
        assert found.document()["series"][0]["points"] == [[START, "+Inf"]]
        assert found.document()["step"] == "1h"
