"""Stores that an older version wrote are read completely and continued; its spool and queue are refused by version."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.config import BusSection, Settings
from holdfast.base.errors import Incompatible
from holdfast.objects.client import Client
from holdfast.objects.memory import MemoryStore
from holdfast.objects.uri import StoreSpec
from holdfast.ontology import upgrader
from holdfast.pipeline import run as run_pipeline
from holdfast.platform.open import Holdfast, open_platform
from holdfast.telemetry.accept.accept import Accepted, Submission
from holdfast.telemetry.accept.authority import Acceptance, open_authority
from holdfast.telemetry.accept.collector import CollectorOptions, find_accepted
from holdfast.telemetry.accept.landing import Landed, SpoolCollector
from holdfast.telemetry.accept.spool import open_spool
from holdfast.telemetry.agent.queue import open_queue
from holdfast.telemetry.agent.sender import Answer, Taken
from holdfast.telemetry.agent.shipper import Shipper, ShipperOptions
from holdfast.telemetry.identity import BatchIdentity
from tests.fakes.orders import OrderPlaced
from tests.golden import story
from tests.golden.story import BEGAN_NS, SECOND

STORES = Path(__file__).parent / "golden" / "stores"
QUICK = Settings(bus=BusSection(event_poll_ms=5, event_backoff_base_ms=1, event_backoff_max_ms=2, event_jitter_ms=0))
LATER_NS = BEGAN_NS + 30 * 86_400 * SECOND

upgrader(story.CustomerV2, from_version=1, to_version=2)(story.split_name)


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of one golden store, in a folder that may be written to."""
    return Path(shutil.copytree(STORES / request.param, tmp_path / request.param))


