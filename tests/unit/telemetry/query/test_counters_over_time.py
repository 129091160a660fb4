"""Counters over time: every step and scrape interval, boots that follow each other, and two senders under one id."""

import math
from typing import Any

from holdfast.telemetry.records import Counter, Gauge
from tests.unit.pipeline.field import HOUR, SECOND, START
from tests.unit.telemetry.query.desk import ask, before_and_after, platform, values

STEPS = (7, 40, 60, 90, 420, 3600)
SCRAPES = (1, 15, 60, 600)


async def test_a_steady_rate_is_steady_for_every_step_and_scrape_interval() -> None:
    async with platform() as (hf, field):
        for scrape in SCRAPES:
            times = range(-3600, 2 * 3600, scrape)
            records = {n: Counter(f"every_{scrape}", 5 * at, START + at * SECOND) for n, at in enumerate(times)}
            await field.accept("a", str(scrape), records)
        async for _ in before_and_after(hf):
            for step in STEPS:
                scrape = SCRAPES[step % len(SCRAPES)]
                since = START // (step * SECOND) * step * SECOND
                found = await values(hf, f"every_{scrape}", since=since, step=step * SECOND, aggregate="rate")
                assert len(found) == math.ceil((START + HOUR - since) / (step * SECOND)), (step, scrape)
                assert all(math.isclose(each, 5.0) for each in found), (step, scrape)


async def test_a_step_that_has_not_ended_is_divided_by_the_time_it_covers() -> None:
    async with platform() as (hf, field):
        now = hf.ambient.clock.wall_ns()
        begin = now // HOUR * HOUR
        samples = (begin - 600 * SECOND, begin, begin + (now - begin) // 4)
        records = {n: Counter("c", round(3 * (at - samples[0]) / SECOND), at) for n, at in enumerate(samples)}
        await field.accept("a", "0", records)
        found = await ask(hf, "c", since=begin - 3 * HOUR, until=None, aggregate="rate")
        [series] = found.series
        assert series.times_ns == [begin - HOUR, begin]
        assert math.isclose(series.values[0], 600 * 3 / 3600)
        assert math.isclose(series.values[1], 3.0, rel_tol=0.01)
        assert found.document()["unfinished_ns"] == begin


async def test_two_senders_under_one_id_are_added_up_and_never_reset_each_other() -> None:
    """One counts requests from 0, the other from a million; both grow by one a minute."""
    async with platform() as (hf, field):
        for boot, base, late in (("one", 0, 0), ("two", 1_000_000, 5)):
            times = {n: START + (n * 60 + 7 * late) * SECOND for n in range(late, 60)}
            records: dict[int, Any] = {n: Counter("requests", base + n, at) for n, at in times.items()}
            records |= {1000 + n: Gauge("load", float(base), at) for n, at in times.items()}
            await field.accept("a", boot, records)
        async for _ in before_and_after(hf):
            for step in ("1h", "7s", "10m"):
                grown = await values(hf, "requests", step=step, until=START + 2 * HOUR, aggregate="increase")
                assert math.isclose(sum(grown), 59 + 54), step
            found = await ask(hf, "requests", aggregate="rate")
            [warning] = found.document()["read"]["warnings"]
            assert "several senders use one agent id at the same time: a." in warning
            assert [each.labels for each in found.series] == [{"agent": "a"}]
            assert await values(hf, "load") == [1_000_000.0]
            assert await values(hf, "load", step="1m", aggregate="last") == [0.0] * 5 + [1_000_000.0] * 55


async def test_boots_that_follow_each_other_are_one_series() -> None:
    async with platform() as (hf, field):
        for boot in range(3):
            begin = START + boot * 1000 * SECOND
            counters = {n: Counter("c", n + 1, begin + n * 10 * SECOND) for n in range(90)}
            gauges = {100 + n: Gauge("g", float(boot), begin + n * 10 * SECOND) for n in range(90)}
            await field.accept("a", f"boot-{9 - boot}", counters | gauges)
        async for _ in before_and_after(hf):
            found = await ask(hf, "c", aggregate="increase")
            assert [each.values for each in found.series] == [[3 * 89.0 + 2]]
            assert found.read.warnings == []
            assert await values(hf, "g") == [1.0]
            assert await values(hf, "g", aggregate="count") == [270.0]
