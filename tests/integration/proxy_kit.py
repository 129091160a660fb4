"""What tests with the fault proxy share: settings, a bucket, and the laws judged through it.

A module that imports ``bucket`` from here runs against ministack alone: Ceph takes no request without a signature, nor
one whose signed headers the proxy has changed.
"""

import random

import pytest
from pydantic import SecretStr

from holdfast.base.clock import SystemClock
from holdfast.base.config import RetrySection, S3Section, Settings
from holdfast.base.ids import Ambient
from holdfast.objects.conformance.laws import LAWS, Bench, Effort, judge
from holdfast.objects.open import backend
from holdfast.objects.uri import StoreSpec
from tests.fakes.fault_proxy import FaultProxy
from tests.integration.servers import S3Server


@pytest.fixture
def bucket(ministack: S3Server) -> str:
    """The name of a fresh, empty bucket on ministack."""
    name = f"proxy-{Ambient.system().ids.unique()}"
    ministack.create_bucket(name)
    return name


EFFORT = Effort(races=6, rounds=6, keys=60, large_bytes=256 * 1024)


def settings(server: S3Server, attempts: int = 30) -> Settings:
    """Many quick attempts: a plan that hits every third request must not use them up."""
    return Settings(
        s3=S3Section(
            access_key_id=server.access_key, secret_access_key=SecretStr(server.secret_key), region="us-east-1"
        ),
        retry=RetrySection(attempts=attempts, base_ms=1, max_ms=10, deadline_ms=30_000),
    )


async def broken_laws(proxy: FaultProxy, server: S3Server, bucket: str) -> dict[str, str]:
    """Every law judged through the proxy; those that were broken, and the evidence."""
    spec = StoreSpec.parse(f"s3://{bucket}?endpoint={proxy.endpoint}", settings(server))
    backends = [backend(spec) for _ in range(EFFORT.races)]
    ambient = Ambient(SystemClock(), random.Random(1))
    bench = Bench(backends, prefix="laws/", ambient=ambient, effort=EFFORT, retry=spec.retry)
    try:
        found = [finding async for finding in judge(bench, LAWS)]
    finally:
        for each in backends:
            await each.close()
    assert len(found) == len(LAWS)
    return {finding.law.name: finding.figure for finding in found if not finding.kept}
