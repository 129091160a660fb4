"""Times of records are judged once, at acceptance; what was judged is in the manifest, and everybody reads it there."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.config import load
from holdfast.base.errors import Invalid
from holdfast.objects.store import Object, Version
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import shares
from holdfast.telemetry.accept.record_times import DAY_NS, HOUR_NS, RecordTimes, TimeLimits
from holdfast.telemetry.records import Counter, Gauge, Log
from tests.unit.pipeline.field import START, Field
from tests.unit.server.server_desk import frame, server_desk
from tests.unit.telemetry.query.desk import platform
from tests.unit.telemetry.rollup.rolled import batch

NOW = START + 12 * HOUR_NS + 1


def at(*times_ns: int) -> Any:
    return batch("a", "0", {n: Gauge("g", 1.0, time_ns) for n, time_ns in enumerate(times_ns)})


@pytest.mark.parametrize(
    ("settings", "times", "says"),
    [
        ({}, [NOW + 26 * HOUR_NS], "ahead of the collector's clock"),
        ({}, [NOW, NOW - 61 * DAY_NS], "more than 60 days ago"),
        ({}, [2**62], "ahead"),
        ({}, [-(2**62)], "days ago"),
        ({"max_age_ns": None}, [n * HOUR_NS for n in range(200)], "in 200 hours, and 168 are allowed"),
        ({}, [NOW + 24 * HOUR_NS, NOW, NOW - 59 * DAY_NS], None),
        ({"max_age_ns": None}, [0, -(2**62)], None),
        ({"hours_per_batch": 2}, [START, START + HOUR_NS, START + HOUR_NS + 1], None),
        ({"hours_per_batch": 2}, [START, START + HOUR_NS, START + 2 * HOUR_NS], "3 hours"),
    ],
)
def test_a_batch_is_refused_as_a_whole(settings: dict[str, Any], times: list[int], says: str | None) -> None:
    times_of_records = RecordTimes(**settings)
    if says is None:
        times_of_records.check(at(*times), NOW)
        limits = times_of_records.limits(NOW)
        assert shares(at(*times), limits)[1] == 0
        return
    with pytest.raises(Invalid, match=says) as refused:
        times_of_records.check(at(*times), NOW)
    assert refused.value.remedy


async def test_limits_are_in_the_manifest_of_every_acceptance(tmp_path: Path) -> None:
    async with server_desk(tmp_path, backfill=False) as desk:
        store = desk.service.store
        now = desk.service.store.ambient.clock.wall_ns()
        refused = await desk.post(frame(Gauge("load", 1.0, now - 61 * DAY_NS)))
        assert (refused.status_code, refused.json()["error"]["reason"]) == (422, "record_times")
        assert [key async for key in store.keys("accepted/")] == []
        assert (await desk.post(frame(Gauge("load", 1.0, now)))).status_code == 200
        [key] = [key async for key in store.keys("accepted/")]
        found = await store.find(key)
        assert found is not None
        limits = AcceptedManifest.read(found).limits
        assert limits == RecordTimes().limits(AcceptedManifest.read(found).accepted_at_unix_ns)
        assert (limits.from_ns or 0) % HOUR_NS == limits.until_ns % HOUR_NS == 0


def test_a_manifest_keeps_its_limits_and_one_without_allows_a_day_ahead() -> None:
    body = (
        b'{"schema":"lightmetrics.accepted_batch.v1","agent_id":"a","boot_id":"b","seq_start":0,"seq_end":1,'
        b'"frame_sha256":"0000000000000000000000000000000000000000000000000000000000000000","frame_bytes":1,"raw_blob_key":"k","accepted_at_unix_ns":%d,"collector_id":"c",'
        b'"wire_version":1,"frame_version":1%s}'
    )
    key = "accepted/v1/agent=61/boot=62/00000000000000000000-00000000000000000001.json"
    plain = AcceptedManifest.read(Object(key, body % (NOW, b""), 0, Version("1")))
    assert plain.records_until_unix_ns is None
    assert plain.limits == TimeLimits(None, START + 37 * HOUR_NS)
    answer = b',"records_from_unix_ns":0,"records_until_unix_ns":7'
    ours = AcceptedManifest.read(Object(key, body % (NOW, answer), 0, Version("1")))
    assert ours.limits == TimeLimits(0, 7)
    assert AcceptedManifest.read(Object(key, ours.encode(), 0, Version("1"))) == ours


async def test_records_beyond_the_limits_of_an_older_batch_count_nowhere() -> None:
    """Whole hours are inside or outside: no part counts what another leaves out."""
    async with platform() as (hf, field):
        assert isinstance(field, Field)
        accepted = hf.ambient.clock.wall_ns() // HOUR_NS * HOUR_NS
        times = [accepted + 24 * HOUR_NS + n * HOUR_NS // 2 for n in range(-1, 5)]
        records: dict[int, Any] = {n: Counter("c", n, time_ns) for n, time_ns in enumerate(times)}
        records |= {100 + n: Log("hello", time_ns) for n, time_ns in enumerate(times)}
        await Field.accept(field, "a", "0", records, at_ns=accepted + 1)
        span: dict[str, Any] = {"since": accepted, "until": accepted + 30 * HOUR_NS}
        for _ in range(2):
            for step in ("1h", "11s"):
                found = await hf.metrics().query("c", **span, step=step, aggregate="count")
                assert sum(value for each in found.series for value in each.values) == 3, step
            assert len((await hf.logs().search("hello", **span)).rows) == 3
            await pipeline.run(hf.store)


def test_an_age_above_the_retention_of_raw_batches_is_refused(tmp_path: Path) -> None:
    day = 86_400
    given = {"retention": {"raw_batches_s": 30 * day}}
    assert load(flags=given, environ={}, folder=tmp_path).ingest.max_age_s == 30 * day
    assert load(flags={}, environ={}, folder=tmp_path).ingest.max_age_s == 60 * day
    with pytest.raises(Invalid, match="max_age_s"):
        load(flags={**given, "ingest": {"max_age_s": 31 * day}}, environ={}, folder=tmp_path)
