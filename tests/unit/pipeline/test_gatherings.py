"""Batches that collectors gathered: found like those with references of their own, looked at once, and referred to."""

from pathlib import Path
from typing import Any

from holdfast import pipeline
from holdfast.base.clock import SystemClock
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.store import OVERWRITE
from holdfast.pipeline import Inline, Options, discover, problems
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.options import Env
from holdfast.pipeline.reconcile import Reconcile
from holdfast.sim.scenarios.pipeline import Straight
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.records import Gauge
from tests.unit.pipeline.audit_desk import place, wrong
from tests.unit.pipeline.field import HOUR, SECOND, START, Field, agrees

BATCHES = 5
SPAN: dict[str, Any] = {"since": START, "until": START + HOUR, "step": "1h", "aggregate": "sum"}
TOTAL = float(sum(range(3 * BATCHES)))


async def gathered(field: Field, first: int = 0, *, at_ns: int | None = None) -> list[AcceptedManifest]:
    """Some batches and one object that names them."""
    now = SystemClock().wall_ns() if at_ns is None else at_ns
    manifests = []
    for number in range(first, first + BATCHES):
        records = {3 * number + n: Gauge("load", float(3 * number + n), START + number * SECOND) for n in range(3)}
        manifests.append(await field.accept("agent", "boot", records, at_ns=now, refer=False))
    [key] = await field.gather(*manifests)
    name = ingest.gathering_in(key)
    assert name is not None
    assert name.batches == BATCHES
    return manifests


async def reconcile(store: Client) -> dict[str, Any]:
    ran = await pipeline.run(store, ["reconcile"])
    assert [each.status for each in ran] == ["success"] * len(ran)
    return ran[-1].summary if ran else {}


async def test_they_are_looked_at_once_and_get_the_references_of_the_specification() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        manifests = await gathered(field)
        summary = await reconcile(store)
        assert (summary["looked_at"], summary["batches"], summary["references_written"]) == (5, 5, 3 * 5)
        keys = {key async for key in store.keys("accepted-by-time/")}
        assert keys == {ingest.accepted_by_time_key(each.accepted_at_unix_ns, each.identity) for each in manifests}
        assert await reconcile(store) == {}  # the references that it wrote are no news to it
        await gathered(field, BATCHES)
        assert (await reconcile(store))["looked_at"] == BATCHES
        assert await reconcile(store) == {}
        await pipeline.run(store)
        await agrees(store, field.batches)


async def test_they_are_not_looked_at_again_however_late_the_reconciler_comes() -> None:
    """The references that it writes are younger than the gathering: what it has seen must tell that it knows them."""
    async with open_store("memory:") as store:
        field = Field(store)
        now = SystemClock().wall_ns()
        await gathered(field, at_ns=now)
        await field.accept("agent", "other", {0: Gauge("load", 1.0, START)}, at_ns=now)
        job = Reconcile(Env(store, store.ambient, Inline(store), Options(overlap_ns=0)))
        assert (await job.run(Straight("first"), {}))["looked_at"] == BATCHES + 1
        assert (await job.run(Straight("second"), {}))["looked_at"] == 0


async def test_requests_of_gathered_batches() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        job = Reconcile(Env(store, store.ambient, Inline(store)))
        await gathered(field)
        await job.run(Straight("first"), {})
        await gathered(field, BATCHES)
        before = dict(store.usage.by_verb)
        await job.run(Straight("second"), {})
        asked = {verb: count - before.get(verb, 0) for verb, count in store.usage.by_verb.items()}
        # Per batch: manifest and bytes, three HEAD. The gathering. Checkpoint (twice), recent, coverage; a listing.
        assert (asked["get"], asked["head"]) == (2 * BATCHES + 1 + 4, 3 * BATCHES + 1)


async def test_of_very_many_whole_gatherings_are_taken_until_it_is_enough() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        now = SystemClock().wall_ns()
        for number in range(3):
            await gathered(field, number * BATCHES, at_ns=now - (3 - number) * HOUR)
        await field.accept("agent", "other", {0: Gauge("load", 1.0, START)}, at_ns=now)
        ran = await pipeline.run(store, ["reconcile"], options=Options(batches_at_once=BATCHES + 1))
        assert [each.summary["batches"] for each in ran] == [2 * BATCHES, BATCHES + 1]
        assert await reconcile(store) == {}
        await pipeline.run(store)
        await agrees(store, field.batches)


