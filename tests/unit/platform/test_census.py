"""The census: what sends telemetry, as entities and relations that come and go with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

import holdfast
from holdfast.base.errors import Conflict
from holdfast.ontology import meta
from holdfast.platform import census
from holdfast.platform.census import Agent, Census, Emits, Host, Hour, Metric, Runs, Sends, Series
from holdfast.platform.session import Session
from holdfast.telemetry.rollup.points import SeriesKey

NOON = 488_892


def series(name: str, agent: str, kind: str = "gauge", **labels: str) -> SeriesKey:
    return SeriesKey(name, agent, tuple(sorted(labels.items())), kind)


LOADS = [series("load", f"web-{number}") for number in (1, 2)]
DISKS = [series("disk", f"web-{number}", device=device) for number in (1, 2) for device in ("a", "b")]


@asynccontextmanager
async def session() -> AsyncIterator[Session]:
    async with holdfast.open("memory:") as hf, hf.ontology(*census.TYPES) as onto:
        yield onto


async def take(onto: Session, hour: int, keys: list[SeriesKey], generation: int = 1) -> int | None:
    made = await census.take(onto, await census.taken(onto), Hour(hour, {hour: generation}), keys)
    return None if made is None else made.commit_id


async def test_series_become_entities_and_relations() -> None:
    async with session() as onto:
        proxied = series("load", "web-1", host="printer-1")
        assert await take(onto, NOON, [*LOADS, *DISKS, proxied]) == 1
        assert [one.id for one in await onto.all(Agent)] == ["web-1", "web-2"]
        assert [one.name for one in await onto.all(Host)] == ["printer-1", "web-1", "web-2"]
        assert [(one.name, one.kinds) for one in await onto.all(Metric)] == [("disk", ["gauge"]), ("load", ["gauge"])]
        assert [(one.left_key, one.right_key) for one in await onto.all(Runs)] == [
            ("printer-1", "web-1"),
            ("web-1", "web-1"),
            ("web-2", "web-2"),
        ]
        emitted = {(one.left_key, one.right_key) for one in await onto.all(Emits)}
        assert emitted == {("printer-1", "load")} | {(f"web-{n}", name) for n in (1, 2) for name in ("load", "disk")}
        assert len(await onto.all(Sends)) == len(await onto.all(Series)) == 7
        (found,) = await onto.query(Series).where(Series.host == "printer-1").all()
        assert (found.metric, found.kind, found.agent, found.labels) == (
            "load",
            "gauge",
            "web-1",
            {"host": "printer-1"},
        )
        counted = await census.taken(onto)
        assert counted is not None
        assert counted.until == datetime(2025, 10, 9, 13, tzinfo=UTC)
        assert counted.generations == {"2025-10-09T12": 1}


async def test_who_stopped_emitting_is_one_question() -> None:
    async with session() as onto:
        before = await take(onto, NOON, [*LOADS, *DISKS])
        await take(onto, NOON + 1, [*LOADS, *DISKS[:-1]])  # one of two devices: the host still emits the metric
        head = await take(onto, NOON + 2, [*LOADS, *DISKS[:-2]])
        assert before is not None
        assert head is not None
        disks = onto.query(Emits).where(Emits.right_key == "disk")
        written = await disks.between(before + 1, head).all()
        assert [(one.left_key, meta(one).retracted) for one in written] == [("web-2", True)]
        assert await onto.query(Series).as_of(before).count() == 6
        assert await onto.query(Series).count() == 4
        back = await take(onto, NOON + 3, [*LOADS, *DISKS])
        assert back is not None
        assert await disks.count() == await disks.as_of(before).count()


async def test_an_hour_is_counted_once() -> None:
    async with session() as onto:
        assert await take(onto, NOON, LOADS) == 1
        assert await take(onto, NOON, LOADS) is None
        assert await take(onto, NOON - 1, []) is None  # a late driver's hour
        assert len(await onto.all(Host)) == 2
        assert await take(onto, NOON, [*LOADS, *DISKS], generation=2) == 2  # late data came in
        assert await onto.query(Series).count() == 6


async def test_an_hour_in_which_nothing_changed_costs_one_row() -> None:
    async with session() as onto:
        await take(onto, NOON, [*LOADS, *DISKS])
        made = await census.take(onto, await census.taken(onto), Hour(NOON + 1, {NOON + 1: 1}), [*LOADS, *DISKS])
        assert made is not None
        assert made.rows == 1


async def test_a_driver_that_was_paused_changes_nothing() -> None:
    async with session() as onto:
        await take(onto, NOON, LOADS)
        old = await census.taken(onto)
        await take(onto, NOON + 2, [*LOADS, *DISKS])
        with pytest.raises(Conflict):
            await census.take(onto, old, Hour(NOON + 1, {NOON + 1: 1}), LOADS)
        assert onto.pending == 0
        assert await onto.query(Series).count() == 6
        counted = await census.taken(onto)
        assert counted is not None
        assert counted.until == datetime(2025, 10, 9, 15, tzinfo=UTC)


async def test_metrics_of_two_kinds_and_an_empty_window() -> None:
    async with session() as onto:
        await take(onto, NOON, [series("load", "web-1"), series("load", "web-2", "counter")])
        (found,) = await onto.all(Metric)
        assert found.kinds == ["counter", "gauge"]
        await take(onto, NOON + 1, [series("load", "web-1")])
        (found,) = await onto.all(Metric)
        assert found.kinds == ["gauge"]
        await take(onto, NOON + 2, [])
        assert [len(await onto.all(each)) for each in census.TYPES] == [0, 0, 0, 0, 0, 0, 0, 1]
        assert await onto.query(Census).count() == 1


def test_series_with_other_words_have_other_ids() -> None:
    one, other = series("ab", "c"), series("a", "bc")
    assert census.series_id(one) != census.series_id(other)
    assert census.series_id(series("x", "y", a="bc")) != census.series_id(series("x", "y", ab="c"))
    assert census.series_id(one) == census.series_id(series("ab", "c"))
