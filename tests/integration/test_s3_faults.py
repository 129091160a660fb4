"""The production stack through the proxy, over a real S3 server: every outcome is settled to the truth.

The requests are counted at the server's door, so that the price of settling is known exactly.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast import objects
from holdfast.objects import CREATE, IfMatch, Store, Version, Written
from tests.fakes.fault_plans import (
    Answer,
    AnswerAfter,
    ApplyLater,
    CutResponse,
    Fault,
    LoseRequest,
    Plan,
    Rule,
    Stall,
    Twice,
    lossy,
    rough,
)
from tests.fakes.fault_proxy import FaultProxy
from tests.integration.proxy_kit import broken_laws, settings
from tests.integration.servers import S3Server

LANDED_ONCE: list[Fault] = [CutResponse(), AnswerAfter(500), AnswerAfter(503)]
LANDED_TWICE: list[Fault] = [Twice(), Twice(cut=True)]
NOT_LANDED: list[Fault] = [LoseRequest(), Answer(409), Answer(500)]


def kind(fault: Fault) -> str:
    return f"{fault.kind}-{getattr(fault, 'status', '')}{'-cut' * getattr(fault, 'cut', False)}".strip("-")


def address(proxy: FaultProxy, bucket: str, timeout_ms: int = 30_000) -> str:
    return f"s3://{bucket}/store?endpoint={proxy.endpoint}&request_timeout_ms={timeout_ms}"


@asynccontextmanager
async def opened(
    s3_server: S3Server, bucket: str, plan: Plan, *, attempts: int = 30
) -> AsyncIterator[tuple[objects.Client, FaultProxy]]:
    """A store whose first request under the plan is the test's own."""
    async with (
        FaultProxy(s3_server.endpoint) as proxy,
        objects.open(address(proxy, bucket), settings=settings(s3_server, attempts)) as store,
    ):
        proxy.use(plan)
        proxy.counts.clear()
        yield store, proxy


def first_put(fault: Fault) -> Plan:
    return Plan.of(Rule(fault=fault, verb="put", nth=1))


async def written(store: Store, key: str, body: bytes) -> Version:
    outcome = await store.put(key, body)
    assert isinstance(outcome, Written)
    return outcome.version


@pytest.mark.parametrize("fault", LANDED_ONCE + LANDED_TWICE, ids=kind)
async def test_a_create_that_landed_is_written(s3_server: S3Server, bucket: str, fault: Fault) -> None:
    async with opened(s3_server, bucket, first_put(fault)) as (store, proxy):
        outcome = await store.put("key", b"ours", CREATE)
        found = await store.get("key")
        assert outcome == Written(found.version)
        assert found.body == b"ours"
        landed = [200] if fault in LANDED_ONCE else [200, 412]
        assert proxy.log[-3].landed == landed
        # One write, one look, and the read of this test.
        assert (proxy.counts.asked("put"), proxy.counts.asked("get")) == (1, 2)
        assert store.usage.by_verb["put"] == proxy.counts.asked("put")


@pytest.mark.parametrize("fault", NOT_LANDED, ids=kind)
async def test_a_write_that_did_not_land_is_tried_again(s3_server: S3Server, bucket: str, fault: Fault) -> None:
    async with opened(s3_server, bucket, first_put(fault)) as (store, proxy):
        outcome = await store.put("key", b"ours", CREATE)
        assert isinstance(outcome, Written)
        assert (proxy.counts.asked("put"), proxy.counts.served("put"), proxy.counts.served("get", 404)) == (2, 1, 1)


async def test_a_stalled_write_ends_with_the_timeout_of_the_client(s3_server: S3Server, bucket: str) -> None:
    async with FaultProxy(s3_server.endpoint, first_put(Stall())) as proxy:
        async with objects.open(address(proxy, bucket, timeout_ms=300), settings=settings(s3_server)) as store:
            outcome = await store.put("key", b"ours", CREATE)
            found = await store.get("key")
        assert (outcome, found.body) == (Written(found.version), b"ours")
        assert proxy.counts.faults == {"stall": 1}
        assert proxy.counts.served("put", 200) == 1


async def test_a_request_that_lands_late_changes_nothing(s3_server: S3Server, bucket: str) -> None:
    late = Rule(fault=ApplyLater(1_000), conditional=True, nth=1)
    async with opened(s3_server, bucket, Plan.of(late)) as (store, proxy):
        outcome = await store.put("key", b"ours", IfMatch(await written(store, "key", b"first")))
        assert isinstance(outcome, Written)
        second = await store.put("key", b"newer", IfMatch(outcome.version))
        await proxy.settle()
        [delayed] = [record for record in proxy.log if record.fault == "apply-later"]
        assert delayed.landed == [412]
        assert second == Written((await store.get("key")).version)


async def test_a_listing_goes_on_after_a_cut(s3_server: S3Server, bucket: str) -> None:
    async with opened(s3_server, bucket, Plan.of(Rule(fault=CutResponse(after_bytes=900), verb="list", nth=1))) as (
        store,
        proxy,
    ):
        names = [f"item/{number:03d}" for number in range(30)]
        await asyncio.gather(*(store.put(name, b"x") for name in names))
        assert [key async for key in store.keys("item/")] == names
        assert proxy.counts.served("list", 200) == 2


async def test_a_large_read_goes_on_after_a_cut(s3_server: S3Server, bucket: str) -> None:
    body = bytes(range(256)) * 4_096
    plan = Plan.of(Rule(fault=CutResponse(after_bytes=300_000), verb="get", nth=1))
    async with opened(s3_server, bucket, plan) as (store, proxy):
        await store.put("key", body)
        assert (await store.get("key")).body == body
        assert proxy.counts.served("get", 200) == 2


@pytest.mark.parametrize("plan", [lossy(1), rough(3)], ids=["lossy", "rough"])
async def test_laws_hold_on_a_network_that_loses_and_doubles(s3_server: S3Server, bucket: str, plan: Plan) -> None:
    async with FaultProxy(s3_server.endpoint, plan) as proxy:
        assert await broken_laws(proxy, s3_server, bucket) == {}
        assert proxy.counts.faults["cut-response"] > 10
        assert proxy.counts.faults["twice"] > 10
