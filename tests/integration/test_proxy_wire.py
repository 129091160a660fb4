"""The proxy as a carrier: what goes through it is unchanged, streamed, and kept alive."""

import asyncio
import hashlib
from contextlib import suppress

import httpx
import pytest

from holdfast.base.errors import Invalid
from holdfast.sim.proxy import NONE, CutResponse, FaultProxy, LoseRequest, Plan, Rule, Twice
from tests.integration.proxy_kit import bucket, raw_server, upstream
from tests.integration.servers import free_port

__all__ = ["bucket", "upstream"]  # fixtures

MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(proxy: FaultProxy) -> Streams:
    host, _, port = proxy.endpoint.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


async def exchange(streams: Streams, request: bytes, answer_bytes: int) -> bytes:
    streams[1].write(request)
    return await streams[0].readexactly(answer_bytes)


async def test_a_request_arrives_byte_for_byte() -> None:
    """The client's signature stays valid: it covers the Host header, which names the proxy."""
    request = (
        b"PUT /bucket/a%20b?x-id=PutObject HTTP/1.1\r\nHost: 127.0.0.1:9\r\nx-amz-date: now\r\n"
        b"Content-Length: 5\r\n\r\nhello"
    )
    seen = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readexactly(len(request)))
        writer.write(OK)
        await reader.read()

    async with raw_server(serve) as address, FaultProxy(address) as proxy:
        streams = await connect(proxy)
        assert await exchange(streams, request, len(OK)) == OK
        streams[1].close()
        assert bytes(seen) == request
        assert proxy.log[0].request.key == "a b"


async def test_chunks_and_trailers_pass_as_they_are() -> None:
    head = b"PUT /bucket/key HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"5;signature=1\r\nhello\r\n1\r\n!\r\n0\r\nx-checksum: 7\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            seen.append(await reader.readexactly(len(head + body)))
            writer.write(answer)
        await reader.read()

    async with raw_server(serve) as address, FaultProxy(address) as proxy:
        streams = await connect(proxy)
        for _ in range(2):
            assert await exchange(streams, head + body, len(answer)) == answer
        streams[1].close()
        assert seen == [head + body] * 2
        assert proxy.counts.connections == 1


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
        await writer.drain()

    async with raw_server(serve) as address, FaultProxy(address) as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"GET /bucket/key HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nuntil the end")
        writer.close()


async def test_a_client_that_waits_for_continue_gets_it() -> None:
    head = b"PUT /bucket/key HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    seen = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"hello"))
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" + OK)
        await reader.read()

    async with raw_server(serve) as address, FaultProxy(address) as proxy:
        streams = await connect(proxy)
        assert await exchange(streams, head, len(interim)) == interim
        assert await exchange(streams, b"hello", len(OK)) == OK
        streams[1].close()
        assert b"Expect" not in seen


