"""The production stack through the proxy, over a real S3 server: every outcome is settled to the truth.

The requests are counted at the server's door, so that the price of settling is known exactly.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest

from holdfast import objects
from holdfast.base.clock import SystemClock
from holdfast.base.errors import Ambiguous, Conflict, Fenced, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects import CREATE, IfMatch, Lost, Plain, Register, Store, Version, Written
from holdfast.objects.lease import Grant, Lease
from holdfast.objects.open import backend
from holdfast.objects.uri import StoreSpec
from tests.fakes.fault_plans import (
    CUT,
    FIRST,
    Answer,
    AnswerAfter,
    ApplyLater,
    CutResponse,
    Fault,
    LoseRequest,
    Plan,
    RefuseConnection,
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
LANDED_TWICE: list[Fault] = [Twice(), Twice(answer=CUT)]
NOT_LANDED: list[Fault] = [LoseRequest(), Answer(409), Answer(500)]


def kind(fault: Fault) -> str:
    return f"{fault.kind}-{getattr(fault, 'status', '')}{getattr(fault, 'answer', '')}".strip("-")


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


async def test_an_if_match_that_landed_is_written(s3_server: S3Server, bucket: str) -> None:
    plan = Plan.of(Rule(fault=Twice(), condition="if-match", nth=1))
    async with opened(s3_server, bucket, plan) as (store, proxy):
        version = await written(store, "key", b"first")
        outcome = await store.put("key", b"ours", IfMatch(version))
        found = await store.get("key")
        assert (outcome, found.body) == (Written(found.version), b"ours")
        assert (proxy.counts.asked("put"), proxy.counts.asked("get")) == (2, 2)


@pytest.mark.parametrize("fault", NOT_LANDED, ids=kind)
async def test_a_write_that_did_not_land_is_tried_again(s3_server: S3Server, bucket: str, fault: Fault) -> None:
    async with opened(s3_server, bucket, first_put(fault)) as (store, proxy):
        outcome = await store.put("key", b"ours", CREATE)
        assert isinstance(outcome, Written)
        assert (proxy.counts.asked("put"), proxy.counts.served("put"), proxy.counts.served("get", 404)) == (2, 1, 1)


async def test_a_stalled_write_ends_with_the_timeout_of_the_client(s3_server: S3Server, bucket: str) -> None:
    async with FaultProxy(s3_server.endpoint, first_put(Stall(landed=True))) as proxy:
        async with objects.open(address(proxy, bucket, timeout_ms=300), settings=settings(s3_server)) as store:
            outcome = await store.put("key", b"ours", CREATE)
            found = await store.get("key")
        assert (outcome, found.body) == (Written(found.version), b"ours")
        assert proxy.counts.faults == {"stall": 1}
        assert proxy.counts.served("put", 200) == 1


async def test_a_refused_connection_costs_no_request(s3_server: S3Server, bucket: str) -> None:
    async with FaultProxy(s3_server.endpoint, Plan.of(Rule(fault=RefuseConnection(), times=2))) as proxy:
        async with objects.open(address(proxy, bucket), settings=settings(s3_server)) as store:
            assert isinstance(await store.put("key", b"ours", CREATE), Written)
        assert proxy.counts.faults == {"refuse-connection": 2}
        assert proxy.counts.served("put") == proxy.counts.asked("put") == 1


@pytest.mark.parametrize("fault", [CutResponse(), Twice(), Answer(409)], ids=kind)
async def test_a_lost_race_stays_lost(s3_server: S3Server, bucket: str, fault: Fault) -> None:
    async with opened(s3_server, bucket, Plan.of(Rule(fault=fault, condition="any", nth=1))) as (store, _):
        await store.put("key", b"theirs")
        outcome = await store.put("key", b"ours", CREATE)
        assert isinstance(outcome, Lost)
        assert outcome.current is not None
        assert outcome.current.body == (await store.get("key")).body == b"theirs"


async def test_a_request_that_lands_late_changes_nothing(s3_server: S3Server, bucket: str) -> None:
    late = Rule(fault=ApplyLater(300), condition="any", nth=1)
    async with opened(s3_server, bucket, Plan.of(late)) as (store, proxy):
        outcome = await store.put("key", b"ours", IfMatch(await written(store, "key", b"first")))
        assert isinstance(outcome, Written)
        second = await store.put("key", b"newer", IfMatch(outcome.version))
        await proxy.settle()
        [delayed] = [record for record in proxy.log if record.fault == "apply-later"]
        assert delayed.landed == [412]
        assert second == Written((await store.get("key")).version)


async def test_what_cannot_be_known_is_not_guessed(s3_server: S3Server, bucket: str) -> None:
    blind = Plan.of(Rule(fault=CutResponse(), verb="put"), Rule(fault=Answer(503), verb="get"))
    async with opened(s3_server, bucket, blind, attempts=4) as (store, proxy):
        with pytest.raises(Ambiguous, match="key"):
            await store.put("key", b"ours", CREATE)
        assert proxy.counts.served("put", 200) == proxy.counts.asked("put") == 1
        proxy.use(Plan())
        assert (await store.get("key")).body == b"ours"


async def test_what_certainly_did_not_happen_is_said_so(s3_server: S3Server, bucket: str) -> None:
    async with opened(s3_server, bucket, Plan.of(Rule(fault=Answer(503))), attempts=3) as (store, proxy):
        with pytest.raises(Unavailable):
            await store.get("key")
        assert (proxy.counts.asked("get"), proxy.counts.served()) == (3, 0)


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


EDITORS, EDITS = 6, 8


async def count_with_registers(stores: list[Store]) -> tuple[int, set[int]]:
    """Every editor increments one counter; the final value, and the sequence numbers that were acknowledged."""
    acknowledged: list[int] = []

    async def edit(number: int, store: Store) -> None:
        ambient = Ambient(SystemClock(), random.Random(number))
        register = Register[int](store, "counter", Plain("test.counter"), ambient)
        for turn in range(EDITS):
            edited = await register.edit(f"{number}-{turn}", lambda value: (value or 0) + 1)
            acknowledged.append(edited.sequence)

    await asyncio.gather(*(edit(number, store) for number, store in enumerate(stores)))
    final = await Register[int](stores[0], "counter", Plain("test.counter"), Ambient.system()).read()
    assert final is not None
    return final.value, set(acknowledged)


async def count_naively(stores: list[Store]) -> tuple[int, set[int]]:
    """The same without looking: whatever did not answer with success is read and done again."""

    async def edit(store: Store) -> None:
        for _ in range(EDITS):
            while True:
                try:
                    found = await store.find("counter")
                    mode = CREATE if found is None else IfMatch(found.version)
                    body = b"%d" % (int(found.body) + 1 if found is not None else 1)
                    if isinstance(await store.put("counter", body, mode), Written):
                        break
                except Unavailable:
                    continue

    await asyncio.gather(*(edit(store) for store in stores))
    return int((await stores[0].get("counter")).body), set()


@asynccontextmanager
async def editors(
    s3_server: S3Server, proxy: FaultProxy, bucket: str, *, bare: bool = False
) -> AsyncIterator[list[Store]]:
    """Separate clients; ``bare`` ones have no layer over the backend."""
    spec = StoreSpec.parse(address(proxy, bucket), settings(s3_server))
    async with AsyncExitStack() as stack:
        clients: list[AbstractAsyncContextManager[Store]] = [
            backend(spec) if bare else objects.open(spec, settings=settings(s3_server), any_format=True)
            for _ in range(EDITORS)
        ]
        yield [await stack.enter_async_context(client) for client in clients]


@pytest.mark.parametrize("plan", [lossy(1), rough(3)], ids=["lossy", "rough"])
async def test_laws_hold_on_a_network_that_loses_and_doubles(s3_server: S3Server, bucket: str, plan: Plan) -> None:
    async with FaultProxy(s3_server.endpoint, plan) as proxy:
        assert await broken_laws(proxy, s3_server, bucket) == {}
        assert proxy.counts.faults["cut-response"] > 10
        assert proxy.counts.faults["twice"] > 10


@pytest.mark.parametrize("plan", [lossy(1), rough(3)], ids=["lossy", "rough"])
async def test_counters_are_exact(s3_server: S3Server, bucket: str, plan: Plan) -> None:
    async with FaultProxy(s3_server.endpoint, plan) as proxy, editors(s3_server, proxy, bucket) as stores:
        value, acknowledged = await count_with_registers(stores)
        assert value == EDITORS * EDITS
        assert acknowledged == set(range(1, value + 1))
        faults = proxy.counts.faults
        assert faults["cut-response"] + faults["twice"] > EDITS


async def test_the_naive_way_counts_wrong(s3_server: S3Server, bucket: str) -> None:
    """So the plan of the test above bites."""
    async with (
        FaultProxy(s3_server.endpoint, lossy(1)) as proxy,
        editors(s3_server, proxy, bucket, bare=True) as stores,
    ):
        value, _ = await count_naively(stores)
        assert value > EDITORS * EDITS


async def test_zombie_writes_do_not_count(s3_server: S3Server, bucket: str) -> None:
    """Every fourth write lands only after its client was cut off and has moved on, or lands once more then."""
    plan = Plan.of(
        Rule(fault=ApplyLater(30), verb="put", probability=0.15),
        Rule(fault=Twice(answer=FIRST, pause_ms=30), verb="put", probability=0.15),
        seed=4,
    )
    async with FaultProxy(s3_server.endpoint, plan) as proxy, editors(s3_server, proxy, bucket) as stores:
        value, acknowledged = await count_with_registers(stores)
        await proxy.settle()
        again = await Register[int](stores[0], "counter", Plain("test.counter"), Ambient.system()).read()
        assert again is not None
        assert value == again.value == EDITORS * EDITS
        assert acknowledged == set(range(1, value + 1))
        assert proxy.counts.faults["apply-later"] > 0
        assert proxy.counts.faults["twice"] > 0


async def test_a_lease_has_one_owner(s3_server: S3Server, bucket: str) -> None:
    owners: list[str] = []
    epochs: list[int] = []

    async def work(number: int, store: Store) -> None:
        lease = Lease(store, "lease", f"owner-{number}", Ambient(SystemClock(), random.Random(number)))
        for _ in range(3):
            grant = await lease.acquire(timeout_ms=30_000)
            owners.append(lease.owner_id)
            await lease.renew(grant)
            lease.guard(grant)
            assert owners == [lease.owner_id]
            epochs.append(grant.epoch)
            owners.clear()
            await lease.release(grant)

    async with FaultProxy(s3_server.endpoint, lossy(5)) as proxy, editors(s3_server, proxy, bucket) as stores:
        await asyncio.gather(*(work(number, store) for number, store in enumerate(stores[:3])))
        assert len(epochs) == 9
        assert epochs == sorted(set(epochs))
        assert proxy.counts.faults.total() > 0


@pytest.mark.parametrize("fault", [Twice(answer=CUT), LoseRequest()], ids=kind)
async def test_every_step_of_a_lease_survives_a_fault(s3_server: S3Server, bucket: str, fault: Fault) -> None:
    """Acquire, renew, hand over, and the refusal of a rival: each is what it would be without the fault."""
    plan = Plan.of(*(Rule(fault=fault, verb="put", nth=nth) for nth in range(1, 12, 2)))
    async with opened(s3_server, bucket, plan) as (store, proxy):
        ambient = Ambient(SystemClock(), random.Random(1))
        ours, theirs = (Lease(store, "lease", name, ambient) for name in ("ours", "theirs"))
        grant = await ours.acquire()
        assert not isinstance(await theirs.try_acquire(), Grant)
        await ours.renew(grant)
        await ours.renew(grant)
        await ours.hand_over(grant, "theirs")
        with pytest.raises(Conflict):
            ours.guard(grant)
        taken = await theirs.try_acquire()
        assert isinstance(taken, Grant)
        assert taken.epoch > grant.epoch
        grant.ended = False
        with pytest.raises(Fenced):
            await ours.renew(grant)
        assert proxy.counts.faults[fault.kind] >= 3
