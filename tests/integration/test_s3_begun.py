"""Requests that are begun before their object is asked for: whole but for a byte, which goes only if it is."""

import asyncio
import gc
import queue
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import pytest

from holdfast.objects.cloud import CloudStore
from holdfast.objects.store import ADDRESSED, CREATE, Addressed, Create, Lost, Version, Written
from tests.integration.scripted_server import HANG_UP, SILENCE, Answer, Reply, Request, ScriptedServer
from tests.integration.servers import S3Server
from tests.integration.test_s3_ahead import Shifted
from tests.integration.test_s3_direct import store_at, until_closed

WRITTEN = Answer(200, b"", {"etag": '"e1"'})
BODY = b"bytes that name themselves"


@asynccontextmanager
async def connected(
    reply: Answer | Callable[[Request], Awaitable[Answer]] = WRITTEN,
) -> AsyncIterator[tuple[CloudStore, ScriptedServer]]:
    """A store with an open connection, and the server that it is on."""
    async with ScriptedServer(WRITTEN) as server, store_at(server.endpoint) as store:
        await store.put("first", b"1")
        server.reply = reply
        yield store, server


async def came(server: ScriptedServer, heads: int) -> None:
    async with asyncio.timeout(10):
        while server.heads < heads:
            await asyncio.sleep(0.001)


async def is_begun(store: CloudStore, server: ScriptedServer, body: bytes, mode: Create | Addressed) -> bool:
    """Whether a request is under way once an object is told ahead, which is then asked for."""
    heads, requests = server.heads, len(server.requests)
    with store.ahead("k", body, mode):
        await asyncio.sleep(0.01)
        begun = server.heads - heads
        assert len(server.requests) == requests
        assert isinstance(await store.put("k", body, mode), Written)
    assert server.heads - heads == 1
    assert server.requests[requests].body == body
    return bool(begun)


async def test_the_server_has_all_but_a_byte_until_it_is_asked_for() -> None:
    async with connected() as (store, server):
        with store.ahead("k", BODY, ADDRESSED):
            await came(server, 2)
            assert len(server.requests) == 1
            assert await store.put("k", BODY, ADDRESSED) == Written(Version('"e1"'))
            request = server.requests[1]
            assert (request.body, request.headers["if-none-match"]) == (BODY, "*")
            assert isinstance(await store.put("k", BODY, ADDRESSED), Written)  # once more, as after a lost answer
        assert (server.connections, len(server.requests)) == (1, 3)


async def test_what_many_compete_for_is_not_begun_nor_what_has_no_last_byte() -> None:
    async with connected() as (store, server):
        assert not await is_begun(store, server, BODY, CREATE)
        assert not await is_begun(store, server, b"", ADDRESSED)
        assert await is_begun(store, server, BODY, ADDRESSED)


async def several(store: CloudStore, server: ScriptedServer, count: int = 3) -> None:
    """So many connections are open, and wait."""
    going, reply = asyncio.Event(), server.reply

    async def held_up(_: Request) -> Answer:
        await going.wait()
        return WRITTEN

    server.reply, heads = held_up, server.heads
    puts = [asyncio.ensure_future(store.put(f"k{number}", b"1")) for number in range(count)]
    await came(server, heads + count)
    going.set()
    await asyncio.gather(*puts)
    server.reply = reply


async def test_nothing_is_begun_while_others_are_under_way_or_no_connection_waits() -> None:
    going = asyncio.Event()

    async def reply(request: Request) -> Answer:
        if request.target.endswith("slow"):
            await going.wait()
        return WRITTEN

    async with connected(reply) as (store, server):
        await several(store, server)
        heads = server.heads
        slow = asyncio.ensure_future(store.put("slow", b"1"))
        await came(server, heads + 1)
        assert not await is_begun(store, server, BODY, ADDRESSED)
        going.set()
        await slow
        assert await is_begun(store, server, BODY, ADDRESSED)
        heads = server.heads
        with store.ahead("other", BODY, ADDRESSED):  # which is under way as well
            await came(server, heads + 1)
            assert not await is_begun(store, server, BODY, ADDRESSED)
            await store.put("other", BODY, ADDRESSED)
        await store.close()
        await until_closed(server)
        assert not await is_begun(store, server, BODY, ADDRESSED)  # there is no connection