async def test_bodies_are_passed_on_while_they_arrive() -> None:
    """Neither side gets further than the other has read: a proxy that held a body whole would wait for ever."""
    size = 8 * MIB
    at_server, at_client = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(size // 2)
        at_server.set()
        await reader.readexactly(size // 2)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"r" * (size // 2))
        await at_client.wait()
        writer.write(b"r" * (size // 2))
        await reader.read()

    async with raw_server(serve) as address, FaultProxy(address) as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"PUT /bucket/key HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + b"s" * (size // 2))
        await at_server.wait()
        writer.write(b"s" * (size // 2))
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(size // 2)
        at_client.set()
        assert await reader.readexactly(size // 2) == b"r" * (size // 2)
        writer.close()


async def test_a_large_object_goes_both_ways(upstream: str, bucket: str) -> None:
    body = hashlib.sha256(b"seed").digest() * (64 * MIB // 32)
    async with FaultProxy(upstream) as proxy, httpx.AsyncClient(base_url=proxy.endpoint, timeout=60) as client:
        (await client.put(f"/{bucket}/large", content=body)).raise_for_status()
        found = await client.get(f"/{bucket}/large")
        assert found.content == body


async def test_many_clients_at_once(upstream: str, bucket: str) -> None:
    async with FaultProxy(upstream) as proxy:

        async def work(number: int) -> bytes:
            async with httpx.AsyncClient(base_url=proxy.endpoint, timeout=30) as client:
                for turn in range(3):
                    await client.put(f"/{bucket}/{number}", content=b"%d %d" % (number, turn))
                return (await client.get(f"/{bucket}/{number}")).content

        found = await asyncio.gather(*(work(number) for number in range(20)))
        assert found == [b"%d 2" % number for number in range(20)]
        assert (proxy.counts.connections, proxy.counts.served("put", 200), proxy.counts.served("get", 200)) == (
            20,
            60,
            20,
        )


async def test_a_server_that_is_down_is_a_cut() -> None:
    async with FaultProxy(f"http://127.0.0.1:{free_port()}") as proxy, httpx.AsyncClient() as client:
        with pytest.raises(httpx.TransportError):
            await client.put(f"{proxy.endpoint}/bucket/key", content=b"x" * MIB)
        assert proxy.counts.served("put", NONE) == proxy.counts.answered("put", NONE) == 1
        assert proxy.log[0].fault is None


async def test_a_server_that_answers_early_is_heard() -> None:
    """Some servers refuse a write from its head; the client gets the answer, and the connection is not used again."""
    refusal = b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await reader.read()

    async with raw_server(serve) as address, FaultProxy(address) as proxy:
        streams = await connect(proxy)
        request = b"PUT /bucket/key HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf "
        assert await exchange(streams, request, len(refusal)) == refusal
        streams[1].close()


async def test_a_client_that_vanishes_while_it_sends_leaves_no_object(upstream: str, bucket: str) -> None:
    async with FaultProxy(upstream) as proxy, httpx.AsyncClient() as client:
        _, writer = await connect(proxy)
        writer.write(b"PUT /%s/key HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf " % bucket.encode())
        await writer.drain()
        writer.transport.abort()
        while not proxy.log or proxy.log[0].status is None:
            await asyncio.sleep(0.005)
        assert proxy.log[0].landed == []
        assert (await client.get(f"{upstream}/{bucket}/key")).status_code == 404


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/3\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused(request_bytes: bytes) -> None:
    async with FaultProxy("http://127.0.0.1:9") as proxy:
        reader, writer = await connect(proxy)
        writer.write(request_bytes)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        writer.close()
        assert proxy.log == []


async def test_a_head_without_end_is_not_read_for_ever() -> None:
    async with FaultProxy("http://127.0.0.1:9") as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"GET /" + b"x" * MIB)
        with suppress(ConnectionError):  # what it had not read yet may reset the connection before the answer is seen
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert proxy.log == []


@pytest.mark.parametrize("address", ["127.0.0.1:9000", "https://host", "http://", "http://host/path"])
def test_an_upstream_must_be_a_plain_address(address: str) -> None:
    with pytest.raises(Invalid, match="http://host:port"):
        FaultProxy(address)


def test_a_proxy_has_no_address_before_it_runs() -> None:
    with pytest.raises(Invalid, match="not been started"):
        _ = FaultProxy("http://127.0.0.1:9").endpoint


async def test_a_failure_of_the_proxy_itself_is_no_fault() -> None:
    def broken(record: object) -> None:
        raise RuntimeError("a watcher that fails")

    async def use(proxy: FaultProxy) -> None:
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.get(f"{proxy.endpoint}/bucket/key")

    rule = Rule(fault=LoseRequest())
    with pytest.raises(RuntimeError, match="a watcher that fails"):
        async with FaultProxy("http://127.0.0.1:9", Plan.of(rule), watch=broken) as proxy:
            await use(proxy)


@pytest.mark.parametrize("fault", [CutResponse(), Twice()])
async def test_faults_reach_chunked_requests_too(upstream: str, bucket: str, fault: CutResponse | Twice) -> None:
    async def parts() -> object:
        for part in (b"one ", b"two"):
            yield part

    async with FaultProxy(upstream, Plan.of(Rule(fault=fault, verb="put"))) as proxy, httpx.AsyncClient() as client:
        try:
            answer = await client.put(f"{proxy.endpoint}/{bucket}/key", content=parts())  # type: ignore[arg-type]  # an async generator
            assert answer.status_code == 200
        except httpx.TransportError:
            assert isinstance(fault, CutResponse)
        assert (await client.get(f"{upstream}/{bucket}/key")).content == b"one two"
        assert proxy.counts.served("put", 200) == (2 if isinstance(fault, Twice) else 1)
