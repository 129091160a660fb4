"""Answers are the numbers of plain Python, whatever has been derived; only what can matter is read."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.errors import Corrupt, Invalid, NotFound
from holdfast.platform.open import Holdfast, open_platform
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.live.state import size_of
from holdfast.telemetry.query.found import Answer
from holdfast.telemetry.query.fresh import Memory
from holdfast.telemetry.query.question import moment_ns, span_ns
from holdfast.telemetry.records import Counter, Gauge, Histogram, Log
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.layout import Windows
from tests.unit.pipeline.field import HOUR, SECOND, START, Field
from tests.unit.telemetry.query.plain_answers import agree, answers
from tests.unit.telemetry.rollup.rolled import batch

MINUTE = 60 * SECOND
UNTIL = START + 3 * HOUR
ASKED = {
    "requests": ("avg", "sum", "min", "max", "count", "last", "rate", "increase"),
    "load": ("count", "last"),
    "latency": ("avg", "rate"),
}


class Now(Field):
    """Batches that are accepted now, whatever times their records have."""

    async def accept(self, agent: str, boot: str, records: dict[int, Any], **how: Any) -> AcceptedManifest:
        return await super().accept(agent, boot, records, at_ns=time.time_ns(), **how)


@asynccontextmanager
async def platform() -> AsyncIterator[tuple[Holdfast, Field]]:
    async with open_platform("memory:") as hf:
        yield hf, Now(hf.store)


async def compare(hf: Holdfast, field: Field, step: int, by: list[str] | None) -> int:
    """Every aggregate of every metric, with what plain Python gives; how many values there were."""
    values = 0
    for metric, aggregates in ASKED.items():
        for aggregate in aggregates:
            found = await hf.metrics().query(metric, since=START, until=UNTIL, step=step, aggregate=aggregate, by=by)
            agree(found, answers(field.batches, metric, START, UNTIL, step, aggregate, by))
            values += sum(len(each.values) for each in found.series)
    return values


async def test_answers_are_the_same_with_other_windows_and_with_batches_that_are_listed_and_not_rolled_up() -> None:
    """Courses of all other kinds are those of ``tests/properties/test_metrics_answers.py``."""
    async with platform() as (hf, field):
        await field.season(3)
        await pipeline.run(hf.store, options=pipeline.Options(windows=Windows.of(["30s", "30m"])))
        assert await compare(hf, field, 5 * MINUTE, None) > 50
        await field.season(6, agents=2, batches=2, gap=3)  # late, and over numbers that are known
        await pipeline.run(hf.store, ["reconcile"])
        assert await compare(hf, field, HOUR, ["cpu"]) > 10


async def test_quantiles_are_within_one_percent() -> None:
    async with platform() as (hf, field):
        records: dict[int, Any] = {n: Gauge("g", float(n * n % 997), START + n * SECOND) for n in range(400)}
        records |= {1000 + n: Histogram("h", (1.0, 2.0, 4.0), (1, 2, 0, 1), 5.0, START + n * SECOND) for n in range(9)}
        await field.accept("a", "0", records)
        for _ in range(2):
            for q in (0.0, 0.1, 0.5, 0.99, 1.0):
                found = await hf.metrics().query(
                    "g", since=START, until=START + HOUR, step=5 * MINUTE, aggregate="quantile", q=q
                )
                expected = answers(field.batches, "g", START, START + HOUR, 5 * MINUTE, "quantile", None, q)
                agree(found, expected, rel_tol=0.01)
            buckets = await hf.metrics().query("h", since=START, until=UNTIL, step=HOUR, aggregate="quantile", q=0.5)
            assert buckets.series[0].values == [1.5]
            await pipeline.run(hf.store)


async def test_only_what_can_match_is_fetched() -> None:
    async with platform() as (hf, field):
        for number in range(4):
            for hour in range(3):
                at = START + hour * HOUR
                records = {hour: Gauge("load", 1.0, at), 100 + hour: Counter("requests", 2, at, {"x": str(number)})}
                await field.accept(f"agent-{number}", "0", records)
        options = pipeline.Options(records_per_unit=2)
        await pipeline.run(hf.store, options=options)
        one = await hf.metrics().query("load", since=START, until=START + HOUR, step=MINUTE)
        three = await hf.metrics().query("load", since=START, until=UNTIL, step=MINUTE)
        named = await hf.metrics().query("load", since=START, until=UNTIL, step=MINUTE, agent="agent-2")
        assert [len(each.series) for each in (one, three, named)] == [4, 4, 1]
        assert one.read.batches == three.read.batches == named.read.batches == 0
        assert three.read.chunks == 3 * one.read.chunks > 3
        assert named.read.chunks == 3
        assert named.read.hours == three.read.hours == 3
        by_label = await hf.metrics().query("requests", since=START, until=UNTIL, step=MINUTE, where=["x=~2|7"])
        by_agent = await hf.metrics().query("load", since=START, until=UNTIL, step=MINUTE, where=["agent=~.*-[12]"])
        neither = await hf.metrics().query("requests", since=START, until=UNTIL, step=MINUTE, where=["x=7"])
        assert [len(each.series) for each in (by_label, by_agent, neither)] == [1, 2, 0]
        assert by_label.read.chunks == 3
        assert 3 <= by_agent.read.chunks < three.read.chunks
        assert neither.read.chunks == 0


async def test_days_are_answered_from_the_chunks_of_days() -> None:
    day = START // (24 * HOUR) * 24 * HOUR
    async with platform() as (hf, field):
        counters = {n: Counter("c", n * 7 % 90, day + n * 3 * HOUR // 2) for n in range(32)}
        await field.accept("a", "0", counters)
        span: dict[str, Any] = {"since": day, "until": day + 48 * HOUR, "step": "1d"}

        async def asked(aggregate: str) -> Answer:
            found = await hf.metrics().query("c", **span, aggregate=aggregate)
            agree(found, answers(field.batches, "c", day, day + 48 * HOUR, 24 * HOUR, aggregate))
            return found

        await asked("sum")
        await pipeline.run(hf.store)
        for aggregate in ("sum", "increase"):
            read = (await asked(aggregate)).read
            assert (read.batches, read.hours, read.chunks) == (0, 2, 2)
        requests = hf.store.usage.requests()
        await hf.metrics().query("c", **span)
        assert hf.store.usage.requests() - requests == 2 + 3 + 2 + 2
        # A late sample: its day is answered from its hours, and the others as before.
        await field.accept("a", "0", {100: Counter("c", 5, day + 30 * HOUR + 1)})
        assert (await asked("sum")).read.batches == 2


async def test_requests_of_a_query_do_not_grow_with_batches() -> None:
    """A checkpoint and what it names, listings of references, manifests and batches, and per hour a
    generation and the chunk."""
    counted = []
    for batches in (1, 30):
        async with platform() as (hf, field):
            for number in range(batches):
                await field.accept("a", "0", {number: Gauge("load", 1.0, START + number * SECOND)})
            await pipeline.run(hf.store)
            before = hf.store.usage.requests()
            await hf.metrics().query("load", since=START, until=START + HOUR, step=MINUTE)
            counted.append(hf.store.usage.requests() - before)
    assert counted == [7, 7]


async def test_matchers_choose_series() -> None:
    async with platform() as (hf, field):
        await field.accept("web-1", "0", {n: Gauge("g", float(n), START, {"cpu": str(n)}) for n in range(3)})
        await field.accept("db-1", "0", {0: Gauge("g", 9.0, START, {"disk": "sda"})})

        async def values(**asked: Any) -> list[float]:
            found = await hf.metrics().query("g", since=START, until=START + HOUR, step=HOUR, **asked)
            return sorted(value for each in found.series for value in each.values)

        for _ in range(2):
            assert await values() == [0.0, 1.0, 2.0, 9.0]
            assert await values(where=["cpu=1"]) == [1.0]
            assert await values(where={"cpu": "1"}) == [1.0]
            assert await values(where=["cpu!=1"]) == [0.0, 2.0, 9.0]
            assert await values(where=["cpu=~[01]"]) == [0.0, 1.0]
            assert await values(where=["cpu!~[01]", "cpu!="]) == [2.0]
            assert await values(where=["agent=~web-.*"]) == [0.0, 1.0, 2.0]
            assert await values(agent="db-1") == [9.0]
            assert await values(where=["cpu=7"]) == []
            assert await values(where=["cpu!~.*"]) == []
            assert await values(by=["agent"], aggregate="sum") == [3.0, 9.0]
            assert await values(by="agent", aggregate="sum") == [3.0, 9.0]
            assert await values(by=[], aggregate="sum") == [12.0]
            await pipeline.run(hf.store)


async def test_a_label_called_agent_is_shown_apart_from_the_sender() -> None:
    async with platform() as (hf, field):
        gauges = {n: Gauge("g", float(n), START, {"agent": name}) for n, name in enumerate(("x", "y"))}
        await field.accept(
            "web-1", "0", {**gauges, 2: Gauge("g", 2.0, START), 3: Log("hello", START, 9, {"agent": "x"})}
        )
        span: dict[str, Any] = {"since": START, "until": START + HOUR}

        async def series(**asked: Any) -> list[tuple[dict[str, str], list[float]]]:
            found = await hf.metrics().query("g", **span, step=HOUR, aggregate="sum", **asked)
            return sorted(((each.labels, each.values) for each in found.series), key=lambda each: each[1])

        x, y, sender = {"agent": "web-1", "exported_agent": "x"}, {"agent": "web-1", "exported_agent": "y"}, "web-1"
        for _ in range(2):
            assert await series() == [(x, [0.0]), (y, [1.0]), ({"agent": sender}, [2.0])]
            assert await series(where=["exported_agent=y"]) == [(y, [1.0])]
            assert await series(where=["exported_agent=~x|y"], by="agent") == [({"agent": sender}, [1.0])]
            grouped = [({"exported_agent": each}, [value]) for each, value in (("x", 0.0), ("y", 1.0), ("", 2.0))]
            assert await series(by="exported_agent") == grouped
            labels = (await hf.metrics().labels("g", **span)).rows
            assert [tuple(row.values()) for row in labels] == [
                ("agent", "web-1", 3),
                ("exported_agent", "x", 1),
                ("exported_agent", "y", 1),
            ]
            for where, count in (("exported_agent=x", 1), ("exported_agent=y", 0), ("agent=web-1", 1)):
                rows = (await hf.logs().search("hello", **span, where=[where])).rows
                assert [row["labels"] for row in rows] == [{"exported_agent": "x"}] * count
            await pipeline.run(hf.store)


async def test_an_agent_without_samples_is_not_found_before_and_after_deriving() -> None:
    async with platform() as (hf, field):
        await field.accept("web-1", "0", {0: Gauge("g", 1.0, START), 1: Counter("c", 1, START)})
        await field.accept("web-2", "0", {0: Gauge("h", 1.0, START)})
        span: dict[str, Any] = {"since": START, "until": START + HOUR, "step": HOUR}
        missing: list[tuple[dict[str, Any], str]] = [
            ({"agent": "web-2"}, "no metric 'g' with agent=web-2 has samples in this range"),
            ({"agent": "web-9"}, "no metric 'g' with agent=web-9 has samples in this range"),
            ({"where": ["agent=web-2"]}, "no metric 'g' with agent=web-2 has samples in this range"),
            ({"where": ["cpu=7"], "agent": "web-1"}, "no metric 'g' with cpu=7, agent=web-1 has samples in this range"),
            ({"agent": "web-2", "aggregate": "rate"}, "no metric 'g' with agent=web-2 has samples in this range"),
        ]
        for _ in range(2):
            for asked, message in missing:
                with pytest.raises(NotFound) as caught:
                    await hf.metrics().query("g", **span, **asked)
                assert str(caught.value) == message
            with pytest.raises(NotFound, match="no metric 'g' with agent=web-2 has"):
                await hf.metrics().labels("g", since=START, until=START + HOUR, agent="web-2")
            with pytest.raises(Invalid, match="is a gauge"):
                await hf.metrics().query("g", **span, agent="web-1", aggregate="rate")
            assert (await hf.metrics().query("c", **span, agent="web-1", aggregate="quantile", q=0.5)).series
            assert (await hf.metrics().query("g", **span, where=["cpu=7"])).series == []
            await pipeline.run(hf.store)


async def test_questions_that_make_no_sense_are_refused() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("node_load1", 1.0, START)})
        metrics = hf.metrics()
        span: dict[str, Any] = {"since": START, "until": START + HOUR}
        with pytest.raises(NotFound, match="node_laod1") as missing:
            await metrics.query("node_laod1", **span)
        assert missing.value.remedy == "did you mean node_load1?"
        wrong: list[dict[str, Any]] = [
            {"step": "1x"},
            {"step": 0},
            {"step": 1_500_000_000},
            {"step": "1s", "until": START + 100 * HOUR},
            {"since": "yesterday"},
            {"until": START},
            {"aggregate": "median"},
            {"aggregate": "quantile"},
            {"aggregate": "quantile", "q": 1.5},
            {"q": 0.5},
            {"where": ["cpu"]},
            {"where": ["=x"]},
            {"where": ["cpu=~("]},
            {"where": ["cpu=~a)|(b"]},
            {"aggregate": "rate"},
            {"by": 7},
            {"by": ["cpu", 7]},
        ]
        for asked in wrong:
            with pytest.raises(Invalid):
                await metrics.query("node_load1", **{**span, **asked})
        with pytest.raises(Invalid, match="name of the metric is missing"):
            await metrics.query("", **span)


async def test_a_chunk_that_cannot_be_read_is_named() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", 1.0, START)})
        await pipeline.run(hf.store)
        keys = [key async for key in hf.store.keys(layout.rollup_folder(HOUR, START // HOUR))]
        whole = (await hf.store.get(keys[0])).body
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for spoilt in (b"no Parquet", bytes(flipped)):
            await hf.store.put(keys[0], spoilt)
            with pytest.raises(Corrupt, match="bytes are not those") as caught:
                await hf.metrics().query("g", since=START, until=START + HOUR, step=HOUR, aggregate="last")
            assert str(caught.value).startswith(keys[0])
        await hf.store.delete(keys[0])
        with pytest.raises(Corrupt, match="missing"):
            await hf.metrics().query("g", since=START, until=START + HOUR, step=HOUR)


async def test_a_listing_that_is_gone_is_missed_and_made_anew() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", 1.0, START), 1: Log("hello", START)})
        await pipeline.run(hf.store)
        [key] = [key async for key in hf.store.keys(layout.BATCHES_BY_HOUR)]
        await hf.store.delete(key)
        span: dict[str, Any] = {"since": START, "until": START + HOUR}
        assert (await hf.metrics().query("g", **span, step="1h")).series[0].values == [1.0]  # chunks say all
        with pytest.raises(Corrupt, match=key):
            await hf.metrics().query("g", **span, step="7s")
        with pytest.raises(Corrupt, match=key):
            await hf.logs().search("hello", **span)
        await pipeline.run(hf.store, request={"full": True})
        assert (await hf.metrics().query("g", **span, step="7s")).series[0].values == [1.0]
        assert len((await hf.logs().search("hello", **span)).rows) == 1


async def test_a_frame_that_cannot_be_read_is_counted_and_the_rest_goes_on() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", 1.0, START), 1: Log("hello", START)})
        bad = await field.accept("b", "0", {0: Gauge("g", 1.0, START), 1: Log("hello", START)})
        await hf.store.put(bad.raw_blob_key, b"nothing")
        for _ in range(2):
            found = await hf.metrics().query("g", since=START, until=START + HOUR, step=HOUR)
            assert [each.labels for each in found.series] == [{"agent": "a"}]
            assert found.read.unreadable == (bad.identity.manifest_id,)
        logs = await hf.logs().search("hello", since=START, until=START + HOUR)
        assert [row["agent"] for row in logs.rows] == ["a"]
        assert logs.read.unreadable == (bad.identity.manifest_id,)
        with pytest.raises(NotFound, match="batches that cannot be are 1"):
            await hf.metrics().query("g", since=START, until=START + HOUR, step=HOUR, agent="b")
        gone = await field.accept("c", "0", {0: Gauge("g", 1.0, START)})
        await pipeline.run(hf.store, ["reconcile"])
        await hf.store.delete(gone.raw_blob_key)
        await pipeline.run(hf.store)
        found = await hf.metrics().query("g", since=START, until=START + HOUR, step=HOUR)
        assert (len(found.series), found.read.chunks) == (1, 1)
        assert gone.identity.manifest_id in found.read.unreadable  # its unit says so


async def test_metrics_and_labels_are_listed() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {n: Gauge("load", 1.0, START + n * SECOND, {"cpu": str(n % 2)}) for n in range(4)})
        await field.accept("b", "0", {0: Counter("requests", 1, START + HOUR), 1: Gauge("load", 2.0, START + HOUR)})
        metrics = hf.metrics()
        span: dict[str, Any] = {"since": START, "until": UNTIL}
        for _ in range(2):
            found = await metrics.list(**span)
            assert [tuple(row.values()) for row in found.rows] == [
                ("load", "gauge", 3, 2, 5, START, START + HOUR),
                ("requests", "counter", 1, 1, 1, START + HOUR, START + HOUR),
            ]
            assert [row["metric"] for row in (await metrics.list("re*", **span)).rows] == ["requests"]
            assert [row["agents"] for row in (await metrics.list(agent="b", **span)).rows] == [1, 1]
            assert (await metrics.list(since=START - HOUR, until=START)).rows == []
            labels = await metrics.labels("load", **span)
            assert [tuple(row.values()) for row in labels.rows] == [
                ("agent", "a", 2),
                ("agent", "b", 1),
                ("cpu", "0", 1),
                ("cpu", "1", 1),
            ]
            with pytest.raises(NotFound, match="laod"):
                await metrics.labels("laod", **span)
            await pipeline.run(hf.store)
        assert (await metrics.list(**span)).read.batches == 0


async def test_no_pattern_of_names_stops_other_questions() -> None:
    """A matcher of globs that tries every place for every star did not end for these."""
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("a" * 200, 1.0, START)})
        span: dict[str, Any] = {"since": START, "until": UNTIL}
        slow = [hf.metrics().list("*a" * 100 + "*b", **span) for _ in range(4)]
        found = await asyncio.gather(*slow, hf.metrics().list("a*a", **span))
        assert [len(each.rows) for each in found] == [0, 0, 0, 0, 1]
        with pytest.raises(Invalid, match="1,000 are allowed"):
            await hf.metrics().list("*" * 2_000, **span)
        with pytest.raises(NotFound):
            await hf.metrics().query("b" * 1_000_000, **span)


def test_batches_are_remembered_within_a_bound() -> None:
    one = batch("a", "0", {n: Gauge("g", float(n), n) for n in range(100)})
    memory = Memory(most_bytes=3 * size_of(one))
    for number in range(5):
        memory.keep(str(number), one)
    assert [memory.get(str(number)) is not None for number in range(5)] == [False, False, True, True, True]


def test_times_may_be_given_in_several_ways() -> None:
    assert moment_ns("1970-01-01T00:00:01Z", 0) == SECOND
    assert (moment_ns("2h", 5 * HOUR), moment_ns(7, 0), span_ns("5m")) == (3 * HOUR, 7, 5 * MINUTE)
    with pytest.raises(Invalid, match="not a time"):
        moment_ns(2**63, 0)


async def test_steps_and_series_that_have_only_nan_are_left_out() -> None:
    async with platform() as (hf, field):
        values = {0: math.nan, 1: 1.0, 2: math.nan}
        records: dict[int, Any] = {n: Gauge("g", value, START + n * MINUTE) for n, value in values.items()}
        await field.accept(
            "a", "0", {**records, 3: Gauge("none", math.nan, START), 4: Histogram("h", (1.0,), (0, 0), 0.0, START)}
        )
        for _ in range(2):
            for aggregate in ("count", "sum", "last"):
                span: dict[str, Any] = {"since": START, "until": START + HOUR, "aggregate": aggregate}
                found = await hf.metrics().query("g", **span, step=MINUTE)
                assert [(each.times_ns, each.values) for each in found.series] == [([START + MINUTE], [1.0])]
                assert (await hf.metrics().query("none", **span)).series == []
            counted = await hf.metrics().query("h", since=START, until=START + HOUR, aggregate="count")
            assert counted.series[0].values == [0.0]
            await pipeline.run(hf.store)


async def test_an_answer_is_rows_a_table_and_a_document() -> None:
    async with platform() as (hf, field):
        await field.accept("a", "0", {0: Gauge("g", math.inf, START)})
        found = await hf.metrics().query("g", since=START, until=START + HOUR, step=HOUR, aggregate="last")
        assert found.rows() == [{"time_ns": START, "value": math.inf, "kind": "gauge", "labels": {"agent": "a"}}]
        assert found.table().column("time").cast("int64").to_pylist() == [START]
        assert found.document()["series"][0]["points"] == [[START, "+Inf"]]
        assert found.document()["step"] == "1h"
