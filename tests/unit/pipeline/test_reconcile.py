"""Reconciling: what is found, what is mended, what is reported, and what it costs."""

import asyncio
import gzip
import hashlib
import io
import json
import random
from pathlib import Path
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import pipeline
from holdfast.base import codec
from holdfast.base.clock import SystemClock
from holdfast.base.config import Settings
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.memory import MemoryStore
from holdfast.objects.open import open_store
from holdfast.objects.store import OVERWRITE, Object
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline import Inline, Options, drive, problems
from holdfast.pipeline import reports as sources
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.jobs.reconcile import Reconcile
from holdfast.pipeline.options import Env
from holdfast.sim.scenarios.pipeline import Straight
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.conflicts import record_conflict
from holdfast.telemetry.discover import Rule, reconciled_position, scan
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.records import Gauge
from tests.unit.pipeline.field import HOUR, SECOND, START, Field, agrees

FULL = {"full": True}


class Ahead(SystemClock):
    def __init__(self, hours: int) -> None:
        self.wall_ns = lambda: SystemClock.wall_ns() + hours * HOUR  # as one that is wrong


def gauges(first: int, count: int = 3, at: int = START) -> dict[int, Gauge]:
    return {seq: Gauge("load", float(seq), at + seq * SECOND) for seq in range(first, first + count)}


async def reconcile(store: Client, request: dict | None = None) -> dict:
    ran = await pipeline.run(store, ["reconcile"], request=request)
    assert [each.status for each in ran] == ["success"] * len(ran)
    return ran[-1].summary if ran else {}


async def found(store: Client) -> list[tuple[str, str]]:
    return [(str(each.problem.finding), each.problem.key) for each in await problems.every(store)]


