"""A driver of a sink that dies at any request: what it leaves is reported by the audit, and collected on record."""

from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.pipeline.gc import ontology
from tests.soak import SOAKING
from tests.unit.ontology.bulk.test_bulk import Died, Mortal, driven
from tests.unit.ontology.bulk_kit import Yard, customers, table
from tests.unit.pipeline.gc_desk import DAY, GcDesk

ORPHANS = {"staged_load", "orphan_attempt"}


async def orphans(desk: GcDesk) -> set[str]:
    report = await verify(desk.store, deep=True)
    assert report.good
    return {each.key for each in report.findings if each.rule.name in ORPHANS}


async def test_what_a_killed_sink_leaves_is_reported_and_collected() -> None:
    seen: set[str] = set()
    for at in range(1, 400, 1 if SOAKING else 4):
        desk = GcDesk()
        await Yard(desk.store).load(table(customers(0, 5, "before")))
        mortal = Mortal(desk.store, at, landed=True)
        try:
            await driven(mortal)
        except Died:
            await desk.store.delete(layout.LOCK)  # its lease would run out in its time
        await driven(desk.store)
        answer, head = await orphans(desk), await read_head(desk.store)
        loose = {key for key in desk.shelf.objects if key.startswith(tuple(answer))} if answer else set()
        assert {key for key in desk.shelf.objects if key.startswith(layout.LOADS)} <= loose
        desk.later(2 * DAY)
        done = (await desk.run("ontology"))["kinds"]["ontology"]
        assert sum(done["removed"].values()) == len(loose)
        assert await orphans(desk) == set()
        assert await read_head(desk.store) == head
        assert len(await Yard(desk.store).names()) == 40
        seen |= done["removed"].keys()
        if mortal.requests < at:
            assert seen == {ontology.LOAD, ontology.LOST}
            return
    raise AssertionError("a load has more requests than were tried")
