"""What runs, commits and events leave behind: removed, on record, and nothing that anybody may still need."""

import random

import pytest

from holdfast.base.audit import Severity
from holdfast.base.ids import Ambient
from holdfast.bus import Bus, Context, Envelope, on
from holdfast.ontology.format import layout as commits
from holdfast.ontology.maintain.compact import GRACE_NS, Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.pipeline.gc import leftovers, ontology
from holdfast.pipeline.gc.options import GcOptions
from holdfast.pipeline.gc.sweep import GC, intents
from holdfast.pipeline.jobs.gc import Gc
from holdfast.runs import layout
from holdfast.runs.admin.delete import delete
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.payload import get_payload, put_payload
from tests.fakes.orders import OrderPlaced
from tests.unit.ontology.broken import attempt_that_lost, migration_that_was_not_published, sound
from tests.unit.ontology.desk import CUSTOMER
from tests.unit.ontology.desk import Desk as OntologyDesk
from tests.unit.pipeline.gc_desk import DAY, HOUR, GcDesk


async def begun(desk: GcDesk, run_id: str, ambient: Ambient) -> Journal:
    """A run with a step whose result is a payload, and a payload of a session that came too late."""
    workflow = run_id.partition("-")[0]
    journal = await Journal.begin(desk.store, ambient, run_id, None, {"workflow": workflow})
    reference = await put_payload(desk.store, ambient, run_id, b"large")
    await journal.append(Draft("step", {"stepId": "big", "payload": reference}))
    await put_payload(desk.store, ambient, run_id, b"late")
    return journal


async def ended(desk: GcDesk, run_id: str, ambient: Ambient) -> Journal:
    journal = await begun(desk, run_id, ambient)
    await journal.append(Draft("complete", {}))
    await RunIndex(desk.store, ambient).note(run_id, journal.state)
    return journal


async def test_payloads_of_lost_attempts_and_of_deleted_runs_go() -> None:
    desk = GcDesk()
    ambient = desk.ambient
    await begun(desk, "open", ambient)
    await ended(desk, "over", ambient)
    await ended(desk, "deleted", ambient)
    await delete(desk.store, "deleted")
    zombie = await put_payload(desk.store, ambient, "deleted", b"from before")
    assert (await desk.run("runs"))["kinds"]["runs"]["kept"] == {leftovers.YOUNG: 2}
    desk.later(2 * HOUR)
    found = (await desk.run("runs", run_id="run-2"))["kinds"]["runs"]
    assert found["removed"] == {leftovers.LOOSE: 2}
    assert zombie["key"] not in desk.shelf.objects
    assert len(desk.keys("runs/open/payloads/")) == 2
    assert len(desk.keys("runs/over/payloads/")) == 1
    history = await read_history(desk.store, "over")
    assert history is not None
    assert await get_payload(desk.store, history.entries[1].fields["payload"]) == b"large"
    answer = {key async for intent in intents(desk.store, "run-2") for key, _, _ in intent.objects}
    assert zombie["key"] in answer


async def test_runs_are_divided_without_gap_or_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = GcDesk()
    names = [f"r{number}{mark}" for number in range(4) for mark in ("", "-a", ".b", "0")]
    for name in names:
        await desk.store.put(layout.journal_key(name), b"")
    monkeypatch.setattr(leftovers, "GROUP", 3)
    shards = await leftovers.run_ranges(desk.store)
    found = []
    for shard in shards:
        low, _, high = shard.partition("/")
        found.append([run_id async for run_id, _ in leftovers._folders(desk.store, low, high)])
    assert sorted(name for each in found for name in each) == sorted(names)
    assert [len(each) for each in found] == [3, 3, 3, 3, 3, 1]


async def test_finished_runs_past_their_retention_become_tombstones() -> None:
    desk = GcDesk(options=GcOptions(runs_ns=30 * DAY))
    ambient = desk.ambient
    await ended(desk, "old", ambient)
    await ended(desk, "pipeline.rollup-1", ambient)
    desk.later(31 * DAY)
    await ended(desk, "new", ambient)
    assert (await desk.plan("expire-runs"))["kinds"]["expire-runs"]["removed"] == {leftovers.EXPIRED: 1}
    assert (await desk.run("expire-runs"))["removed"] == 1
    assert desk.keys("runs/old/") == [layout.journal_key("old")]
    history = await read_history(desk.store, "old")
    assert history is not None
    assert history.state.status == "deleted"
    assert len(desk.keys("runs/new/")) == 3
    [answer] = [intent async for intent in intents(desk.store, "run-1")]
    assert answer.objects == (("runs/old/", 0, leftovers.EXPIRED),)
    assert (await desk.run("expire-runs", run_id="run-2"))["removed"] == 0