@pytest.mark.parametrize("reply", [HANG_UP, Answer(503), Answer(412), SILENCE], ids=["end", "503", "412", "cancelled"])
async def test_what_failed_is_not_under_way_any_more(reply: Reply) -> None:
    async with connected() as (store, server):
        await several(store, server)
        server.reply = reply
        with store.ahead("k", BODY, ADDRESSED):
            putting = asyncio.ensure_future(store.put("k", BODY, ADDRESSED))
            await came(server, 5)
            await asyncio.sleep(0.01)
            putting.cancel()
            await asyncio.gather(putting, return_exceptions=True)
        server.reply = WRITTEN
        assert await is_begun(store, server, BODY, ADDRESSED)


async def test_what_is_not_asked_for_is_no_request_and_the_next_ones_are_not_begun() -> None:
    async with connected() as (store, server):
        await several(store, server)
        for _ in range(3):
            with store.ahead("k", BODY, ADDRESSED):
                await asyncio.sleep(0.01)
        assert (server.heads, len(server.requests), server.open_connections) == (5, 4, 2)
        with store.ahead("k", BODY, ADDRESSED):
            await store.put("k", BODY, ADDRESSED)
        assert await is_begun(store, server, BODY, ADDRESSED)
        assert server.connections == 3


async def test_who_spoils_every_second_one_costs_few_connections() -> None:
    async with connected() as (store, server):
        for _ in range(200):
            with store.ahead("k", BODY, ADDRESSED):
                pass
            with store.ahead("k", BODY, ADDRESSED):
                await store.put("k", BODY, ADDRESSED)
            with store.ahead("m", BODY, CREATE):  # which could not be begun, so it keeps no word
                await store.put("m", BODY, CREATE)
        assert server.connections <= 1 + 8
        assert len(server.requests) == 401


@pytest.mark.parametrize("who", ["the same one", "somebody else", "other bytes", "another loop"])
async def test_nobody_waits_for_what_was_begun_where_a_name_is_locked_while_a_body_comes(who: str) -> None:
    """Some servers do so. Whoever may touch what was begun takes it over or gives it up, and then asks."""
    body = b"others" if who == "other bytes" else BODY
    async with connected() as (store, server):
        await several(store, server)
        server.locks = True

        async def somebody() -> None:
            with store.ahead("k", body, ADDRESSED) if who == "somebody else" else nullcontext():
                await store.put("k", body, ADDRESSED)

        with store.ahead("k", BODY, ADDRESSED):
            await came(server, 5)
            elsewhere = asyncio.to_thread(lambda: asyncio.run(somebody())) if who == "another loop" else somebody()
            async with asyncio.timeout(10):
                await asyncio.gather(elsewhere, store.put("k", BODY, ADDRESSED))
        assert sorted(request.body for request in server.requests[-2:]) == sorted([body, BODY])


async def test_one_that_came_later_is_not_in_the_way_of_the_one_that_was_begun() -> None:
    async with connected() as (store, server):
        await several(store, server)
        server.locks = True
        with store.ahead("k", BODY, ADDRESSED), store.ahead("k", BODY, ADDRESSED):
            async with asyncio.timeout(10):
                await store.put("k", BODY, ADDRESSED)
                await store.put("k", BODY, ADDRESSED)
        assert len(server.requests) == 6


async def test_a_request_that_has_grown_old_is_signed_anew() -> None:
    async with connected() as (store, server):
        assert store._client.direct is not None
        clock = store._client.direct._ready.clock = Shifted()
        with store.ahead("k", BODY, ADDRESSED):
            await came(server, 2)
            clock.seconds = 61
            await store.put("k", BODY, ADDRESSED)
        assert (server.connections, len(server.requests)) == (2, 2)