def of(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("copied", [kind], indirect=True, ids=[kind])


def expected(copied: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((copied / "expected.json").read_text(encoding="utf-8"))
    return found


@asynccontextmanager
async def opened(folder: Path, *, ns: int = LATER_NS) -> AsyncIterator[Holdfast]:
    made, _ = story.ambient(7, ns)
    async with open_platform(f"file:{folder}", settings=QUICK, ambient=made) as hf:
        yield hf


def test_no_golden_store_is_left_out_or_written_again() -> None:
    lines = (STORES / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    answer = {name.removeprefix("./"): digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = {
        str(path.relative_to(STORES)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in STORES.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }
    assert found == answer


@of("ontology")
async def test_an_ontology_is_read_as_of_every_commit(copied: Path) -> None:
    answer = expected(copied)
    types = {"Customer": story.CustomerV2, "Product": story.Product, "Subscription": story.Subscription}
    async with opened(copied / "store") as hf, hf.ontology(*types.values()) as onto:
        assert (await onto.info()).commit_id == answer["head"]
        for commit, rows in answer["as_of"].items():
            for name, python in types.items():
                found = sorted(map(repr, await onto.query(python).as_of(int(commit)).all()))
                assert found == rows[name], (commit, name)
        assert sorted(map(repr, await onto.all(story.CustomerV2))) == answer["latest"]["Customer"]
        gold = onto.query(story.CustomerV2).as_of(3).where(story.CustomerV2.tier == "gold")
        assert await gold.count() == answer["gold_at_3"]
        ada = await onto.get(story.CustomerV2, "c1")
        assert ada is not None
        assert ada.last == "Lovelace"


@of("ontology")
async def test_a_dropped_type_has_its_history_and_a_purged_one_has_none(copied: Path) -> None:
    async with opened(copied / "store") as hf, hf.ontology(story.Memo, story.Rumour) as onto:
        assert sorted(map(repr, await onto.query(story.Memo).as_of(9).all())) == expected(copied)["memos_at_9"]
        assert await onto.query(story.Memo).count() == 0
        assert await onto.query(story.Rumour).as_of(9).count() == 0


@of("ontology")
async def test_an_ontology_is_committed_to(copied: Path) -> None:
    head = expected(copied)["head"]
    async with opened(copied / "store") as hf, hf.ontology(story.CustomerV2, story.Product) as onto:
        onto.ensure(story.CustomerV2(id="c9", first="New", last="One"))
        onto.retract(story.CustomerV2, "c1")
        commit = await onto.commit()
        assert commit is not None
        assert commit.commit_id == head + 1
        assert await onto.get(story.CustomerV2, "c1") is None
        assert await onto.query(story.CustomerV2).count() == len(expected(copied)["latest"]["Customer"])
        changes = [change async for change in onto.changes(since=head)]
        assert sorted(change.identity for change in changes) == [("c1",), ("c9",)]


@of("ontology")
async def test_events_of_an_ontology_are_published_once(copied: Path) -> None:
    async with opened(copied / "store") as hf:
        async with hf.ontology(story.CustomerV2) as onto:
            assert onto.pending == 0
        events = await hf.bus().events(limit=None)
        assert sorted(json.dumps(each.envelope.payload) for each in events) == expected(copied)["events"]


@of("runs")
async def test_runs_are_described(copied: Path) -> None:
    answer = expected(copied)
    async with opened(copied / "store") as hf:
        assert sorted([each.run_id async for each in runs.find(hf.store)]) == answer["listed"]
        for run_id, fields in answer["runs"].items():
            described = await runs.describe(hf.store, run_id)
            assert {name: getattr(described, name) for name in fields} == fields, run_id


@of("runs")
async def test_recorded_steps_are_replayed_and_not_run_again(copied: Path) -> None:
    answer = expected(copied)
    async with opened(copied / "store") as hf:
        story.calls.clear()
        done = await story.completed.start(hf.store, "o-1", run_id="completed")
        assert (done.status, repr(done.result)) == ("success", answer["result"])
        assert (await story.failing.proceed(hf.store, "failed")).status == "failed"
        assert (await story.waiting.proceed(hf.store, "cancelled")).status == "cancelled"
        assert story.calls == []

        resumed = await story.waiting.resume(hf.store, "suspended", "approval", {"by": "anna"})
        assert resumed.result == {"approved": {"by": "anna"}, "sent": "send"}
        assert story.calls == ["send"]

        story.calls.clear()
        assert (await story.sealed.resume(hf.store, "sealed", "more", "done")).result == "done"
        assert (await story.parent.resume(hf.store, "parent", "go")).result == {"doubled": 42}
        assert story.calls == []

        forked = await story.completed.proceed(hf.store, "forked")
        assert forked.result["receipt"] == done.result["receipt"]
        assert sorted(story.calls) == ["a", "b", "large"]


@of("runs")
async def test_a_worker_goes_on_with_runs_that_are_due(copied: Path) -> None:
    async with opened(copied / "store") as hf:
        story.calls.clear()
        await hf.work(story.WORKFLOWS, until_idle=True)
        assert (await runs.describe(hf.store, "sleeping")).status == "success"
        assert (await runs.describe(hf.store, "mail")).status == "success"
        assert (await runs.describe(hf.store, "suspended")).status == "suspended"
        assert sorted(story.calls) == ["a", "after", "b", "large", "send"]  # the fork goes on too, after `values`


@of("bus")
async def test_events_and_their_claims_are_read(copied: Path) -> None:
    answer = expected(copied)
    async with opened(copied / "store", ns=answer["now_ns"]) as hf:
        bus = hf.bus()
        events = await bus.events(limit=None)
        found = sorted([each.envelope.type, each.envelope.payload.get("order_id"), str(each.status)] for each in events)
        assert found == answer["events"]
        assert [[each["type"], each["handler_id"]] for each in await bus.dead_letters()] == answer["dead"]
        assert sorted(each.namespace for each in await bus.namespaces()) == answer["namespaces"]


@of("bus")
async def test_only_events_that_were_not_handled_are_handed_out(copied: Path) -> None:
    answer = expected(copied)
    async with opened(copied / "store", ns=answer["now_ns"]) as hf:
        story.handled.clear()
        await hf.bus().run(story.HANDLERS, until_idle=True)
        assert sorted(story.handled) == [("bill", "waiting", 1), ("thank", "waiting", 1)]
        story.handled.clear()
        again = await hf.bus().publish(OrderPlaced(order_id="good"), key="good")
        await hf.bus().run(story.HANDLERS, until_idle=True)
        assert again.duplicate
        assert story.handled == []


def totals(answers: dict[str, Any]) -> dict[str, Any]:
    """Answers with the increase of all steps together: since rollup.2 it is spread over the steps between samples."""
    metrics = dict(answers["metrics"])
    requests = [row["value"] for row in metrics.pop("requests")]
    return {**answers, "metrics": metrics, "requests": round(sum(requests), 6)}


@of("telemetry")
async def test_hours_that_an_older_version_derived_are_refused_and_derived_again(copied: Path) -> None:
    answer = expected(copied)
    async with opened(copied / "store", ns=answer["now_ns"]) as hf:
        assert await story.manifests_by_scan(hf.store) == answer["manifests"]
        assert [await hf.store.find(key) is not None for key in answer["refused"]] == [True]
        with pytest.raises(Incompatible, match="schema 'holdfast") as refused:
            await story.telemetry_answers(hf)
        assert "delete everything below manifests/v1/" in (refused.value.remedy or "")
        await hf.store.delete_many([key async for key in hf.store.keys("manifests/v1/")])
        for _ in range(2):
            answers = await story.telemetry_answers(hf)
            assert totals(answers) == totals({name: answer[name] for name in answers})
            ran = await run_pipeline(hf.store, ["reconcile", "derive"], request={"since_ns": 0})
            assert {each.status for each in ran} == {"success"}


@of("telemetry")
async def test_everything_is_derived_again_from_the_batches_alone(copied: Path) -> None:
    answer = expected(copied)
    kept = {".%holdfast", "accepted", "raw-blobs", "quarantine"}
    for path in (copied / "store").iterdir():
        if path.name not in kept:
            shutil.rmtree(path)
    async with opened(copied / "store", ns=answer["now_ns"]) as hf:
        ran = await run_pipeline(hf.store, ["reconcile", "derive"], request={"full": True})
        assert {each.status for each in ran} == {"success"}
        answers = await story.telemetry_answers(hf)
        assert totals(answers) == totals({name: answer[name] for name in answers})


@pytest.mark.parametrize(("copied", "file"), [("spool", "spool"), ("queue", "queue")], indirect=["copied"])
async def test_a_spool_and_a_queue_of_earlier_versions_are_refused_and_left_as_they_are(
    copied: Path, file: str
) -> None:
    files = {path: path.read_bytes() for path in (copied / file).rglob("*") if path.is_file()}
    made, _ = story.ambient(7)
    opened = open_spool(copied / file, made) if file == "spool" else open_queue(copied / file, "web-1", made)
    with pytest.raises(Incompatible, match="format version") as caught:
        async with opened:
            raise AssertionError
    assert "let the release that wrote it" in (caught.value.remedy or "")
    found = {path: path.read_bytes() for path in (copied / file).rglob("*") if path.is_file()}
    assert {path: body for path, body in found.items() if path in files} == files
    assert {path.name for path in found.keys() - files.keys()} == {f"{file}.lock"}


@of("spool-4")
async def test_a_spool_lands_what_waits_and_knows_what_has_landed(copied: Path) -> None:
    answer = expected(copied)
    made, watch = story.ambient(7)
    store = Client(MemoryStore(clock=watch), ambient=made, spec=StoreSpec("memory", "golden"))
    async with open_spool(copied / "spool", made) as spool:
        assert spool.spool_id == answer["spool_id"]
        waiting = [each.manifest for each in await spool.to_land(100)]
        assert [[str(each.identity), each.frame_sha256, each.accepted_at_unix_ns] for each in waiting] == answer[
            "waiting"
        ]
        refused = [[str(each.identity), each.frame_sha256] for each in await spool.refused()]
        assert refused == answer["refused"][:1]  # the other one is of a batch that waits
        authority = await open_authority(store, made, store.place, Acceptance.LOCAL_SPOOL, spool_id=spool.spool_id)
        collector = SpoolCollector(spool, store, made, authority, CollectorOptions("spooler"))
        assert await collector.land() == Landed(batches=3, conflicts=2)
        for each in waiting:
            assert await find_accepted(store, each.identity) is not None
        landed = [sha256 for _, sha256, *_ in answer["landed"] + answer["waiting"][:2]]
        for number, sha256 in enumerate(landed):
            identity = BatchIdentity("web-1", "boot-a", 6 * number, 6 * number + 5)
            answered = await collector.accept(Submission(identity, b"", sha256))
            assert isinstance(answered, Accepted)
            assert answered.duplicate


class Accepting:
    """Takes every batch, and remembers them."""

    def __init__(self) -> None:
        self.taken: list[list[str]] = []

    async def post(self, route: int, identity: BatchIdentity, frame: bytes) -> Answer:
        self.taken.append([str(identity), hashlib.sha256(frame).hexdigest()])
        return Taken(duplicate=False)


@of("queue-2")
async def test_a_queue_sends_what_was_not_accepted(copied: Path) -> None:
    answer = expected(copied)
    made, _ = story.ambient(7)
    async with open_queue(copied / "queue", "web-1", made) as queue:
        assert (queue.boot_id, queue.next_seq, queue.state) == (answer["boot_id"], answer["next_seq"], answer["state"])
        assert [str(each.identity) for each in await queue.parked.all()] == answer["parked"]
        collector = Accepting()
        shipper = Shipper(queue, collector, made, ShipperOptions(window=1))
        assert await shipper.offer_parked() == 1
        working = asyncio.create_task(shipper.run())
        assert await shipper.drain(600_000)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert collector.taken[0][0] == answer["parked"][0]
        assert collector.taken[1:] == answer["unsent"]
