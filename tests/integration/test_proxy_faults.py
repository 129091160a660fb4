"""Every fault of the proxy, seen from both ends: what the client is told, and what the server got."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from holdfast.sim.proxy import (
    CUT,
    FIRST,
    NONE,
    SECOND,
    Answer,
    AnswerAfter,
    ApplyLater,
    CutResponse,
    DelayResponse,
    Fault,
    FaultProxy,
    Forward,
    LoseRequest,
    Plan,
    RaceConditions,
    RefuseConnection,
    Rule,
    StaleList,
    Stall,
    StripConditions,
    Twice,
    in_thread,
)
from tests.integration.proxy_kit import bucket, upstream

__all__ = ["bucket", "upstream"]  # fixtures

LONG_MS = 600_000
CREATE = {"If-None-Match": "*"}


class Ends:
    """A proxy with a client before it and one behind it."""

    def __init__(self, proxy: FaultProxy, client: httpx.AsyncClient, direct: httpx.AsyncClient, bucket: str) -> None:
        self.proxy = proxy
        self.client = client
        self._direct = direct
        self._bucket = bucket

    async def put(self, body: bytes = b"new", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.put(f"/{self._bucket}/key", content=body, headers=named)

    async def create(self, body: bytes = b"new") -> httpx.Response:
        return await self.client.put(f"/{self._bucket}/key", content=body, headers=CREATE)

    async def stored(self) -> bytes | None:
        """What the server itself has."""
        found = await self._direct.get(f"/{self._bucket}/key")
        return found.content if found.status_code == 200 else None

    async def stored_eventually(self) -> bytes:
        while (found := await self.stored()) is None:
            await asyncio.sleep(0.01)
        return found

    async def keys(self) -> str:
        return (await self.client.get(f"/{self._bucket}?list-type=2&prefix=key")).text


@asynccontextmanager
async def ends(upstream: str, bucket: str, *rules: Rule) -> AsyncIterator[Ends]:
    async with (
        FaultProxy(upstream, Plan(rules)) as proxy,
        httpx.AsyncClient(base_url=proxy.endpoint, timeout=30) as client,
        httpx.AsyncClient(base_url=upstream, timeout=30) as direct,
    ):
        yield Ends(proxy, client, direct, bucket)


async def test_without_a_plan_everything_passes(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket) as both:
        written = await both.put(b"hello")
        read = await both.client.get(f"/{bucket}/key")
        head = await both.client.head(f"/{bucket}/key")
        missing = await both.client.head(f"/{bucket}/other")
        part = await both.client.get(f"/{bucket}/key", headers={"Range": "bytes=1-2"})
        listed = await both.keys()
        gone = await both.client.delete(f"/{bucket}/key")
        assert (read.content, part.content, head.headers["etag"]) == (b"hello", b"el", written.headers["etag"])
        assert (missing.status_code, gone.status_code) == (404, 204)
        assert "<Key>key</Key>" in listed
        counts = both.proxy.counts
        expected = {
            ("put", 200): 1,
            ("get", 200): 1,
            ("head", 200): 1,
            ("head", 404): 1,
            ("range", 206): 1,
            ("list", 200): 1,
            ("delete", 204): 1,
        }
        assert counts.at_server == counts.to_client == expected
        assert (counts.connections, counts.asked(), counts.faults) == (1, 7, {})


@pytest.mark.parametrize(
    ("fault", "deliveries"),
    [(CutResponse(), 1), (Twice(answer=CUT), 2), (LoseRequest(), 0), (ApplyLater(LONG_MS), 0)],
)
async def test_a_cut_tells_the_client_nothing(upstream: str, bucket: str, fault: Fault, deliveries: int) -> None:
    async with ends(upstream, bucket, Rule(fault=fault, verb="put", nth=1)) as both:
        with pytest.raises(httpx.TransportError):
            await both.put()
        assert await both.stored() == (b"new" if deliveries else None)
        counts = both.proxy.counts
        assert (counts.asked("put"), counts.served("put", 200), counts.answered("put", NONE)) == (1, deliveries, 1)
        assert counts.faults == {fault.kind: 1}
        [record] = both.proxy.log
        assert (record.landed, record.status, record.fault) == ([200] * deliveries, NONE, fault.kind)
        assert (await both.put(b"again")).status_code == 200


async def test_a_response_can_be_cut_in_its_middle(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=CutResponse(after_bytes=2_000), verb="get")) as both:
        await both.put(b"x" * 100_000)
        async with both.client.stream("GET", f"/{bucket}/key") as response:
            pieces = response.aiter_raw()
            assert set(await anext(pieces)) == set(b"x")
            with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
                await anext(pieces)
        assert response.num_bytes_downloaded < 2_000
        assert both.proxy.counts.answered("get", NONE) == 1


@pytest.mark.parametrize(("answer", "status"), [(FIRST, 200), (SECOND, 412)])
async def test_a_create_delivered_twice_meets_itself(upstream: str, bucket: str, answer: str, status: int) -> None:
    rule = Rule(fault=Plan.parse(_twice(answer)).rules[0].fault, condition="if-none-match")
    async with ends(upstream, bucket, rule) as both:
        assert (await both.create()).status_code == status
        assert both.proxy.log[0].landed == [200, 412]
        assert await both.stored() == b"new"


def _twice(answer: str) -> str:
    return f'{{"rules": [{{"fault": {{"kind": "twice", "answer": "{answer}"}}}}]}}'


async def test_a_duplicate_can_land_behind_the_back_of_its_client(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=Twice(answer=FIRST, pause_ms=100), verb="put", nth=1)) as both:
        assert (await both.put(b"first")).status_code == 200
        assert (await both.put(b"second")).status_code == 200
        await both.proxy.settle()
        assert both.proxy.log[0].landed == [200, 200]
        assert await both.stored() == b"first"


@pytest.mark.parametrize("status", [409, 500, 503])
async def test_an_error_comes_from_the_proxy_alone(upstream: str, bucket: str, status: int) -> None:
    async with ends(upstream, bucket, Rule(fault=Answer(status), verb="put")) as both:
        answer = await both.put()
        assert answer.status_code == status
        assert "<Error><Code>" in answer.text
        assert await both.stored() is None
        assert both.proxy.counts.served() == 0
        assert both.proxy.counts.connections == 1


async def test_an_error_can_hide_a_success(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=AnswerAfter(503), verb="put")) as both:
        answer = await both.put()
        assert (answer.status_code, "ServiceUnavailable" in answer.text) == (503, True)
        assert await both.stored() == b"new"
        assert both.proxy.log[0].landed == [200]


@pytest.mark.parametrize("fault", [DelayResponse(LONG_MS), Stall(landed=True)])
async def test_a_write_can_land_long_before_its_answer(upstream: str, bucket: str, fault: Fault) -> None:
    async with ends(upstream, bucket, Rule(fault=fault, verb="put")) as both:
        writing = asyncio.ensure_future(both.put())
        assert await both.stored_eventually() == b"new"
        assert not writing.done()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_a_stalled_request_never_arrives(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=Stall(), verb="put", nth=1)) as both:
        with pytest.raises(httpx.ReadTimeout):
            await both.client.put(f"/{bucket}/key", content=b"new", timeout=0.2)
        assert await both.stored() is None
        assert (await both.put(b"second")).status_code == 200
        assert both.proxy.counts.served("put") == 1


async def test_a_delayed_response_comes(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=DelayResponse(5))) as both:
        assert (await both.put()).status_code == 200
        assert both.proxy.counts.faults == {"delay-response": 1}


@pytest.mark.parametrize("status", [None, 503])
async def test_a_request_can_land_after_its_client_was_told(upstream: str, bucket: str, status: int | None) -> None:
    async with ends(upstream, bucket, Rule(fault=ApplyLater(50, status), verb="put", nth=1)) as both:
        if status is None:
            with pytest.raises(httpx.TransportError):
                await both.create(b"late")
        else:
            assert (await both.create(b"late")).status_code == status
        await both.proxy.settle()
        assert await both.stored() == b"late"
        assert (await both.create(b"retry")).status_code == 412


async def test_a_connection_is_refused(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=RefuseConnection(), nth=1)) as both:
        with pytest.raises(httpx.TransportError):
            await both.put()
        assert (await both.put()).status_code == 200
        assert (both.proxy.counts.asked(), both.proxy.counts.connections) == (1, 2)


async def test_an_unreachable_proxy_comes_back_at_the_same_address(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket) as both:
        assert (await both.put()).status_code == 200
        endpoint = both.proxy.endpoint
        async with both.proxy.unreachable():
            with pytest.raises(httpx.TransportError):  # the pooled connection was cut
                await both.put()
            with pytest.raises(httpx.ConnectError):
                await both.put()
        assert (await both.put()).status_code == 200
        assert both.proxy.endpoint == endpoint


async def test_a_listing_is_as_old_as_the_plan_says(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=StaleList(lag=2), verb="list", prefix="key")) as both:
        seen = []
        for number in range(5):
            await both.client.put(f"/{bucket}/key{number}", content=b"x")
            seen.append((await both.keys()).count("<Key>"))
        assert seen == [1, 1, 1, 2, 3]
        assert both.proxy.counts.served("list", 200) == 5


async def test_lists_are_remembered_while_they_are_still_answered_truly(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=StaleList(), verb="list", nth=2)) as both:
        assert "<Key>" not in await both.keys()
        await both.put()
        assert "<Key>" not in await both.keys()
        assert "<Key>" in await both.keys()


async def test_stripped_conditions_are_ignored_by_the_server(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=StripConditions(), verb="put")) as both:
        assert [(await both.create(b"%d" % n)).status_code for n in range(2)] == [200, 200]
        assert (await both.put(b"stale", If_Match='"0"')).status_code == 200
        assert await both.stored() == b"stale"


async def test_raced_conditions_are_checked_and_not_kept(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket, Rule(fault=RaceConditions(pause_ms=0), verb="put")) as both:
        assert (await both.put(If_Match='"0"')).status_code == 404
        created = await both.create(b"first")
        assert [created.status_code, (await both.create(b"second")).status_code] == [200, 412]
        assert (await both.put(b"stale", If_Match='"0"')).status_code == 412
        assert (await both.put(b"third", If_Match=created.headers["etag"])).status_code == 200
        assert await both.stored() == b"third"
        assert both.proxy.log[1].landed == [404, 200]
    async with ends(upstream, bucket, Rule(fault=RaceConditions(pause_ms=200), verb="put")) as both:
        etag = (await both.client.head(f"/{bucket}/key")).headers["etag"]
        racers = await asyncio.gather(*(both.put(b"racer %d" % n, If_Match=etag) for n in range(8)))
        assert [answer.status_code for answer in racers].count(200) > 1


async def test_a_rule_that_forwards_shields_from_the_rest(upstream: str, bucket: str) -> None:
    rules = (Rule(fault=Forward(), prefix="key"), Rule(fault=Answer(500)))
    async with ends(upstream, bucket, *rules) as both:
        assert (await both.put()).status_code == 200
        assert (await both.client.put(f"/{bucket}/other", content=b"x")).status_code == 500


async def test_another_plan_can_follow(upstream: str, bucket: str) -> None:
    async with ends(upstream, bucket) as both:
        assert (await both.put()).status_code == 200
        both.proxy.use(Plan.of(Rule(fault=Answer(503))))
        assert (await both.put()).status_code == 503
        both.proxy.use(Plan())
        both.proxy.counts.clear()
        assert (await both.put()).status_code == 200
        assert both.proxy.counts.served() == 1


def test_blocking_code_has_it_in_a_thread(upstream: str, bucket: str) -> None:
    with in_thread(upstream, Plan.of(Rule(fault=CutResponse(), nth=2))) as proxy:
        assert httpx.put(f"{proxy.endpoint}/{bucket}/key", content=b"new").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.delete(f"{proxy.endpoint}/{bucket}/key")
        assert httpx.get(f"{proxy.endpoint}/{bucket}/key").status_code == 404
        assert proxy.counts.served("delete", 204) == 1
