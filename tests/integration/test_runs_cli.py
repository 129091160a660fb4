"""``holdfast runs`` over HTTP: the same commands, the same answers, on an S3 server."""

import pytest

from tests.integration.servers import S3Server
from tests.unit.cli.runs_desk import RunsDesk, order


@pytest.fixture
def desk(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunsDesk:
    monkeypatch.setenv("HOLDFAST_S3__ENDPOINT", s3_server.endpoint)
    monkeypatch.setenv("HOLDFAST_S3__ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("HOLDFAST_S3__SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("HOLDFAST_S3__ALLOW_HTTP", "true")
    return RunsDesk(f"s3://{bucket}/shop", capsys)


def test_a_run_from_its_beginning_to_its_end(desk: RunsDesk) -> None:
    assert desk.start(order, "hat", run_id="r", tags=["env=prod"]).status == "suspended"
    assert [run["status"] for run in desk.document("list", "--tag", "env")] == ["suspended"]
    assert "which waits for it" in desk.holdfast("resume", "r", "payment", "5")
    assert desk.work() == 1
    assert desk.document("status", "r")["result"] == {"shipped": "hat"}
    assert desk.documents("tail", "r", "--json") == desk.documents("dump", "r")
    assert "again is a fork of r" in desk.holdfast("fork", "r", "--from-step", "ship", "--new-run-id", "again")
    assert desk.document("cancel", "again", "--now")["status"] == "cancelled"
    assert desk.document("stats") == {"order": {"cancelled": 1, "success": 1}}
    assert desk.holdfast("reindex") == "2 runs; 0 index keys written, 0 removed\n"
    assert desk.holdfast("delete", "r", "again").endswith("2 of 2 runs deleted\n")
    assert desk.document("list") == []
