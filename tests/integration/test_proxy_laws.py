"""The laws through the proxy: kept on a network that loses and doubles, broken where a server must be refused."""

import pytest

from holdfast.base.errors import Denied
from holdfast.objects import CREATE
from holdfast.sim.proxy import FaultProxy, Plan, lossy, no_conditions, rough, stale_lists
from tests.integration.proxy_kit import broken_laws
from tests.integration.servers import S3Server, ceph_gateway
from tests.integration.test_proxy_store import opened


@pytest.mark.parametrize("plan", [lossy(1), lossy(2), rough(3)], ids=["lossy-1", "lossy-2", "rough-3"])
async def test_laws_hold_on_a_network_that_loses_and_doubles(s3_server: S3Server, bucket: str, plan: Plan) -> None:
    async with FaultProxy(s3_server.endpoint, plan) as proxy:
        assert await broken_laws(proxy, s3_server, bucket) == {}
        assert proxy.counts.faults["cut-response"] > 10
        assert proxy.counts.faults["twice"] > 10


async def test_a_server_that_lists_stale_is_found(s3_server: S3Server, bucket: str) -> None:
    async with FaultProxy(s3_server.endpoint, stale_lists()) as proxy:
        found = await broken_laws(proxy, s3_server, bucket)
        assert found.keys() == {"listing-fresh", "listing-complete"}
        assert found["listing-fresh"] == "fresh/0001 was acknowledged and not listed"


@pytest.mark.ceph
async def test_a_signature_does_not_survive_a_stripped_header() -> None:
    gateway = ceph_gateway()
    bucket = "proxy-strips"
    gateway.create_bucket(bucket)
    async with opened(gateway, bucket, no_conditions()) as (store, proxy):
        await store.put("key", b"no condition, nothing stripped")
        with pytest.raises(Denied):
            await store.put("other", b"x", CREATE)
        assert proxy.log[-1].landed == [403]
