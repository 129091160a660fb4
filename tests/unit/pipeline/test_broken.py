"""A derived object that cannot be read, or bytes that are away for a while: it is reported, and the rest goes on."""

import pytest

from holdfast import pipeline
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.store import OVERWRITE
from holdfast.pipeline import due, layout, problems
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import Finding
from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup.manifest import Kind
from tests.unit.pipeline.field import HOUR, SECOND, START, Field, agrees, generations

FULL = {"full": True}
FIRST = START // HOUR


def gauges(first: int, at: int = START) -> dict[int, Gauge]:
    return {seq: Gauge("load", float(seq), at + (seq - first) * SECOND) for seq in range(first, first + 3)}


async def accept(field: Field, agent: str, boot: str, first: int, at: int) -> AcceptedManifest:
    """Records of then, accepted now."""
    return await field.accept(agent, boot, gauges(first, at), at_ns=Ambient.system().clock.wall_ns())


async def run(store: Client, request: dict | None = None) -> list[pipeline.Ran]:
    ran = await pipeline.run(store, request=request)
    assert {each.status for each in ran} <= {"success"}, [each.document() for each in ran]
    return ran


async def reported(store: Client, finding: Finding) -> list[str]:
    return [each.problem.key for each in await problems.of(store, finding)]


async def hours_of(store: Client) -> dict[int, int]:
    return {each.hour: each.number for each in await generations(store, Kind.ROLLUP)}


@pytest.mark.parametrize("folder", ["generation", "listing"])
async def test_what_cannot_be_read_of_one_hour_stops_no_other(folder: str) -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        for number in range(3):
            await field.accept("agent", "boot", gauges(10 * number, START + number * HOUR))
        await run(store)
        hurt = derived.generation_key(FIRST, Kind.ROLLUP, 1)
        if folder == "listing":
            (hurt,) = [key async for key in store.keys(derived.batches_folder(FIRST))]
        kept = (await store.get(hurt)).body
        await store.put(hurt, b"{spoilt", OVERWRITE)
        for number in range(3):  # late records of every hour
            await accept(field, "agent", "later", 10 * number, START + number * HOUR + 60 * SECOND)
        for request in (None, FULL):
            ran = await run(store, request)
            assert sum(each.summary.get("broken_hours", 0) for each in ran) >= 1
        assert list(await due.marks(store, Kind.ROLLUP)) == [FIRST]  # the others are published
        assert f"{derived.manifest_folder(FIRST)}rollup" in await reported(store, Finding.CORRUPT_DERIVED)
        await store.put(hurt, kept, OVERWRITE)
        await run(store)
        assert await reported(store, Finding.CORRUPT_DERIVED) == []
        assert await agrees(store, field.batches) > 5
        assert (await hours_of(store)).keys() == {FIRST, FIRST + 1, FIRST + 2}


async def test_agents_whose_numbers_are_not_known_any_more_wait_and_the_others_do_not() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.accept("agent-0", "boot", gauges(0))
        await run(store)
        (key,) = [key async for key in store.keys("meta/pipeline/coverage/")]
        kept = (await store.get(key)).body
        await store.put(key, b"{spoilt", OVERWRITE)
        others = [f"agent-{number}" for number in range(1, 30)]
        other = next(each for each in others if layout.shard_of(each) != layout.shard_of("agent-0"))
        waiting = await accept(field, "agent-0", "boot", 10, START + 60 * SECOND)
        await accept(field, other, "boot", 0, START + HOUR)
        await run(store)
        assert await reported(store, Finding.NOT_COVERED) == [waiting.key]
        assert FIRST + 1 in await hours_of(store)
        await run(store, FULL)
        await store.put(key, kept, OVERWRITE)
        await run(store)
        assert await reported(store, Finding.NOT_COVERED) == []
        assert await agrees(store, field.batches) > 3


async def test_bytes_that_were_lost_after_they_were_reconciled_and_came_back_are_counted() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.accept("agent", "boot", gauges(0))
        lost = await field.accept("agent", "boot", gauges(10, START + 60 * SECOND))
        await pipeline.run(store, ["reconcile"])
        kept = (await store.get(lost.raw_blob_key)).body
        await store.delete(lost.raw_blob_key)
        await run(store)
        (generation,) = await generations(store, Kind.ROLLUP)
        assert [unit.unreadable for unit in generation.units] == [(lost.identity.manifest_id,)]
        assert await reported(store, Finding.MISSING_BLOB) == [lost.key]
        await run(store)  # still away: nothing changes
        assert [each.number for each in await generations(store, Kind.ROLLUP)] == [1]
        await store.put(lost.raw_blob_key, kept, OVERWRITE)
        await run(store)
        assert await reported(store, Finding.MISSING_BLOB) == []
        assert await agrees(store, field.batches) > 3
        (generation,) = await generations(store, Kind.ROLLUP)
        assert (generation.number, [unit.unreadable for unit in generation.units]) == (2, [()])
        assert await run(store) == []


@pytest.mark.parametrize("body", [b"rubbish", b'{"finding": "of_tomorrow", "key": "k", "message": ""}'])
async def test_what_is_no_problem_among_problems_is_shown_and_stops_nothing(body: bytes) -> None:
    async with open_store("memory:") as store:
        key = f"{layout.PROBLEMS}{Finding.MISSING_BLOB}/by-hand.json"
        await store.put(key, body, OVERWRITE)
        field = Field(store)
        await field.accept("agent", "boot", gauges(0))
        await run(store)
        await agrees(store, field.batches)
        [seen] = await problems.every(store)
        assert (seen.problem.finding, seen.problem.key) == (Finding.FOREIGN_OBJECT, key)


async def test_broken_batches_that_are_too_many_for_a_run_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many stay broken, each that comes back is found: none waits behind the others for ever."""
    monkeypatch.setattr(problems, "LOOKED_AT_AGAIN", 2)
    async with open_store("memory:") as store:
        field = Field(store)
        kept = {}
        for number in range(5):
            lost = await accept(field, "agent", "boot", 10 * number, START)
            kept[lost.key] = (lost.raw_blob_key, (await store.get(lost.raw_blob_key)).body)
            await store.delete(lost.raw_blob_key)
        await run(store)
        await run(store)  # follows the references, which were written just before the first scan
        broken = await reported(store, Finding.MISSING_BLOB)
        assert len(broken) == 5
        for back in (broken[-1], broken[2]):
            await store.put(*kept[back], OVERWRITE)
            looked_at = [(await run(store))[0].summary["looked_at"] for _ in range(3)]
            assert looked_at == [2] * 3
            assert back not in await reported(store, Finding.MISSING_BLOB)
        assert len(await reported(store, Finding.MISSING_BLOB)) == 3
