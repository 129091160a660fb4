"""``holdfast authority``, ``conflicts``, ``tokens``, ``policy`` and ``agent parked``, through the real command."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run
from holdfast.objects.open import open_store
from holdfast.sim import ingest_kit as kit
from holdfast.telemetry.accept.authority import Acceptance, Authority, open_authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.spool import FILE


class Desk:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys

    def json(self, *command: str, store: str = "store", code: int = 0) -> Any:
        (self.root / store).mkdir(exist_ok=True)
        assert run(["--json", "--store", f"file:{self.root / store}", *command]) == code
        printed = self._capsys.readouterr()
        return json.loads(printed.err if code else printed.out)

    def authority(self, store: str = "store", acceptance: Acceptance = Acceptance.S3_MANIFEST) -> Authority:
        async def work() -> Authority:
            async with open_store(f"file:{self.root / store}") as opened:
                return await open_authority(opened, opened.ambient, opened.place, acceptance)

        return asyncio.run(work())

    def conflict(self) -> str:
        async def work() -> str:
            async with open_store(f"file:{self.root / 'store'}") as store:
                collector = Collector(store, store.ambient, kit.authority(), CollectorOptions("collector-1"))
                await collector.accept(kit.submission(1))
                other = kit.submission(1, variant=1)
                await collector.accept(other)
                return other.frame_sha256

        return asyncio.run(work())


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


class TestAuthority:
    def test_another_spool_takes_the_place_of_one_that_is_lost(self, desk: Desk) -> None:
        desk.authority(acceptance=Acceptance.LOCAL_SPOOL)
        options = ("--why", "the disk died", "--original-is-out-of-service", "--spool", str(desk.root / "spool"))
        promoted = desk.json("authority", "promote", *options)
        with contextlib.closing(sqlite3.connect(desk.root / "spool" / FILE)) as spool:
            assert spool.execute("SELECT spool_id FROM spool").fetchall() == [(promoted["spool_id"],)]
        assert (
            "both name a spool"
            in desk.json("authority", "promote", *options, "--spool-id", "a", code=2)["error"]["message"]
        )

    def test_no_spool_is_made_for_a_store_that_cannot_be_promoted(self, desk: Desk) -> None:
        options = ("--why", "the disk died", "--original-is-out-of-service", "--spool", str(desk.root / "spool"))
        assert "no authority" in desk.json("authority", "promote", *options, code=4)["error"]["message"]
        assert not (desk.root / "spool").exists()


class TestPolicy:
    def test_a_folder_has_no_policy_and_enforces_none(self, desk: Desk) -> None:
        assert "is not a bucket of aws" in desk.json("policy", code=2)["error"]["message"]
        assert "5 of 10 rules do not hold" in desk.json("policy", "check", code=1)["error"]["message"]
        assert not (desk.root / "store" / "accepted" / "v1" / "policy-check.json").exists()
        assert "--role: unknown value" in desk.json("policy", "check", "--role", "king", code=2)["error"]["message"]