async def test_one_that_was_gathered_and_has_a_reference_too_is_looked_at_once() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        manifests = await gathered(field)
        await field.gather(manifests[0])  # alone: a reference by time
        assert (await reconcile(store))["looked_at"] == BATCHES
        now = SystemClock().wall_ns()
        asked = {"since_ns": now - HOUR, "until_ns": now + HOUR}
        ran = await pipeline.run(store, ["reconcile"], request=asked)
        assert [each.summary["batches"] for each in ran] == [BATCHES]
        # Gathered twice, as by a collector that was stopped while it wrote: nothing is due.
        await field.gather(*manifests)
        assert await reconcile(store) == {}


async def test_those_of_a_time_are_found_whatever_the_checkpoint_says() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        now = SystemClock().wall_ns()
        old = await gathered(field, at_ns=now - 5 * HOUR)
        new = await gathered(field, BATCHES, at_ns=now)
        found = await discover.between(store, now - HOUR, now + 1)
        assert set(found.keys) == {each.key for each in new}
        found = await discover.between(store, 0, now - HOUR)
        assert set(found.keys) == {each.key for each in old}


async def test_a_gathering_of_batches_that_landed_hours_late_is_found_by_the_look_at_the_day_before() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        now = SystemClock().wall_ns()
        await gathered(field, at_ns=now)
        await reconcile(store)
        await gathered(field, BATCHES, at_ns=now - 6 * HOUR)
        checkpoints = Checkpoints(store, store.ambient)
        before = await checkpoints.read()
        assert before is not None
        recent = await checkpoints.read_recent(before.recent)
        later = await discover.by_time(store, before, recent, overlap_ns=600 * SECOND, now_ns=now + 2 * HOUR, limit=10)
        assert (len(later.keys), later.deep) == (BATCHES, True)


async def test_one_that_cannot_be_read_is_reported_and_its_batches_are_found_by_a_full_scan() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await gathered(field)
        [key] = [key async for key in store.keys(ingest.GATHERINGS)]
        await store.put(key, b'{"schema":"holdfast.acceptances.v9"}', OVERWRITE)
        assert (await reconcile(store))["batches"] == 0
        assert [(str(each.problem.finding), each.problem.key) for each in await problems.every(store)] == [
            ("foreign_object", key)
        ]
        assert await reconcile(store) == {}
        ran = await pipeline.run(store, ["reconcile"], request={"full": True})
        assert ran[0].summary["batches"] == BATCHES


async def test_a_question_finds_them_before_any_reconciler_and_after(tmp_path: Path) -> None:
    async with open_store(f"file:{tmp_path}") as store:
        field = Field(store)
        await gathered(field)
        metrics = Metrics(store, store.ambient, Limits())
        usage = store.usage.requests("get")
        found = await metrics.query("load", **SPAN)
        assert [each.values for each in found.series] == [[TOTAL]]
        # The gathering and the bytes; the checkpoint, and what was covered, are not there yet.
        assert store.usage.requests("get") - usage == 1 + BATCHES + 2
        await reconcile(store)
        assert [each.values for each in (await metrics.query("load", **SPAN)).series] == [[TOTAL]]
        await gathered(field, BATCHES)
        again = await metrics.query("load", **SPAN)
        assert [each.values for each in again.series] == [[float(sum(range(6 * BATCHES)))]]


async def test_a_query_collector_brings_them_in_and_looks_only_at_what_was_written_since() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        live = Live(store.ambient.clock, max_bytes=1 << 24, window_ns=HOUR)
        follower = Follower(store, live, store.ambient.clock, Limits())
        await gathered(field)
        assert await follower.rebuild() == BATCHES
        assert await follower.poll() == 0
        await gathered(field, BATCHES)
        gets = store.usage.requests("get")
        assert await follower.poll() == BATCHES
        assert store.usage.requests("get") - gets == 1 + BATCHES
        await reconcile(store)  # which writes references of what is known
        gets = store.usage.requests("get")
        assert (await follower.poll(), store.usage.requests("get") - gets, follower.problems) == (0, 0, 0)


async def test_an_audit_misses_their_references_only_after_the_reconciler_was_there() -> None:
    async with place() as here:
        field = here.field
        manifests = await gathered(field, at_ns=START + 2 * HOUR)
        here.clock.pass_by(HOUR)
        assert wrong(await here.audit()) == set()
        await here.derive()
        assert wrong(await here.audit()) == set()
        await gathered(field, BATCHES, at_ns=here.clock.wall_ns())
        await here.derive()
        assert wrong(await here.audit()) == set()
        gone = manifests[0]
        await here.store.delete(ingest.accepted_by_time_key(gone.accepted_at_unix_ns, gone.identity))
        assert wrong(await here.audit()) == {("missing_by_time", gone.key)}