def test_a_loop_that_ends_in_the_middle_takes_it_along() -> None:
    async def leave(store: CloudStore) -> AbstractContextManager[None]:
        await store.put("first", b"1")
        ahead = store.ahead("k", BODY, ADDRESSED)
        ahead.__enter__()
        return ahead

    async def served(endpoints: "queue.Queue[str]", end: threading.Event) -> int:
        async with ScriptedServer(WRITTEN) as server:
            endpoints.put(server.endpoint)
            await asyncio.to_thread(end.wait)
            return len(server.requests)

    endpoints: queue.Queue[str] = queue.Queue()
    end = threading.Event()
    with ThreadPoolExecutor(1) as other:
        serving = other.submit(lambda: asyncio.run(served(endpoints, end)))
        try:
            store = store_at(endpoints.get(timeout=10))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # of who left it
                asyncio.run(leave(store)).__exit__(None, None, None)
                gc.collect()
            direct = store._client.direct
            assert direct is not None
            assert not direct._ready.waiting
            assert direct._pool.is_idle
        finally:
            end.set()
        assert serving.result() == 1


async def test_other_bytes_are_a_request_of_their_own() -> None:
    async with connected() as (store, server):
        with store.ahead("k", BODY, ADDRESSED):
            await came(server, 2)
            await store.put("k", b"others", ADDRESSED)
            await store.put("k", BODY, ADDRESSED)
        assert [request.body for request in server.requests] == [b"1", b"others", BODY]


async def test_a_server_that_has_closed_the_connection_is_asked_again() -> None:
    async with connected() as (store, server):
        with store.ahead("k", BODY, ADDRESSED):
            await came(server, 2)
            server.hang_up()
            await until_closed(server)
            assert isinstance(await store.put("k", BODY, ADDRESSED), Written)
        assert (server.connections, len(server.requests)) == (2, 2)
        assert await is_begun(store, server, BODY, ADDRESSED)


async def test_another_loop_asks_for_itself() -> None:
    async with connected() as (store, server):
        with store.ahead("k", BODY, ADDRESSED):
            await came(server, 2)
            elsewhere = await asyncio.to_thread(lambda: asyncio.run(store.put("k", BODY, ADDRESSED)))
            assert elsewhere == Written(Version('"e1"'))
        assert [request.body for request in server.requests] == [b"1", BODY]


async def test_a_cancelled_put_leaves_no_half_of_a_request(caplog: pytest.LogCaptureFixture) -> None:
    async def reply(_: Request) -> Answer:
        await asyncio.sleep(0.05)
        return WRITTEN

    async with connected(reply) as (store, server):
        with store.ahead("k", BODY, ADDRESSED):
            putting = asyncio.ensure_future(store.put("k", BODY, ADDRESSED))
            await came(server, 2)
            putting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putting
        async with asyncio.timeout(10):
            await until_closed(server)
        assert isinstance(await store.put("k", BODY, ADDRESSED), Written)
        assert server.connections == 2
    assert not caplog.records


async def test_a_real_server_creates_what_is_asked_for_and_nothing_else(s3_server: S3Server, bucket: str) -> None:
    """Of requests that were given up nothing stays, and one that was begun is answered as any other."""
    async with CloudStore(s3_server.target(bucket), environ={}) as store:
        await store.put("first", b"1")
        with store.ahead("given-up", BODY, ADDRESSED):
            await asyncio.sleep(0.05)
        await store.put("second", b"2")
        for number in range(20):
            body = BODY * (number * number + 1)
            key = f"asked-for/{number:02}"
            with store.ahead(key, body, ADDRESSED):
                await asyncio.sleep(0.005)
                assert isinstance(await store.put(key, body, ADDRESSED), Written)
            with store.ahead(key, b"others", ADDRESSED):
                assert await store.put(key, b"others", ADDRESSED) == Lost()
            assert s3_server.get(bucket, key) == body
    assert s3_server.keys(bucket) == [*(f"asked-for/{number:02}" for number in range(20)), "first", "second"]
