"""Every fault of the proxy, seen from both ends.

ministack alone: a server that checks signatures does not accept what the proxy has changed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.fakes.fault_plans import (
    CUT,
    FIRST,
    SECOND,
    Answer,
    AnswerAfter,
    ApplyLater,
    Chooser,
    CutResponse,
    Fault,
    LoseRequest,
    Plan,
    RefuseConnection,
    Request,
    Rule,
    Stall,
    Twice,
    lossy,
)
from tests.fakes.fault_proxy import NONE, FaultProxy
from tests.integration.proxy_kit import bucket
from tests.integration.servers import S3Server

__all__ = ["bucket"]  # a fixture

LATER_MS = 100


class Ends:
    """A proxy with a client before it and one behind it."""

    def __init__(self, proxy: FaultProxy, client: httpx.AsyncClient, direct: httpx.AsyncClient, bucket: str) -> None:
        self.proxy = proxy
        self.client = client
        self._direct = direct
        self._bucket = bucket

    async def put(self, body: bytes = b"new", **headers: str) -> int:
        """The status; ``NONE`` if the connection was cut."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            return (await self.client.put(f"/{self._bucket}/key", content=body, headers=named)).status_code
        except httpx.TransportError:
            return NONE

    async def create(self, body: bytes = b"new") -> int:
        return await self.put(body, If_None_Match="*")

    async def stored(self) -> bytes | None:
        """What the server itself has."""
        found = await self._direct.get(f"/{self._bucket}/key")
        return found.content if found.status_code == 200 else None

    async def keys(self) -> int:
        return (await self.client.get(f"/{self._bucket}?list-type=2&prefix=key")).text.count("<Key>")


@asynccontextmanager
async def ends(server: S3Server, bucket: str, *rules: Rule) -> AsyncIterator[Ends]:
    async with (
        FaultProxy(server.endpoint, Plan(rules)) as proxy,
        httpx.AsyncClient(base_url=proxy.endpoint, timeout=30) as client,
        httpx.AsyncClient(base_url=server.endpoint, timeout=30) as direct,
    ):
        yield Ends(proxy, client, direct, bucket)


async def test_without_a_plan_everything_passes(ministack: S3Server, bucket: str) -> None:
    async with ends(ministack, bucket) as both:
        assert await both.put(b"hello") == 200
        read = await both.client.get(f"/{bucket}/key")
        head = await both.client.head(f"/{bucket}/key")
        missing = await both.client.head(f"/{bucket}/other")
        part = await both.client.get(f"/{bucket}/key", headers={"Range": "bytes=1-2"})
        assert await both.keys() == 1
        gone = await both.client.delete(f"/{bucket}/key")
        assert (read.content, part.content, head.headers["content-length"]) == (b"hello", b"el", "5")
        assert (missing.status_code, gone.status_code) == (404, 204)
        counts = both.proxy.counts
        answers = ["put 200", "get 200", "head 200", "head 404", "range 206", "list 200", "delete 204"]
        assert counts.by_answer() == dict.fromkeys(answers, 1)
        assert counts.to_client == counts.at_server
        assert (counts.connections, counts.asked(), counts.faults) == (1, 7, {})


async def test_target_and_headers_arrive_as_they_were_signed() -> None:
    seen = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"hello"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, FaultProxy(address) as proxy, httpx.AsyncClient() as client:
        headers = {"Host": "signed.example", "x-amz-date": "now"}
        await client.put(f"{proxy.endpoint}/bucket/a%20b?x-id=PutObject", content=b"hello", headers=headers)
    assert seen.startswith(b"PUT /bucket/a%20b?x-id=PutObject HTTP/1.1\r\n")
    lines = bytes(seen).lower().split(b"\r\n")
    assert lines.count(b"host: signed.example") == lines.count(b"x-amz-date: now") == 1
    assert proxy.log[0].request.key == "a b"


