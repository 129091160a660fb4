"""How an audit goes about it: killed and resumed, beside writers, from a report, at what cost, in how much memory."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.audit import Look
from holdfast.base.errors import NotFound
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Meta, Object, Store
from holdfast.pipeline.engine import relations, staged
from holdfast.pipeline.engine.local import MEMORY
from holdfast.pipeline.engine.staged import Part, Staged, Target
from holdfast.pipeline.jobs import audit, audited
from holdfast.pipeline.jobs.audit import Audit
from holdfast.pipeline.jobs.audited import KEPT, Scope
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.discover import LATE_NS
from tests.tidy.tree import ROOT
from tests.unit.pipeline.audit_desk import MINUTE, Place, place, wrong
from tests.unit.pipeline.field import HOUR
from tests.unit.pipeline.healthy import AGENTS, collect, collecting, frame
from tests.unit.pipeline.healthy_others import errand
from tests.unit.pipeline.test_reconcile import inventory_of


async def batches(here: Place, count: int, *, first: int = 0) -> None:
    """So many batches of one agent, reconciled and old."""
    async with collecting(here) as collector:
        for number in range(first, first + count):
            at_ns = here.clock.now_ns - 20 * MINUTE
            await collect(here, collector, frame("web-1", number * 100, 3, at_ns, number))
    await pipeline.run(here.store, ["reconcile"], options=here.options)
    here.clock.pass_by(LATE_NS + HOUR)
    await pipeline.run(here.store, ["reconcile"], options=here.options)
    here.clock.pass_by(HOUR)


class Died(BaseException):
    """The driver is no more."""


@pytest.mark.parametrize("step", ["claims", "record"])
async def test_the_next_driver_continues_where_a_dead_one_stopped(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place() as here:
        await batches(here, 3)
        stage, publish = staged.publish, Audit._publish

        async def stage_and_die(store: Store, target: Target, parts: list[Part]) -> Staged:
            found = await stage(store, target, parts)
            if target.name == step:
                raise Died
            return found

        async def publish_and_die(self: Audit, *args: Any) -> None:
            await publish(self, *args)
            raise Died

        with monkeypatch.context() as patched:
            if step == "record":
                patched.setattr(Audit, "_publish", publish_and_die)
            else:
                patched.setattr(relations, "publish", stage_and_die)
            with pytest.raises(Died):
                await here.audit()
        ran = (await pipeline.run(here.store, ["audit"], options=here.options, takeover=True))[0]
        assert ran.resumed
        record = await audited.read(here.store, ran.summary["audit_id"])
        assert (record.good, record.checked["accepted"]) == (True, 3)
        assert [key async for key in here.store.keys(staged.STAGED)] == []


async def test_writers_at_work_are_no_finding() -> None:
    """Collectors, the pipeline, runs and events go on while audits look, with time enough to be judged in between."""
    async with place() as here:
        stop = asyncio.Event()

        async def write(turn: int) -> None:
            async with collecting(here) as collector:
                for number, agent in enumerate(AGENTS):
                    at_ns = here.clock.now_ns - 20 * MINUTE
                    await collect(here, collector, frame(agent, turn * 100, 6, at_ns, turn * 10 + number))
                    await asyncio.sleep(0)
            await errand.start(here.store, 8, run_id=f"errand-{turn}")
            await here.derive()

        async def audit_all_the_while() -> int:
            count = 0
            while not stop.is_set():
                record = await here.audit()
                assert wrong(record) == set()
                count += 1
            return count

        for turn in range(2):
            await write(turn)  # what the next audits judge
            auditing = asyncio.ensure_future(audit_all_the_while())
            await write(10 + turn)
            stop.set()
            assert await auditing >= 1
            stop.clear()


async def test_a_report_names_the_manifests(tmp_path: Path) -> None:
    async with place() as here:
        await batches(here, 3)
        keys = [key async for key in here.store.keys(ingest.ACCEPTED)]
        report = inventory_of(tmp_path, "csv", keys[:2])
        with pytest.raises(AssertionError, match="does not say when it was made"):
            await here.audit(inventory=str(report), scopes=["ingest"])
        made_ns = here.clock.now_ns
        document = json.loads(report.read_text())
        report.write_text(json.dumps({**document, "creationTimestamp": str(made_ns // 1_000_000)}))
        record = await here.audit(inventory=str(report), scopes=["ingest"])
        assert (record.source, record.checked["accepted"]) == ("inventory", 2)
        assert record.through_unix_ns == made_ns // 1_000_000 * 1_000_000 - LATE_NS
        assert record.good
        # What the report does not name is followed from its references and its bytes, and found.
        assert record.checked["references followed"] == 3
        await here.store.delete(keys[0])
        lost = await here.audit(inventory=str(report), scopes=["ingest"])
        assert lost.found == {"dangling_by_blob": 1, "orphan_blob": 1}


async def test_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch: one request, for its manifest. Everything else is listing, and does not grow with batches but by the
    thousand.
    """
    monkeypatch.setattr(audit, "ONE_IN", 10**9)
    spent: list[dict[str, int]] = []
    for count in (4, 10):
        async with place() as here:
            await batches(here, count)
            before = dict(here.store.usage.by_verb)
            record = await here.audit(scopes=["ingest"])
            assert (record.good, record.checked["accepted"], record.checked["references"]) == (True, count, 3 * count)
            found = {verb: n - before.get(verb, 0) for verb, n in here.store.usage.by_verb.items()}
            spent.append(found)
    few, many = spent
    assert {verb: many[verb] - few[verb] for verb in ("get", "head", "put")} == {"get": 6, "head": 0, "put": 0}
    assert all(each["list"] <= 10 + 10 * 8 for each in spent)  # ten prefixes, each in eight parts at the most


