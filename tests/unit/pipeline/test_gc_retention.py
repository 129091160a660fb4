"""Retention: bytes are removed once every hour of their records is closed. What a closed hour counted stays."""

import json
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import NotFound
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.gc import batches, orphans
from holdfast.pipeline.gc.derived import NEEDED
from holdfast.pipeline.gc.options import rollup_ages
from holdfast.pipeline.jobs.derive import Derive
from holdfast.pipeline.jobs.reconcile import Reconcile
from holdfast.pipeline.options import Env, Options
from holdfast.pipeline.publish import close
from holdfast.sim.scenarios.pipeline import Straight
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept import references
from holdfast.telemetry.accept.conflicts import Resolution, Resolutions, record_conflict
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.orphans import Fate
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.answer import Answer
from holdfast.telemetry.query.logs import Logs
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.records import Counter, Gauge, Log
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Generation, Kind, read_generation
from tests.unit.pipeline.field import START, Field
from tests.unit.pipeline.gc_desk import DAY, HOUR, GcDesk

SECOND = 1_000_000_000
WINDOWS = ("10s", "1m", "1h", "1d")


class Ground(GcDesk):
    def __init__(self) -> None:
        super().__init__()
        self.options = replace(self.options, raw_batches_ns=30 * DAY, logs_ns=30 * DAY)
        self.field = Field(self.store)
        self.turn = count()
        self.watch.ns = START + 10 * DAY

    def jobs(self, store: Store | None = None) -> list[Any]:
        own = self.store if store is None else store
        env = Env(own, self.ambient, Inline(), Options(windows=Windows.of(WINDOWS), records_per_unit=50))
        return [Reconcile(env), Derive(env)]

    async def derive(self, request: Document | None = None) -> Document:
        reconcile, derive = self.jobs()
        found: Document = await reconcile.run(Straight(f"reconcile-{next(self.turn)}"), request or {})
        await derive.run(Straight(f"derive-{next(self.turn)}"), {})
        self.later(HOUR)
        return found

    async def scan(self) -> Document:
        """A full scan, after which hours may be closed."""
        began_ns = await Checkpoints(self.store, self.ambient).store_now()
        self.later(SECOND)
        return await self.derive({"full": True, "began_ns": began_ns})

    async def current(self, hour: int = 0) -> Generation:
        found = await read_generation(self.store, Kind.ROLLUP, START // HOUR + hour)
        assert found is not None
        return found

    async def late(self) -> list[str]:
        return self.keys("meta/pipeline/problems/v1/too_late/")

    async def accept(self, agent: str, records: dict[int, Any]) -> AcceptedManifest:  # type: ignore[override]
        """Late or not, it is accepted now."""
        found = await self.field.accept(agent, "boot", records, at_ns=self.watch.wall_ns())
        self.later(SECOND)
        return found

    async def expire(self, run_id: str = "expire") -> Document:
        self.later(31 * DAY)
        await self.scan()
        found: Document = (await self.run("expire-batches", run_id=run_id))["kinds"]["expire-batches"]
        return found

    def metrics(self) -> Metrics:
        return Metrics(self.store, self.ambient, Limits())

    async def asked(
        self, metric: str, aggregate: str, step: str = "1h", hours: int = 4
    ) -> dict[tuple[str, int], float]:
        answer = await self.metrics().query(
            metric, since=START, until=START + hours * HOUR, step=step, aggregate=aggregate, by=["agent"]
        )
        assert answer.read.unreadable == ()
        return {
            (each.labels["agent"], at): value
            for each in answer.series
            for at, value in zip(each.times_ns, each.values, strict=True)
        }


def gauges(start: int, count: int, at: int = 0, value: float = 1.0) -> dict[int, Any]:
    return {
        seq: Gauge("m", value + seq, START + at + (seq - start) * SECOND, {}) for seq in range(start, start + count)
    }


async def test_bytes_go_once_counted_and_the_manifest_says_so_for_ever() -> None:
    ground = Ground()
    manifest = await ground.accept("a", gauges(0, 10))
    ground.later(31 * DAY)
    early = (await ground.run("expire-batches", run_id="early"))["kinds"]["expire-batches"]
    assert early["kept"] == {close.NOT_DERIVED: 1}
    await ground.derive()
    before = await ground.asked("m", "sum")
    found = await ground.expire()
    assert found["removed"] == {batches.EXPIRED: 1, batches.DERIVED: 2}
    assert ground.keys(ingest.BLOBS) == []
    assert manifest.key in ground.shelf.objects
    record = await find_expired(ground.store, manifest.identity)
    assert record is not None
    assert (record.frame_sha256, record.policy) == (manifest.frame_sha256, "retention.raw_batches_s = 2592000")
    assert [key.rpartition("/")[2] for key in record.generations] == ["rollup-00000002.json"]
    assert record.hours == (START // HOUR,)
    assert await ground.asked("m", "sum") == before == {("a", START): 55.0}
    assert (await ground.expire("again"))["removed"] == {}


class Killed(BaseException):
    pass


class DiesAt(Layer):
    """A store whose process is killed at one of its writes or deletes."""

    def __init__(self, store: Store, at: int) -> None:
        super().__init__(store)
        self.left = at

    def _count(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        self._count()
        return await super().put(key, body, mode)

    async def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._count()
            await super().delete_many([key])


@pytest.mark.parametrize("at", range(0, 30, 2))
async def test_the_next_run_finishes_what_a_killed_one_left(at: int) -> None:
    ground = Ground()
    for number in range(3):
        await ground.accept(f"agent-{number}", gauges(0, 5))
    await ground.derive()
    ground.later(31 * DAY)
    await ground.scan()
    with suppress(Killed):
        await ground.run("expire-batches", run_id="killed", store=DiesAt(ground.store, at))
    await ground.expire("next")
    assert ground.keys(ingest.BLOBS) == []
    assert ground.keys(ingest.ACCEPTED_BY_BLOB) == []


async def test_after_expiry_steps_of_a_kept_window_are_equal_and_others_are_widened_with_a_warning() -> None:
    ground = Ground()
    await ground.accept("a", {n: Counter("c", 7 * n % 50, START + n * 13 * SECOND, {}) for n in range(400)})
    await ground.derive()

    async def ask(step: str, aggregate: str = "sum") -> Answer:
        return await ground.metrics().query("c", since=START, until=START + 2 * HOUR, step=step, aggregate=aggregate)

    aggregates, steps = ("rate", "increase", "sum", "last"), ("10s", "20s", "1m", "7m", "1h")
    before = {(step, aggregate): await ask(step, aggregate) for step in steps for aggregate in aggregates}
    assert (await ground.expire())["removed"][batches.EXPIRED] == 1
    for (step, aggregate), wanted in before.items():
        found = await ask(step, aggregate)
        assert found.series == wanted.series
        assert (found.read.expired, found.read.warnings) == ((), [])
    for asked, given in (("7s", "10s"), ("15s", "20s"), ("125s", "130s")):
        found = await ask(asked)
        assert found.document()["step"] == given
        assert sum(found.series[0].values) == sum(7 * n % 50 for n in range(400))
        [warning] = found.read.warnings
        assert warning.startswith(f"steps of {asked} were widened to {given}: ")
        assert warning.endswith("the smallest window that is kept of them is 10s")


async def forged_reference(ground: Ground, kept: AcceptedManifest, victim: AcceptedManifest) -> str:
    """A reference like those of older versions, whose copy of the manifest names the bytes of another batch."""
    wrong = {**kept.document(), "raw_blob_key": victim.raw_blob_key, "frame_sha256": victim.frame_sha256}
    key = ingest.accepted_by_time_key(kept.accepted_at_unix_ns, kept.identity)
    body = {"schema": references.ACCEPTED_BY_TIME_SCHEMA, "accepted_manifest_key": kept.key, "accepted_manifest": wrong}
    await ground.store.put(key, codec.encode(body))
    return kept.raw_blob_key


async def forged_place(ground: Ground, kept: AcceptedManifest, victim: AcceptedManifest) -> None:
    """A reference to the victim where its manifest does not put it."""
    await ground.store.delete(ingest.accepted_by_time_key(kept.accepted_at_unix_ns, kept.identity))
    await ground.store.delete(ingest.accepted_by_time_key(victim.accepted_at_unix_ns, victim.identity))
    key = ingest.accepted_by_time_key(victim.accepted_at_unix_ns - DAY, victim.identity)
    await ground.store.put(key, references.by_time(victim).body)


async def forged_manifest(ground: Ground, kept: AcceptedManifest, victim: AcceptedManifest) -> None:
    """An accepted manifest that names the bytes of another identity as its own."""
    for each in (kept, victim):
        await ground.store.delete(ingest.accepted_by_time_key(each.accepted_at_unix_ns, each.identity))
    identity = replace(victim.identity, boot_id="forged")
    forged = replace(victim, identity=identity)
    await ground.store.put(forged.key, forged.encode())
    await ground.store.put(references.by_time(forged).key, references.by_time(forged).body)


@pytest.mark.parametrize("forge", [forged_reference, forged_place, forged_manifest])
async def test_nothing_goes_because_of_a_forged_reference_or_manifest(forge: Any) -> None:
    ground = Ground()
    kept, victim = [await ground.accept(agent, gauges(0, 10)) for agent in ("a", "b")]
    ground.options = replace(ground.options, raw_batches_ns=20 * DAY)
    await ground.derive()
    ground.later(10 * DAY)
    goes = await forge(ground, kept, victim)
    await ground.expire()
    there = set(ground.keys(ingest.BLOBS))
    if goes is None:
        assert there == {kept.raw_blob_key, victim.raw_blob_key}
    else:  # both have references, and both may go: each by its own manifest
        assert there == set()
        assert (await find_expired(ground.store, kept.identity)).frame_sha256 == kept.frame_sha256  # type: ignore[union-attr]


async def test_bytes_that_an_open_conflict_names_stay_until_it_is_resolved() -> None:
    ground = Ground()
    manifest = await ground.accept("a", gauges(0, 10))
    await ground.derive()
    other = await record_conflict(ground.store, ground.ambient, manifest, "ab" * 32, collector_id="c")
    assert (await ground.expire())["kept"] == {batches.EVIDENCE: 1}
    resolutions = Resolutions(ground.store, ground.ambient)
    final = Resolution.EXISTING_IS_AUTHORITATIVE
    await resolutions.decide(manifest.identity, other.submitted_frame_sha256, final, by="ann", why="seen")
    assert other.key in ground.keys(ingest.CONFLICTS)
    removed = (await ground.expire("again"))["removed"]
    assert (removed[batches.EXPIRED], removed[orphans.RESOLVED]) == (1, 2)
    assert ground.keys(ingest.CONFLICTS) == []  # it named the bytes that are gone


async def test_expired_bytes_that_come_again_stay_while_an_open_conflict_names_them() -> None:
    ground = Ground()
    manifest = await ground.accept("a", gauges(0, 10))
    body = ground.shelf.objects[manifest.raw_blob_key].body
    await ground.derive()
    await ground.expire()
    other = await record_conflict(ground.store, ground.ambient, manifest, "ab" * 32, collector_id="c")
    await ground.store.put(manifest.raw_blob_key, body)
    ground.later(8 * DAY)
    await ground.audit()
    assert (await ground.run("orphans"))["kinds"]["orphans"]["kept"] == {Fate.EVIDENCE.value: 1}
    final, resolutions = Resolution.EXISTING_IS_AUTHORITATIVE, Resolutions(ground.store, ground.ambient)
    await resolutions.decide(manifest.identity, other.submitted_frame_sha256, final, by="ann", why="seen")
    removed = (await ground.run("orphans", run_id="again"))["kinds"]["orphans"]["removed"]
    assert removed == {Fate.EXPIRED.value: 1, orphans.RESOLVED: 2}
    assert ground.keys(ingest.BLOBS) == ground.keys(ingest.CONFLICTS) == []


async def test_nobody_calls_an_expired_batch_missing_and_bytes_that_come_again_go_again() -> None:
    ground = Ground()
    manifest = await ground.accept("a", gauges(0, 10) | {10: Log("disk is full", START)})
    body = ground.shelf.objects[manifest.raw_blob_key].body
    await ground.derive()
    await ground.expire()
    await ground.store.put(manifest.raw_blob_key, body)  # as a collector does that is sent it again
    summary = await ground.scan()
    assert (summary["expired"], summary["batches"], summary["problems"]) == (1, 0, 0)
    assert summary["references_written"] == 0
    ground.later(8 * DAY)
    await ground.audit()
    await ground.run("orphans", run_id="orphans")
    assert ground.keys(ingest.BLOBS) == []
    logs = await Logs(ground.store, ground.ambient, Limits()).search("disk", since=START, until=START + HOUR)
    assert (logs.rows, len(logs.read.expired), logs.read.unreadable) == ([], 1, ())
    await ground.accept("a", gauges(20, 5))
    wider = await ground.metrics().query("m", since=START, until=START + HOUR, step="3s", aggregate="count")
    assert (sum(wider.series[0].values), wider.read.expired, wider.read.unreadable) == (10.0, (), ())
    with pytest.raises(NotFound, match="no metric 'n' has samples"):
        await ground.metrics().query("n", since=START, until=START + HOUR, step="3s")


async def test_batches_with_logs_are_kept_as_long_as_logs_are() -> None:
    ground = Ground()
    ground.options = replace(ground.options, logs_ns=None)
    await ground.accept("a", gauges(0, 3))
    await ground.accept("a", {10: Log("disk is full", START)})
    await ground.derive()
    assert (await ground.expire())["removed"][batches.EXPIRED] == 1
    ground.options = replace(ground.options, logs_ns=365 * DAY)
    assert batches.EXPIRED not in (await ground.expire("half"))["removed"]
    ground.later(365 * DAY)
    assert (await ground.expire("late"))["removed"][batches.EXPIRED] == 1


async def test_a_batch_that_comes_after_its_hour_was_closed_changes_nothing_and_is_reported() -> None:
    ground = Ground()
    await ground.accept("a", gauges(0, 10))
    await ground.derive()
    await ground.expire()
    before = await ground.current()
    assert before.counted == {("a", "boot"): ((0, 9),)}
    late = await ground.accept("a", gauges(20, 5, at=60 * SECOND))
    assert await ground.asked("m", "count") == {("a", START): 10.0}  # before it is derived
    await ground.derive()
    assert await ground.current() == before
    assert await ground.asked("m", "count") == {("a", START): 10.0}
    assert len(await ground.late()) == 1
    found = await ground.expire("second")
    assert found["kept"] == {batches.TOO_LATE: 1}
    # Its bytes are there, but a step that no kept window divides is widened all the same.
    odd = await ground.metrics().query("m", since=START, until=START + HOUR, step="7s", aggregate="count", by=[])
    assert (odd.document()["step"], sum(odd.series[0].values)) == ("10s", 10.0)
    assert len(odd.read.warnings) == 1
    assert ground.keys(ingest.BLOBS) == [late.raw_blob_key]


class NothingTaken(Layer):
    """The generation that closes an hour does not say what it has counted."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith(layout.MANIFESTS) and b'"counted":' in body:
            body = codec.encode({**json.loads(body), "counted": []})
        return await super().put(key, body, mode)


@pytest.mark.parametrize(("layer", "counted"), [(Layer, 15.0), (NothingTaken, 20.0)])
async def test_unless_numbers_of_closed_hours_are_taken_they_count_twice(layer: type[Layer], counted: float) -> None:
    ground = Ground()
    await ground.accept("a", gauges(10, 10))
    await ground.derive()
    ground.later(31 * DAY)
    await ground.scan()
    await ground.run("expire-batches", store=layer(ground.store))
    await ground.accept("a", gauges(5, 10, at=HOUR, value=100.0))  # claims 10 to 14 for another hour
    for derived in (False, True):
        if derived:
            await ground.derive()
        asked = await ground.metrics().query(
            "m", since=START, until=START + 2 * HOUR, step="1h", aggregate="count", by=[]
        )
        assert sum(asked.series[0].values) == counted


async def test_what_a_closed_hour_did_not_count_is_free_and_what_is_too_late_takes_no_number() -> None:
    ground = Ground()
    await ground.accept("a", {seq: each for seq, each in gauges(0, 10).items() if seq % 2 == 0 or seq == 9})
    await ground.derive()
    await ground.expire()  # which closes the first hour
    await ground.accept("a", gauges(0, 9, at=HOUR))  # 0, 2, 4, 6 and 8 are taken
    await ground.accept("b", gauges(10, 10, at=HOUR))
    await ground.accept("b", gauges(8, 5))  # the lower identity has 10 to 12 too, in the hour that is closed
    expected = {("a", START): 6.0, ("a", START + HOUR): 4.0, ("b", START + HOUR): 10.0}
    for derived in (False, True):
        if derived:
            await ground.derive()
        assert await ground.asked("m", "count") == expected
    assert len(await ground.late()) == 1


async def test_nothing_expires_while_a_chunk_is_damaged_or_a_listing_not_covered() -> None:
    ground = Ground()
    await ground.accept("a", gauges(0, 10))
    await ground.derive()
    await ground.accept("a", gauges(20, 5))
    await ground.jobs()[0].run(Straight("late"), {})
    ground.later(31 * DAY)
    found = (await ground.run("expire-batches", run_id="early"))["kinds"]["expire-batches"]
    assert set(found["kept"]) == {close.NOT_COVERED}
    await ground.scan()
    for name in ground.keys(layout.INDEX):
        whole = ground.shelf.objects[name].body
        await ground.store.put(name, whole[:-1] + b"x")
    assert set((await ground.expire("damaged"))["kept"]) == {close.DAMAGED}
    assert len(ground.keys(ingest.BLOBS)) == 2


async def test_windows_past_their_retention_are_let_go_hour_by_hour() -> None:
    ground = Ground()
    ground.options = replace(ground.options, rollups_ns=rollup_ages("10s=30d, 1m=90d, 1h=1d"))
    await ground.accept("a", gauges(0, 10))
    await ground.derive()
    ground.later(40 * DAY)
    found = (await ground.run("expire-rollups"))["kinds"]["expire-rollups"]
    assert found["did"] == {"window 10s let go": 1}
    assert found["kept"] == {NEEDED: 1}
    assert (await ground.run("expire-rollups", run_id="run-2"))["kinds"]["expire-rollups"]["did"] == {}
    ground.later(2 * HOUR)
    await ground.run("derived", run_id="run-3")
    assert ground.keys(f"{layout.ROLLUP}window=10s/") == []
    assert await ground.asked("m", "count", step="10s") == {("a", START): 10.0}  # from the batch itself
    await ground.accept("a", gauges(20, 5, at=60 * SECOND))
    await ground.derive()
    generation = await read_generation(ground.store, Kind.ROLLUP, START // HOUR)
    assert generation is not None
    assert {ref.window_ns // SECOND for unit in generation.units for ref in unit.chunks} - {0} == {60, 3600}
    assert generation.expired == ("10s",)
    assert await ground.asked("m", "count") == {("a", START): 15.0}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
async def test_whatever_expires_when_counts_sums_and_extremes_are_those_of_plain_python(seed: int) -> None:
    """Batches come in time, late and sharing numbers; hours are closed in between. Each record counts once, unless its
    hour was closed before its batch came; numbers of closed hours never change.
    """
    rng = random.Random(seed)
    ground = Ground()
    plain: dict[tuple[str, int], tuple[int, float]] = {}
    next_seq = {"a": 0, "b": 0}
    for turn in range(6):
        ended = {hour for hour in range(3) if await closed(ground, hour)}
        for _ in range(rng.randrange(1, 4)):
            agent = rng.choice("ab")
            start = max(0, next_seq[agent] - rng.choice((0, 0, 2)))
            records = {}
            for seq in range(start, start + rng.randrange(2, 7)):
                # The same number always says the same: which batch counts it does not matter then.
                at = START + (seq * 7919 % 3) * HOUR + (seq * 104_729 % 3600) * SECOND
                records[seq] = (Gauge if seq % 3 else Counter)("m" if seq % 3 else "n", float(seq % 11), at, {})
                if (at - START) // HOUR not in ended:
                    plain.setdefault((agent, seq), (at // HOUR * HOUR, float(seq % 11)))
            await ground.accept(agent, records)
            next_seq[agent] = max(next_seq[agent], start + len(records))
        await ground.derive()
        if turn > 2 and rng.random() < 0.5:
            await ground.expire(f"expire-{turn}")
            await ground.run("derived", run_id=f"gc-{turn}")
    for metric, residue in (("m", False), ("n", True)):
        expected: dict[tuple[str, int], list[float]] = {}
        for (agent, seq), (hour, value) in plain.items():
            if (seq % 3 == 0) is residue:
                expected.setdefault((agent, hour), []).append(value)
        for aggregate, function in (("count", len), ("sum", sum), ("min", min), ("max", max)):
            wanted = {key: float(function(values)) for key, values in expected.items()}
            assert await ground.asked(metric, aggregate) == wanted, (metric, aggregate)


async def closed(ground: Ground, hour: int) -> bool:
    found = await read_generation(ground.store, Kind.ROLLUP, START // HOUR + hour)
    return found is not None and found.is_closed
