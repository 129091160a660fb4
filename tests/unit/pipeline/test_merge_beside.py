"""Readers, garbage collection and audits beside merges: who misses a chunk finds what took its place."""

import pyarrow as pa
import pytest

from holdfast import pipeline
from holdfast.base.errors import Corrupt
from holdfast.pipeline import plan
from holdfast.pipeline.gc import derived as gc_derived
from holdfast.pipeline.jobs.audited import latest_complete
from holdfast.pipeline.tables import everything
from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup import layout
from tests.unit.pipeline.field import HOUR, START, Field
from tests.unit.pipeline.gc_desk import DAY, Once
from tests.unit.pipeline.merge_desk import AT_ONCE, NEVER, SECOND, Place, current
from tests.unit.pipeline.test_tables import bag, planned


@pytest.mark.parametrize("prefix", [layout.ROLLUP, layout.MANIFESTS])
async def test_a_reader_whose_chunks_were_merged_and_removed_begins_anew(place: Place, prefix: str) -> None:
    answers = await place.answers()

    async def others() -> None:
        await place.merged()
        place.later(3 * HOUR)
        removed = (await place.run("derived"))["kinds"]["derived"]["removed"]
        assert sum(removed.values()) > 10

    assert await place.answers(Once(place.store, prefix, others)) == answers
    assert await place.answers() == answers


@pytest.mark.parametrize("at_once", [20, 2_000_000])
async def test_what_was_merged_goes_as_garbage_and_an_audit_finds_nothing_wrong(
    place: Place, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many records of a unit the audit derives together."""
    monkeypatch.setattr(plan, "RECORDS_AT_ONCE", at_once)
    answers = await place.answers()
    await place.merged()
    late = {900: Gauge("load", 5.0, START + 59 * 60 * SECOND, {"cpu": "7"})}
    await Field(place.store).accept("agent-3", "boot", late, at_ns=place.watch.wall_ns())
    await place.drive(options=AT_ONCE)
    place.later(3 * HOUR)
    removed = (await place.run("derived"))["kinds"]["derived"]["removed"]
    assert removed[gc_derived.UNNAMED] > 10
    generation = await current(place.store)
    named = {ref.key for unit in generation.units for ref in unit.chunks}
    assert {key for key in place.keys(layout.ROLLUP) if "window=1d" not in key} == named
    place.later(DAY)
    store = place.opened()
    [ran] = await pipeline.run(store, ["audit"], request={"deep": True, "scopes": ["ingest", "metrics"]})
    record = await latest_complete(store, "metrics")
    assert record is not None
    assert (ran.status, dict(record.found)) == ("success", {})
    assert record.checked["units derived again"] > 0
    assert [each for each in (await place.answers())[0] if each.labels["cpu"] != "7"] == answers[0]


@pytest.mark.parametrize("window", ["10s", "1h", "1d"])
async def test_a_task_whose_chunks_were_removed_since_the_query_was_planned_reads_what_took_their_place(
    place: Place, window: str
) -> None:
    """The hour is merged, then divided anew by late data of another series, and every time what was goes as garbage."""
    store = place.opened()
    expected = bag(await everything(store, {"table": "rollup", "window": window}))
    table, parts, wanted = await planned(store, {"table": "rollup", "window": window})

    async def rows() -> list[str]:
        return bag(pa.Table.from_batches([each for part in parts async for each in table.read(store, part, wanted)]))

    assert await rows() == expected
    await place.drive("merge", options=AT_ONCE)
    place.later(3 * HOUR)
    await place.run("derived")
    assert all(ref.key not in place.shelf.objects for part in parts for each in part.chunks for ref in each.refs)
    assert await rows() == expected
    table, parts, wanted = await planned(store, {"table": "rollup", "window": window})
    late = {900: Gauge("other", 5.0, START + 59 * 60 * SECOND, {})}
    await Field(place.store).accept("agent-3", "boot", late, at_ns=place.watch.wall_ns())
    await place.drive("reconcile", "rollup", options=NEVER)
    place.later(3 * HOUR)
    await place.run("derived", run_id="again")
    assert (await current(place.store)).buckets == 8
    assert await rows() == expected


async def test_a_chunk_that_is_current_and_lost_is_damage_for_a_task_too(place: Place) -> None:
    store = place.opened()
    table, parts, wanted = await planned(store, {"table": "rollup"})
    await place.store.delete(parts[0].chunks[0].refs[0].key)
    with pytest.raises(Corrupt, match="a chunk that is current is missing"):
        [each async for each in table.read(store, parts[0], wanted)]
