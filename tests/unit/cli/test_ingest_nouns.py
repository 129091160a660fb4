"""``holdfast authority``, ``conflicts``, ``tokens``, ``policy`` and ``agent parked``, through the real command."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Refused
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
    def test_a_copy_is_refused_until_it_is_promoted(self, desk: Desk) -> None:
        original = desk.authority()
        shutil.copytree(desk.root / "store", desk.root / "copy")
        shown = desk.json("authority", "show", store="copy")
        assert shown["authority_id"] == original.authority_id
        assert not shown["accepts_here"]
        assert "it is a copy" in shown["because"]
        with pytest.raises(Refused, match="it is a copy"):
            desk.authority("copy")
        options = ("--why", "the disk is lost", "--original-is-out-of-service")
        promoted = desk.json("authority", "promote", *options, store="copy")
        assert promoted["accepts_here"]
        assert promoted["former"] == original.authority_id
        assert desk.authority("copy").authority_id == promoted["authority_id"]
        assert desk.json("authority", "show")["authority_id"] == original.authority_id

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

    def test_another_address_of_the_same_bucket_is_refused_until_it_is_named(self, desk: Desk) -> None:
        original = desk.authority()
        (desk.root / "link").symlink_to(desk.root / "store")
        with pytest.raises(Refused) as caught:
            desk.authority("link")
        assert "holdfast authority alias" in str(caught.value.remedy)
        named = desk.json("authority", "alias", "--same-bucket", store="link")
        assert named["accepts_here"]
        assert named["aliases"].endswith("link")
        assert desk.authority("link").authority_id == desk.authority().authority_id == original.authority_id
        assert (
            "there is no authority"
            in desk.json("authority", "alias", "--same-bucket", store="x", code=4)["error"]["message"]
        )


class TestPolicy:
    def test_documents_are_for_the_bucket_of_the_store(self, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["--store", "s3://telemetry/fleet", "policy", "--document", "bucket"]) == 0
        policy = json.loads(capsys.readouterr().out)
        resources = [each["Resource"] for each in policy["Statement"]]
        assert ["arn:aws:s3:::telemetry/fleet/accepted/v1/*"] in resources
        assert run(["--store", "s3://telemetry", "--json", "policy", "--sse", "AES256"]) == 0
        assert {"bucket", "collector", "pipeline", "gc", "reader", "operator", "lifecycle", "encryption"} == set(
            json.loads(capsys.readouterr().out)
        )

    def test_a_folder_has_no_policy_and_enforces_none(self, desk: Desk) -> None:
        assert "is not a bucket of aws" in desk.json("policy", code=2)["error"]["message"]
        assert "6 of 11 rules do not hold" in desk.json("policy", "check", code=1)["error"]["message"]
        assert not (desk.root / "store" / "accepted" / "v1" / "policy-check.json").exists()
        assert "--role: unknown value" in desk.json("policy", "check", "--role", "king", code=2)["error"]["message"]