@pytest.mark.parametrize(
    ("fault", "answer", "landed"),
    [
        (CutResponse(), NONE, [200]),
        (Twice(FIRST), 200, [200, 412]),
        (Twice(SECOND), 412, [200, 412]),
        (Twice(CUT), NONE, [200, 412]),
        (Twice(FIRST, pause_ms=LATER_MS), 200, [200, 412]),
        (LoseRequest(), NONE, []),
        (Answer(409), 409, []),
        (Answer(503), 503, []),
        (AnswerAfter(503), 503, [200]),
        (ApplyLater(LATER_MS), NONE, [200]),
        (ApplyLater(LATER_MS, 503), 503, [200]),
    ],
    ids=repr,
)
async def test_what_a_client_gets_and_what_the_server_got(
    ministack: S3Server, bucket: str, fault: Fault, answer: int, landed: list[int]
) -> None:
    async with ends(ministack, bucket, Rule(fault=fault, condition="if-none-match", nth=1)) as both:
        assert await both.create() == answer
        await both.proxy.settle()
        assert await both.stored() == (b"new" if landed else None)
        counts = both.proxy.counts
        assert (counts.asked("put"), counts.served("put"), counts.answered("put", answer)) == (1, len(landed), 1)
        assert counts.faults == {fault.kind: 1}
        [record] = both.proxy.log
        assert (record.landed, record.status, record.fault) == (landed, answer, fault.kind)
        assert await both.put(b"again") == 200


async def test_a_response_can_be_cut_in_its_middle(ministack: S3Server, bucket: str) -> None:
    async with ends(ministack, bucket, Rule(fault=CutResponse(after_bytes=2_000), verb="get")) as both:
        await both.put(b"x" * 100_000)
        async with both.client.stream("GET", f"/{bucket}/key") as response:
            with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
                await response.aread()
        assert 0 < response.num_bytes_downloaded < 2_000


async def test_a_stalled_request_is_never_answered(ministack: S3Server, bucket: str) -> None:
    rules = Rule(fault=Stall(landed=True), verb="put", nth=1), Rule(fault=Stall(), verb="delete")
    async with ends(ministack, bucket, *rules) as both:
        with pytest.raises(httpx.ReadTimeout):
            await both.client.put(f"/{bucket}/key", content=b"new", timeout=0.2)
        with pytest.raises(httpx.ReadTimeout):
            await both.client.delete(f"/{bucket}/key", timeout=0.2)
        assert await both.stored() == b"new"


async def test_connections_are_refused_and_come_back_at_the_same_address(ministack: S3Server, bucket: str) -> None:
    async with ends(ministack, bucket, Rule(fault=RefuseConnection(), nth=1)) as both:
        assert [await both.put(), await both.put()] == [NONE, 200]
        async with both.proxy.unreachable():
            assert await both.put() == NONE  # the pooled connection was cut
            with pytest.raises(httpx.ConnectError):
                await both.client.get(f"/{bucket}/key")
        assert await both.put() == 200


def faults(plan: Plan, times: int) -> list[str | None]:
    chooser = Chooser(plan)
    chosen = [chooser.choose(Request("PUT", "put", "key", None)) for _ in range(times)]
    return [fault.kind if fault is not None else None for fault in chosen]


def test_a_seed_decides_and_every_rule_counts_for_itself() -> None:
    one = faults(lossy(1), 4_000)
    assert one == faults(lossy(1), 4_000) != faults(lossy(2), 4_000)
    assert 900 < 4_000 - one.count(None) < 1_100
    plan = Plan.of(
        Rule(fault=LoseRequest(), nth=2),
        Rule(fault=CutResponse(), times=2),
        Rule(fault=Answer(), nth=2),
        Rule(fault=Twice(), nth=5),
        Rule(fault=Answer(), condition="any"),
    )
    assert faults(plan, 6) == ["cut-response", "lose-request", "cut-response", None, "twice", None]