class TestReferences:
    async def test_a_batch_without_references_is_found_by_a_full_scan_and_gets_them(self) -> None:
        async with open_store("memory:") as store:
            field = Field(store)
            assert await reconcile(store) == {}
            manifest = await field.accept("agent", "boot", gauges(0), refer=False)
            assert await reconcile(store) == {}
            summary = await reconcile(store, FULL)
            assert (summary["batches"], summary["references_written"]) == (1, 3)
            by_blob = ingest.accepted_by_blob_key(manifest.frame_sha256, manifest.identity)
            keys = {key async for key in store.keys("")}
            assert ingest.accepted_by_time_key(manifest.accepted_at_unix_ns, manifest.identity) in keys
            assert ingest.blob_by_time_key(manifest.accepted_at_unix_ns, manifest.frame_sha256) in keys
            assert by_blob in keys
            await store.delete(by_blob)  # as a crash may leave it; and a conflict without its reference
            conflict = await record_conflict(store, store.ambient, manifest, "ab" * 32, collector_id="c")
            assert (await reconcile(store, FULL))["references_written"] == 2
            assert (await store.head(ingest.conflict_by_blob_key("ab" * 32, conflict.identity))).size > 0
            for agent in ("one", "two", "three"):
                await field.accept(agent, "boot", gauges(0), refer=False)
            assert (await reconcile(store, {**FULL, "agents": ["two", "missing"]}))["batches"] == 1
            await pipeline.run(store, request=FULL)
            await agrees(store, field.batches)

    async def test_the_first_run_on_a_store_scans_everything_once(self) -> None:
        """Also on a store that other code has written: its checkpoint is of an older version, and has no position."""
        async with open_store("memory:") as store:
            old = {"format": "holdfast.pipeline.reconcile", "version": 1, "through_unix_ns": 7, "cursor_ns": 7}
            await store.put(ingest.RECONCILED, codec.encode(old))
            field = Field(store)
            for number in range(5):
                await field.accept("agent", "boot", gauges(10 * number), refer=number == 0)
            ran = await pipeline.run(store, ["reconcile"], options=Options(batches_at_once=2))
            assert [each.summary["batches"] for each in ran] == [5]
            assert await reconcile(store) == {}  # nor are the references that it wrote looked at again
            await field.accept("agent", "boot", gauges(100), at_ns=SystemClock().wall_ns())
            assert (await reconcile(store))["looked_at"] == 1
            await pipeline.run(store)
            await agrees(store, field.batches)

    async def test_a_service_scans_everything_once_per_period(self) -> None:
        async with open_store("memory:") as store:
            stop, looked_at = asyncio.Event(), list[list[int]]()

            async def on_round(ran: list[pipeline.Ran]) -> None:
                looked_at.append([each.summary["looked_at"] for each in ran if each.summary.get("looked_at")])
                if len(looked_at) == 3:
                    stop.set()

            await Field(store).accept("agent", "boot", gauges(0), refer=False)
            options = Options(full_scan_every_ns=HOUR)
            serving = drive.serve(
                store, ["reconcile"], every_s=0.0, stop=stop, engine=Inline(), options=options, on_round=on_round
            )
            await serving
            # The first round scans; the second follows the reference that was written; then there is nothing.
            assert looked_at[0] == [1]
            assert looked_at[2] == []
            checkpoint = await Checkpoints(store, store.ambient).read()
            assert checkpoint is not None
            assert checkpoint.full_at_unix_ns is not None

    async def test_the_batches_of_a_time_are_looked_at_again(self) -> None:
        async with open_store("memory:") as store:
            field = Field(store)
            for number in range(6):
                await field.accept("agent", "boot", gauges(10 * number, at=START + number // 2 * HOUR))
            await field.accept("agent", "boot", gauges(100, at=START + 9 * HOUR))
            asked = {"since_ns": START, "until_ns": START + 8 * HOUR}
            for _ in range(2):
                planned = await drive.preview(store, ["reconcile"], request=asked)
                assert sum(each.inputs for each in planned) == 6
                [ran] = await pipeline.run(store, ["reconcile"], request=asked)
                assert (ran.summary["looked_at"], ran.summary["batches"]) == (6, 6)
            await pipeline.run(store)
            await agrees(store, field.batches)


class TestBadInput:
    async def test_what_cannot_be_read_is_reported_and_the_rest_goes_on(self) -> None:
        async with open_store("memory:") as store:
            field = Field(store)
            missing = await field.accept("agent", "missing", gauges(0))
            corrupt = await field.accept("agent", "corrupt", gauges(0))
            newer = await field.accept("agent", "newer", gauges(0))
            odd = await field.accept("agent", "odd", gauges(0))
            del field.batches[:]
            await field.accept("agent", "good", gauges(0))
            kept = (await store.get(missing.raw_blob_key)).body
            await store.delete(missing.raw_blob_key)
            await store.put(corrupt.raw_blob_key, b"other bytes", OVERWRITE)
            document = {**json.loads((await store.get(newer.key)).body), "schema": "lightmetrics.accepted_batch.v9"}
            await store.put(newer.key, json.dumps(document).encode(), OVERWRITE)
            sha = hashlib.sha256(b"no frame at all").hexdigest()
            document = {**odd.document(), "frame_sha256": sha, "raw_blob_key": ingest.blob_key(sha)}
            await store.put(ingest.blob_key(sha), b"no frame at all")
            await store.put(odd.key, json.dumps(document).encode(), OVERWRITE)
            ahead = {3: Gauge("load", 9.0, START + 48 * HOUR)}  # than its acceptance: it is in no hour
            late = await field.accept("agent", "ahead", {**gauges(0), **ahead}, at_ns=START + 60 * SECOND)
            field.batches[-1] = decode(encode(pack("agent", "ahead", [*gauges(0).values()], seq_start=0)))
            foreign = f"{ingest.ACCEPTED}notes.txt"
            await store.put(foreign, b"foreign")
            ran = await pipeline.run(store)
            assert {each.status for each in ran} == {"success"}
            assert ran[0].summary["broken"] == 4
            assert sorted(await found(store)) == [
                ("corrupt_blob", corrupt.key),
                ("foreign_object", foreign),
                ("future_clock", late.key),
                ("missing_blob", missing.key),
                ("unknown_schema", newer.key),
                ("unreadable_frame", odd.key),
            ]
            await agrees(store, field.batches)
            # The operator restores the bytes: the next run takes the batch up.
            await store.put(missing.raw_blob_key, kept)
            await pipeline.run(store)
            assert "missing_blob" not in {finding for finding, _ in await found(store)}
            await agrees(store, [*field.batches, decode(kept)])


class TestByTime:
    async def test_a_reconciler_that_stalled_catches_up_slice_by_slice(self) -> None:
        async with open_store("memory:") as store:
            field = Field(store)
            await reconcile(store)
            for number in range(9):
                at_ns = SystemClock().wall_ns()
                await field.accept("agent", "boot", gauges(10 * number, at=START + number * HOUR), at_ns=at_ns)
            ran = await pipeline.run(store, ["reconcile"], options=Options(batches_at_once=4))
            assert [each.summary["batches"] for each in ran] == [4, 4, 1]
            await pipeline.run(store)
            await agrees(store, field.batches)

    async def test_a_reference_that_lands_hours_late_is_found_by_the_look_at_the_day_before(self) -> None:
        async with open_store("memory:") as store:
            field = Field(store)
            now = SystemClock().wall_ns()
            await field.accept("agent", "boot", gauges(0), at_ns=now)
            await reconcile(store)
            await field.accept("agent", "boot", gauges(10), at_ns=now - 6 * HOUR)
            position = await reconciled_position(store)
            assert position is not None
            clock = store.ambient.clock
            soon = await scan(store, clock, Rule(), position, deep=False)
            later = await scan(store, clock, Rule(), position, deep=True)
            assert (len(soon.new), len(later.new)) == (0, 1)
            assert (await reconcile(store)) == {}  # a deep look is made once an hour
            checkpoint = codec.decode((await store.get(ingest.RECONCILED)).body, key="")
            await store.put(ingest.RECONCILED, codec.encode({**checkpoint, "deep_at_unix_ns": 0}))
            assert (await reconcile(store))["batches"] == 1

    @pytest.mark.parametrize("next_driver", ["the same", "another"])
    async def test_a_driver_whose_clock_is_ahead_passes_nothing_over(self, tmp_path: Path, next_driver: str) -> None:
        place, fast = f"file:{tmp_path / 'store'}", Ambient(Ahead(200), random.Random(1))
        async with open_store(place) as right, open_store(place, ambient=fast) as ahead:
            field = Field(right)
            await field.accept("agent", "boot", gauges(0), at_ns=SystemClock().wall_ns())
            assert (await reconcile(ahead))["batches"] == 1
            driver = ahead if next_driver == "the same" else right
            for number in (1, 2):
                now = SystemClock().wall_ns()
                await field.accept("agent", "boot", gauges(10 * number, at=now - 60 * SECOND), at_ns=now)
                metrics = Metrics(right, right.ambient, Limits())
                found = await metrics.query("load", since="5m", aggregate="count", by=[])
                assert sum(found.series[0].values) == 3 * number
                # Its leases end by its own clock, so the other driver does not wait for them.
                [ran] = await pipeline.run(driver, ["reconcile"], takeover=True)
                assert (ran.status, ran.summary["looked_at"]) == ("success", 1)
                assert await pipeline.run(driver, ["reconcile"], takeover=True) == []

    async def test_requests_of_a_batch_and_of_a_round_with_nothing_new(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with open_store("memory:") as store:
            field = Field(store)
            now = SystemClock().wall_ns()
            await field.accept("agent", "boot", gauges(0), at_ns=now)
            job = Reconcile(Env(store, store.ambient, Inline()))
            await job.run(Straight("first"), {})
            for number in (1, 2):
                await field.accept("agent", "boot", gauges(10 * number), at_ns=now)
            read = list[str]()
            get = MemoryStore.get

            async def noting(memory: MemoryStore, key: str) -> Object:
                read.append(key)
                return await get(memory, key)

            with monkeypatch.context() as patched:
                patched.setattr(MemoryStore, "get", noting)
                await job.run(Straight("second"), {})
            staged = [key for key in read if key.startswith("meta/pipeline/staged/")]
            own = {key for key in read if key not in staged and not key.startswith("bus/")}
            # Per batch: reference, manifest, bytes. Besides: checkpoint (again if it was read long ago), ids, coverage.
            # The table of the plan, and the rows of three; which tables are there is listed.
            assert (len(own), len(staged)) == (3 * 2 + 3, 1 + 3)
            before = dict(store.usage.by_verb)
            assert not await job.is_due()  # listed: references, what is broken
            idle = {verb: count - before.get(verb, 0) for verb, count in store.usage.by_verb.items()}
            assert {verb: count for verb, count in idle.items() if count} == {"get": 2, "list": 2, "put": 1}


class TestNamedByS3:
    def _events(self, keys: list[str]) -> bytes:
        put = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}
        records = [{**put, "s3": {"object": {"key": quote_plus(key)}}} for key in keys]
        removed = {"eventName": "ObjectRemoved:Delete", "s3": {"object": {"key": "data/accepted/v1/gone"}}}
        return json.dumps({"Records": [*records, removed]}).encode()

    async def test_event_notifications_lead_to_batches(self, tmp_path: Path) -> None:
        async with open_store("memory:") as store:
            field = Field(store)
            one = await field.accept("agent", "boot", gauges(0), refer=False)
            two = await field.accept("agent", "boot", gauges(10), refer=False)
            (tmp_path / "one.json").write_bytes(
                self._events([f"data/{one.key}", "data/elsewhere", "other/accepted/v1/x"])
            )
            wrapped = json.dumps({"Message": self._events([f"data/{two.key}"]).decode()})
            test = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"})
            (tmp_path / "two.jsonl").write_text(f"{wrapped}\n{test}\n")
            keys = [key async for group in sources.event_keys(str(tmp_path), "data", Settings()) for key in group]
            assert keys == [one.key, two.key]
            assert (await reconcile(store, {"keys": keys}))["batches"] == 2
            await pipeline.run(store)
            await agrees(store, field.batches)

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    async def test_inventories_lead_to_batches(self, tmp_path: Path, kind: str) -> None:
        async with open_store("memory:") as store:
            manifests = [await Field(store).accept("agent", "boot", gauges(10 * n), refer=False) for n in range(3)]
            report = inventory_of(tmp_path, kind, [each.key for each in manifests])
            keys = [key async for group in sources.inventory_keys(str(report), "", Settings()) for key in group]
            assert keys == [each.key for each in manifests]
            assert (await reconcile(store, {"keys": keys}))["batches"] == 3

    async def test_the_inventory_of_another_bucket_is_refused(self, tmp_path: Path) -> None:
        report = str(inventory_of(tmp_path, "csv", ["accepted/v1/x"]))
        own = sources.bucket_of(StoreSpec.parse("s3://bucket/prefix"))
        assert [group async for group in sources.inventory_keys(report, "", Settings(), own)] == [["accepted/v1/x"]]
        other = sources.bucket_of(StoreSpec.parse("s3://other"))
        with pytest.raises(Invalid, match="the inventory of bucket bucket, and the store is in other"):
            [group async for group in sources.inventory_keys(report, "", Settings(), other)]
        with pytest.raises(Invalid, match="the store is in other"):
            await sources.inventory_made_ns(report, Settings(), other)
        for nameless in ("memory:", "file:./bucket", "s3://ap-metadata-s3alias/x"):
            assert sources.bucket_of(StoreSpec.parse(nameless)) is None

    @pytest.mark.parametrize(
        ("name", "text", "error", "says"),
        [
            ("m.json", '{"fileFormat": "ORC", "fileSchema": "", "files": [], "sourceBucket": ""}', Invalid, "as ORC"),
            ("m.json", "[]", Invalid, r"no manifest\.json"),
            ("nothing", None, NotFound, "no such file"),
            ("events.json", '{"hello": 1}', Invalid, "no notification"),
        ],
    )
    async def test_what_is_no_report_is_refused_in_one_line(
        self, tmp_path: Path, name: str, text: str | None, error: type[Exception], says: str
    ) -> None:
        if text is not None:
            (tmp_path / name).write_text(text)
        read = sources.inventory_keys if name == "m.json" else sources.event_keys
        with pytest.raises(error, match=says):
            [group async for group in read(str(tmp_path / name), "", Settings())]


def inventory_of(folder: Path, kind: str, manifests: list[str]) -> Path:
    """As S3 lays it out: the report beside its data, parts named from the root of the bucket."""
    keys = [*manifests, "raw-blobs/v1/other"]
    data = folder / "inventory" / "source" / "daily" / "data"
    data.mkdir(parents=True)
    if kind == "csv":
        rows = "".join(f'"bucket","{quote_plus(key)}","12","true","false"\n' for key in keys)
        rows += f'"bucket","{quote_plus(manifests[0])}","0","false","true"\n'
        part = data / "part.csv.gz"
        part.write_bytes(gzip.compress(rows.encode()))
        schema = "Bucket, Key, Size, IsLatest, IsDeleteMarker"
    else:
        part = data / "part.parquet"
        sink = io.BytesIO()
        pq.write_table(pa.table({"bucket": ["b"] * len(keys), "key": keys, "size": [1] * len(keys)}), sink)
        part.write_bytes(sink.getvalue())
        schema = "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); }"
    report = folder / "inventory" / "source" / "daily" / "2026-01-31T00-00Z" / "manifest.json"
    report.parent.mkdir()
    document = {
        "sourceBucket": "bucket",
        "destinationBucket": "arn:aws:s3:::reports",
        "version": "2016-11-30",
        "fileFormat": "CSV" if kind == "csv" else "Parquet",
        "fileSchema": schema,
        "files": [{"key": f"inventory/source/daily/data/{part.name}", "size": 1, "MD5checksum": "0" * 32}],
    }
    report.write_text(json.dumps(document))
    return report
