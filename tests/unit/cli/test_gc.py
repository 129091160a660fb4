"""``holdfast gc`` on a store in a folder, through the real command, without Spark."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.config import Settings
from holdfast.cli.pipeline.driver import as_garbage_collector
from holdfast.objects import Client
from holdfast.objects.store import ADDRESSED, CREATE
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audited import Audited
from holdfast.telemetry.accept.conflicts import Resolution, Resolutions, conflicts
from holdfast.telemetry.accept.manifest import ConflictManifest
from tests.unit.cli.desk import Desk
from tests.unit.pipeline.gc_desk import frame


class GcDesk(Desk):
    noun = ("gc",)

    def fill(self) -> str:
        """Two frames under one identity, and an audit; the key of one of them."""

        async def work(store: Client) -> str:
            for variant in (0, 1):
                await store.put(frame(1, variant).blob_key, frame(1, variant).body, ADDRESSED)
            through = store.ambient.clock.wall_ns() + 10**12
            record = Audited("a", "run", ("ingest",), audited.SCAN, 1, 1, 1, through)
            await store.put(record.key, record.encode("w"), CREATE)
            return frame(1, 1).blob_key

        return self.do(work)

    def resolve(self) -> None:
        async def work(store: Client) -> None:
            async for each in conflicts(store):
                assert isinstance(each, ConflictManifest)
                decide = Resolutions(store, store.ambient).decide
                existing = Resolution.EXISTING_IS_AUTHORITATIVE
                await decide(each.identity, each.submitted_frame_sha256, existing, by="me", why="a test")

        self.do(work)

    def run_job(self, name: str, request: dict[str, Any] | None = None) -> str:
        """The id of the run."""

        async def work(store: Client) -> str:
            [ran] = await pipeline.run(store, [name], request=request)
            return ran.run_id

        return self.do(work)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> GcDesk:
    monkeypatch.setenv("HOLDFAST_INGEST__RETRY_HORIZON_S", "0")
    return GcDesk(tmp_path, capsys)


def test_a_run_is_dry_without_apply_and_every_deletion_can_be_seen(desk: GcDesk) -> None:
    desk.fill()
    code, out, err = desk("run", "--kinds", "orphans")
    assert code == 0
    assert "mend" in out
    assert "nothing was removed" in err
    assert desk.json("history") == []
    for _ in range(2):
        assert desk.json("run", "--kinds", "orphans", "--apply")[0]["removed"] == 0
    desk.resolve()
    planned = desk.json("plan", "--kinds", "orphans")["kinds"]["orphans"]["removed"]
    assert planned == {"it lost a conflict that is resolved": 1}
    code, out, err = desk("run", "--kinds", "orphans", "--apply")
    assert (code, "3 objects removed" in err) == (0, True)  # the bytes, the record of the conflict, its reference
    [latest, *_] = desk.json("history")
    assert (latest["removed"], latest["apply"], latest["status"]) == (3, True, "success")
    rows = desk.json("show", latest["run_id"])
    assert {row["kind"] for row in rows} == {"orphans"}
    assert len({row["key"] for row in rows} & {frame(1, 0).blob_key, frame(1, 1).blob_key}) == 1
    code, out, err = desk("history")
    assert code == 0
    assert latest["run_id"] in out


def test_what_is_not_there_is_named(desk: GcDesk) -> None:
    desk.fill()
    assert desk("plan", "--kinds", "orphan")[0] == 2
    assert desk("show", "missing")[0] == 4
    code, _, err = desk("run", "--kinds", ",")
    assert (code, "names none" in err) == (2, True)


def test_a_kind_without_its_setting_is_shown_as_off(desk: GcDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.fill()
    off = "expire-batches: nothing expires, because retention.raw_batches_s is not set\n"
    code, _, err = desk("plan", "--kinds", "expire-batches")
    assert (code, err) == (0, off)
    assert desk.json("plan", "--kinds", "expire-batches")["off"] == {"expire-batches": "retention.raw_batches_s"}
    code, _, err = desk("run", "--kinds", "expire-batches", "--apply")
    assert (code, off in err) == (0, True)
    monkeypatch.setenv("HOLDFAST_RETENTION__RAW_BATCHES_S", "60")
    monkeypatch.setenv("HOLDFAST_RETENTION__ROLLUPS", "10s=1d,2m=1d")
    code, _, err = desk("plan", "--kinds", "expire-batches,expire-rollups")
    assert code == 0
    answer, *rest = err.splitlines()
    assert answer.startswith("retention.rollups names 2m, which is none of pipeline.windows")
    assert rest == ["no garbage was found"]


def test_a_dry_run_on_record_is_shown_as_one(desk: GcDesk) -> None:
    desk.fill()
    desk.run_job("gc")
    reconciled = desk.run_job("reconcile", {"full": True})
    [latest] = desk.json("history")
    assert latest["apply"] is False
    code, out, err = desk("show", latest["run_id"])
    assert (code, "orphans" in out) == (0, True)
    assert f"run {latest['run_id']} was a dry run: nothing was removed" in err
    assert desk("show", reconciled)[0] == 4  # of another job


def test_garbage_collection_has_credentials_of_its_own() -> None:
    given = {"s3": {"access_key_id": "collector", "secret_access_key": "c", "session_token": "t"}}
    alone = Settings.model_validate(given)
    assert as_garbage_collector(alone) == alone
    both = Settings.model_validate({**given, "gc": {"access_key_id": "gc", "secret_access_key": "g"}})
    s3 = as_garbage_collector(both).s3
    assert s3.secret_access_key is not None
    assert (s3.access_key_id, s3.secret_access_key.get_secret_value(), s3.session_token) == ("gc", "g", None)