async def test_records_of_the_pipelines_own_work_have_a_retention_of_their_own() -> None:
    desk = GcDesk(options=GcOptions(records_ns=30 * DAY))
    await ended(desk, "pipeline.rollup-1", desk.ambient)
    await ended(desk, "mine", desk.ambient)
    await desk.run("runs", run_id="long-ago")
    desk.later(31 * DAY)
    found = (await desk.run("records", run_id="now"))["kinds"]["records"]
    assert found["removed"] == {leftovers.OLD: 1, leftovers.EXPIRED: 1}
    assert desk.keys(f"{GC}long-ago/") == []
    assert desk.keys(f"{GC}now/run.json") != []
    assert len(desk.keys("runs/mine/")) > 1


async def test_attempts_that_lost_go_and_one_that_is_still_to_come_stays() -> None:
    onto = OntologyDesk()
    await sound(onto)
    await attempt_that_lost(onto)
    await attempt_that_lost(onto, 7)
    await migration_that_was_not_published(onto)
    desk = GcDesk(shelf=onto.shelf)
    before = {key for key in desk.shelf.objects if "0badcafe" not in key}
    found = (await desk.run("ontology"))["kinds"]["ontology"]
    assert found["removed"] == {ontology.LOST: 2}
    assert [key for key in desk.shelf.objects if "0badcafe" in key and key.startswith("commits/")] == [
        "commits/8-0badcafe/manifest.json"
    ]
    assert before <= desk.shelf.objects.keys()
    report = await verify(onto.store)
    assert {each.rule.name for each in report.findings if each.severity is Severity.ERROR} == set()


async def test_a_number_whose_only_attempt_is_not_on_the_chain_is_kept() -> None:
    onto = OntologyDesk()
    await sound(onto)
    await attempt_that_lost(onto)
    manifest = next(key for key in onto.shelf.objects if commits.commit_of_manifest(key) == 5)
    onto.shelf.remove(manifest)  # damage: the chain below is unknown
    desk = GcDesk(shelf=onto.shelf)
    found = (await desk.run("ontology"))["kinds"]["ontology"]
    assert sum(found["removed"].values()) + sum(found["kept"].values()) == 1
    assert all(why == ontology.UNKNOWN for why in found["kept"])


async def test_superseded_snapshots_go_and_readers_have_the_rest() -> None:
    onto = OntologyDesk()
    await sound(onto)
    compactor = Compactor(onto.store, onto.ambient, fan=2)
    await compactor.compact(CUSTOMER)
    desk = GcDesk(shelf=onto.shelf)
    snapshots = desk.keys(commits.SNAPSHOTS)
    orphan = commits.snapshot_key(*CUSTOMER, 1, 2, "0badcafe")
    await desk.store.put(orphan, b"never published")
    assert (await desk.run("ontology"))["removed"] == 0
    desk.later(25 * GRACE_NS)
    assert (await desk.run("ontology", run_id="run-2"))["kinds"]["ontology"]["removed"] == {ontology.SNAPSHOT: 1}
    assert desk.keys(commits.SNAPSHOTS) == snapshots


async def test_what_a_killed_load_has_staged_goes_after_a_day() -> None:
    onto = OntologyDesk()
    await sound(onto)
    desk = GcDesk(shelf=onto.shelf)
    staged = commits.load_key("load-1", *CUSTOMER, "sheaf", "1")
    await desk.store.put(staged, b"rows")
    assert (await desk.run("ontology"))["kinds"]["ontology"]["kept"] == {ontology.ALIVE: 1}
    desk.later(2 * DAY)
    assert (await desk.run("ontology", run_id="run-2"))["kinds"]["ontology"]["removed"] == {ontology.LOAD: 1}
    assert staged not in desk.shelf.objects


@on(OrderPlaced, id="bill")
async def bill(_: Context, __: OrderPlaced) -> None:
    """Done."""


async def test_settled_events_past_retention_go_behind_their_boundary() -> None:
    desk = GcDesk(options=GcOptions(events_ns=7 * DAY))
    ambient = Ambient(desk.watch, random.Random(1))
    bus = Bus(desk.store, ambient)
    old: Envelope = (await bus.publish(OrderPlaced(order_id="o1"))).envelope
    await bus.run([bill], until_idle=True)
    desk.later(8 * DAY)
    await bus.publish(OrderPlaced(order_id="o2"))
    await bus.run([bill], until_idle=True)
    env = desk.env(desk.opened())
    planned = (await Gc(env).preview({"kinds": ["expire-events"]}))["kinds"]["expire-events"]["removed"]
    found = await desk.run("expire-events", store=desk.opened())
    assert found["kinds"]["expire-events"]["removed"] == planned
    assert old.key not in desk.shelf.objects
    assert len(desk.keys("events/default/")) == 1
    [answer] = [intent async for intent in intents(desk.store, "run-1")]
    assert old.key in {key for key, *_ in answer.objects}
    assert planned == {leftovers.SETTLED: len(answer.objects)}
