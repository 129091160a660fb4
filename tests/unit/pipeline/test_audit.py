"""An audit finds each planted fault, names it, and finds nothing else; in a healthy store it finds nothing."""

import asyncio

import pytest

from holdfast.objects.memory import Shelf
from tests.unit.pipeline.audit_desk import place, told, wrong
from tests.unit.pipeline.field import HOUR
from tests.unit.pipeline.healthy import build, reopened
from tests.unit.pipeline.planted_others import FAULTS, Fault

AS_IT_MAY_BE = {"ontology_index_lag", "ontology_index_of_no_type", "ontology_orphan_snapshot"}


@pytest.fixture(scope="module")
def healthy() -> tuple[Shelf, int]:
    return asyncio.run(build())


@pytest.mark.parametrize("deep", [False, True])
async def test_nothing_is_wrong_with_what_the_real_parts_leave(healthy: tuple[Shelf, int], deep: bool) -> None:
    async with reopened(*healthy) as here:
        record = await here.audit(deep=deep)
        assert wrong(record) == set()
        assert {rule for rule, _ in told(record)} <= AS_IT_MAY_BE
        assert record.good
        assert record.checked["accepted"] == 11
        assert record.checked["conflicts"] == 2


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
async def test_a_planted_fault_is_found_and_nothing_else(healthy: tuple[Shelf, int], fault: Fault) -> None:
    async with reopened(*healthy) as here:
        expected = await fault.plant(here.store)
        here.clock.pass_by(HOUR)
        record = await here.audit(deep=fault.deep)
        assert wrong(record) == expected


async def test_an_empty_store_is_good() -> None:
    async with place() as here:
        record = await here.audit()
        assert (record.good, record.findings, record.checked) == (True, (), {"runs at work": 1})  # its own