async def test_of_many_findings_the_first_are_on_record_and_all_in_a_list() -> None:
    async with place() as here:
        for number in range(KEPT + 7):
            await here.store.put(f"{ingest.ACCEPTED}stray-{number:03d}", b"", OVERWRITE)
        here.clock.pass_by(HOUR)
        record = await here.audit(scopes=["ingest"])
        assert record.found == {"foreign_object": KEPT + 7}
        assert len(record.findings) == KEPT
        (key,) = record.lists
        lines = [json.loads(line) for line in (await here.store.get(key)).body.splitlines()]
        assert [line["key"][-3:] for line in lines] == [f"{number:03d}" for number in range(KEPT + 7)]


@pytest.mark.soak
@pytest.mark.timeout(900)  # a million keys, in a process of its own
def test_one_process_grows_by_no_more_than_its_memory_setting() -> None:
    command = [sys.executable, "-m", "bench.audit", "--one", "1000000"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    in_the_store_mib = 64  # staged tables, which this store holds in memory
    assert max(each["driver_growth_mib"] for each in found.values()) < MEMORY / 2**20 + in_the_store_mib


def test_only_some_bytes_are_read_and_others_each_time() -> None:
    keys = [f"key-{number}" for number in range(20_000)]
    chosen = [{key for key in keys if Look(0, 64, salt).closely(key)} for salt in ("one", "two")]
    assert all(200 < len(each) < 450 for each in chosen)
    assert len(chosen[0] & chosen[1]) < 40
    assert all(Look(0, 1).closely(key) for key in keys[:100])


async def test_what_waits_for_the_reconciler_is_not_wrong_and_what_it_cannot_find_is() -> None:
    async with place() as here:
        async with collecting(here) as collector:
            for number in range(3):
                await collect(here, collector, frame("web-1", number * 100, 3, here.clock.now_ns - MINUTE, number))
        here.clock.pass_by(HOUR)
        record = await here.audit()
        assert (wrong(record), record.checked["not reconciled yet"]) == (set(), 3)
        await here.store.delete_many([key async for key in here.store.keys(ingest.ACCEPTED_BY_TIME)])
        keys = [key async for key in here.store.keys(ingest.ACCEPTED)]
        assert wrong(await here.audit()) == {("missing_by_time", key) for key in keys}


async def test_what_is_young_is_not_judged_yet() -> None:
    async with place() as here:
        with pytest.raises(AssertionError, match="there is nothing called 'wires' to audit"):
            await here.audit(scopes=["wires"])
        await batches(here, 2)
        stray = f"{ingest.ACCEPTED}stray"
        await here.store.put(stray, b"", OVERWRITE)
        assert wrong(await here.audit()) == set()
        assert wrong(await here.audit(older_than_ns=0)) == {("foreign_object", stray)}
        here.clock.pass_by(11 * MINUTE)
        assert wrong(await here.audit()) == {("foreign_object", stray)}


async def test_what_is_seen_once_is_not_believed() -> None:
    """A blob that is missed by the first look and found by the second: a writer was at work."""

    class Blinks(Layer):
        async def head(self, key: str) -> Meta:
            self._blink(key)
            return await super().head(key)

        async def get(self, key: str) -> Object:
            self._blink(key)
            return await super().get(key)

        def _blink(self, key: str) -> None:
            if key.startswith(ingest.BLOBS) and key not in blinked:
                blinked.add(key)
                raise NotFound(f"{key}: not now")

    blinked: set[str] = set()
    async with place() as here:
        await batches(here, 3)
        here.store.backend = Blinks(here.store.backend)
        assert wrong(await here.audit(scopes=["ingest"], deep=True)) == set()
        assert blinked


async def test_a_manifest_that_cannot_be_read_makes_the_audit_no_proof() -> None:
    async with place() as here:
        await batches(here, 2)
        assert (await here.audit()).complete(Scope.INGEST)
        key = min([key async for key in here.store.keys(ingest.ACCEPTED)])
        await here.store.put(key, b"{", OVERWRITE)
        here.clock.pass_by(HOUR)
        record = await here.audit()
        assert record.incomplete == {"ingest": "1 corrupt_manifest"}
        latest = await audited.latest_complete(here.store, Scope.INGEST)
        assert latest is not None
        assert latest.audit_id != record.audit_id
        assert record.complete(Scope.RUNS)
