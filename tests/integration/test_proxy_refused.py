"""Servers that must be refused, made from a good one by the proxy: the laws that break are the ones that name why.

ministack alone: a server that checks signatures does not accept what the proxy has changed.
"""

import pytest

from holdfast.cli.main import run
from holdfast.sim.proxy import FaultProxy, Plan, in_thread, no_conditions, racing, stale_lists
from tests.integration.proxy_kit import broken_laws, bucket, upstream
from tests.integration.servers import S3Server

__all__ = ["bucket", "upstream"]  # fixtures

RACES = {"create-exclusive", "if-match-wins-once", "counters-exact", "lease-single-owner"}


async def test_a_server_that_ignores_conditions_is_found(ministack: S3Server, bucket: str) -> None:
    async with FaultProxy(ministack.endpoint, no_conditions()) as proxy:
        found = await broken_laws(proxy, ministack, bucket)
        assert found.keys() == {"stale-write-refused", "if-match-needs-object", "large-body", *RACES}
        assert found["stale-write-refused"] == "a write over a stale version was answered as done"


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_server_that_races_conditions_is_found(ministack: S3Server, bucket: str, seed: int) -> None:
    async with FaultProxy(ministack.endpoint, racing(seed)) as proxy:
        found = await broken_laws(proxy, ministack, bucket)
        # A race may spare a counter or a lease; one write after the other it never shows.
        assert {"create-exclusive", "if-match-wins-once"} <= found.keys() <= RACES
        assert "racing writers were answered that they won" in found["create-exclusive"]


@pytest.mark.parametrize(
    ("plan", "law"),
    [
        (no_conditions(), "stale-write-refused"),
        (racing(1), "create-exclusive"),
        (stale_lists(), "listing-fresh"),
    ],
    ids=["no-conditions", "racing", "stale-lists"],
)
def test_the_doctor_refuses_it(
    upstream: str,
    bucket: str,
    plan: Plan,
    law: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with in_thread(upstream, plan) as proxy:
        uri = f"s3://{bucket}?endpoint={proxy.endpoint}&region=us-east-1"
        assert run(["doctor", uri, "--races", "4", "--rounds", "4", "--keys", "20"]) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert f"s3://{bucket} broke " in said
        assert law in said
        assert "do not trust Holdfast's data to this store" in said
        assert run(["doctor", uri, "--law", "round-trip", "--law", "ranges"]) == 0
