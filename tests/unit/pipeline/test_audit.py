"""An audit finds each planted fault, names it, and finds nothing else; in a healthy store it finds nothing."""

import asyncio
from dataclasses import replace

import pytest

from holdfast import pipeline
from holdfast.objects.memory import Shelf
from holdfast.pipeline.gc.options import DAY_NS as DAY
from holdfast.pipeline.gc.options import GcOptions
from tests.unit.pipeline import planted, planted_hours, planted_others
from tests.unit.pipeline.audit_desk import MINUTE, place, remarks, wrong
from tests.unit.pipeline.field import HOUR
from tests.unit.pipeline.healthy import build, collect, collecting, frame, reopened
from tests.unit.pipeline.planted import FAULTS, REMARKS, Fault

PLANTED = (planted, planted_hours, planted_others)
"""Modules that enter faults."""
AS_IT_MAY_BE = {"ontology_index_lag", "ontology_index_of_no_type", "ontology_orphan_snapshot"}


@pytest.fixture(scope="module")
def healthy() -> tuple[Shelf, int]:
    return asyncio.run(build())


async def test_nothing_is_wrong_with_what_the_real_parts_leave(healthy: tuple[Shelf, int]) -> None:
    async with reopened(*healthy) as here:
        record = await here.audit(deep=True)
        assert wrong(record) == set()
        assert {rule for rule, _ in remarks(record)} <= AS_IT_MAY_BE
        assert record.good
        assert record.checked["accepted"] == 11
        assert record.checked["conflicts"] == 2
    async with place() as nothing:
        record = await nothing.audit()
        assert (record.good, record.findings, record.checked) == (True, (), {"runs at work": 1})  # its own


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
async def test_a_planted_fault_is_found_and_nothing_else(healthy: tuple[Shelf, int], fault: Fault) -> None:
    async with reopened(*healthy) as here:
        expected = await fault.plant(here.store)
        here.clock.pass_by(HOUR)
        record = await here.audit(deep=fault.deep)
        assert wrong(record) == expected


@pytest.mark.parametrize("garbage", REMARKS, ids=[each.name for each in REMARKS])
async def test_garbage_is_reported_and_is_not_an_error(healthy: tuple[Shelf, int], garbage: Fault) -> None:
    async with reopened(*healthy) as here:
        expected = await garbage.plant(here.store)
        here.clock.pass_by(HOUR)
        record = await here.audit()
        assert (wrong(record), record.good) == (set(), True)
        assert {each for each in remarks(record) if each[0] not in AS_IT_MAY_BE} == expected


async def test_what_was_collected_and_let_go_is_not_missed(healthy: tuple[Shelf, int]) -> None:
    """An audit is the proof that garbage collection asks for; afterwards everything is still in its place."""
    async with reopened(*healthy) as here:
        here.clock.pass_by(2 * DAY)
        async with collecting(here) as collector:  # in hours of their own, where no numbers are shared
            for number in range(2):
                at_ns = here.clock.now_ns - 20 * MINUTE
                await collect(here, collector, frame("web-3", number * 10, 6, at_ns, number))
        await here.derive()
        here.clock.pass_by(60 * DAY)
        # Hours are closed after a full scan.
        [*_, scanned] = await pipeline.run(here.store, ["reconcile"], request={"full": True}, options=here.options)
        assert scanned.status == "success", scanned.error
        assert (await here.audit()).good
        days = 10 * DAY
        windows = {"10s": days, "1m": days}
        own = GcOptions(raw_batches_ns=days, logs_ns=days, runs_ns=days, events_ns=days, rollups_ns=windows)
        options = replace(here.options, gc=own)
        (ran,) = await pipeline.run(here.store, ["gc"], options=options, request={"apply": True})
        assert ran.status == "success", ran.error
        removed = {kind: each["removed"] for kind, each in ran.summary["kinds"].items()}
        assert all(removed[kind] for kind in ("derived", "expire-batches", "expire-events", "expire-runs"))
        here.clock.pass_by(HOUR)
        for deep in (False, True):
            record = await here.audit(deep=deep)
            assert wrong(record) == set()
            assert record.checked["expired"] > 0
