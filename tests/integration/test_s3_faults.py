"""The laws hold over a real S3 server and a network that loses, doubles and refuses requests.

How each outcome is settled is tested in ``tests/unit/objects/test_client`` and simulated; what each answer of a server
means, in ``test_s3_answers``.
"""

import pytest

from tests.fakes.fault_plans import Plan, lossy, rough
from tests.fakes.fault_proxy import FaultProxy
from tests.integration.proxy_kit import broken_laws
from tests.integration.servers import S3Server

LOSSY = {"cut-response", "twice"}


@pytest.mark.parametrize(
    ("plan", "faults"), [(lossy(1), LOSSY), (rough(3), LOSSY | {"answer", "lose-request"})], ids=["lossy", "rough"]
)
async def test_laws_hold_on_a_network_that_loses_and_doubles(
    s3_server: S3Server, bucket: str, plan: Plan, faults: set[str]
) -> None:
    async with FaultProxy(s3_server.endpoint, plan) as proxy:
        assert await broken_laws(proxy, s3_server, bucket) == {}
        assert {kind for kind, times in proxy.counts.faults.items() if times > 10} == faults
