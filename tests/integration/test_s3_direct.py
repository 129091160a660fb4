"""S3 asked directly: how connections are kept and how they end, what is believed of an answer, and what is not sent."""

import asyncio
import gc
import re
import select
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.base.errors import Invalid, Unavailable
from holdfast.objects.cloud import CloudStore, pool
from holdfast.objects.cloud.http1 import Connection
from holdfast.objects.store import CREATE, IfMatch, Version, Written
from holdfast.objects.uri import StoreSpec
from tests.integration.scripted_server import SILENCE, Answer, ScriptedServer, error_body
from tests.integration.servers import S3Server, free_port
from tests.tidy.tree import ROOT

TLS = ROOT / "tests/golden/tls"
KEYS = (("access_key_id", "key"), ("secret_access_key", "secret"))
OK = Answer(200, b"hello", {"etag": '"e1"', "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"})


def store_at(endpoint: str, **options: str) -> CloudStore:
    return CloudStore(StoreSpec("s3", "bucket", "", (("endpoint", endpoint), *options.items()), KEYS), environ={})


async def until_closed(server: ScriptedServer) -> None:
    while server.open_connections:
        await asyncio.sleep(0.001)


async def test_one_connection_serves_one_request_after_another_and_several_at_once() -> None:
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        for _ in range(5):
            await store.get("k")
        assert (server.connections, len(server.requests)) == (1, 5)
        await asyncio.gather(*(store.put(f"k{number}", b"x", CREATE) for number in range(4)))
        assert server.connections == 4
        await asyncio.gather(*(store.head("k") for _ in range(4)))
        assert server.connections == 4
        await store.close()
        await until_closed(server)
        assert (await store.get("k")).body == b"hello"  # a closed store connects anew
        assert server.connections == 5


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        await store.get("k")
        server.hang_up()
        await until_closed(server)
        await asyncio.sleep(0.01)  # for the news to arrive
        assert isinstance(await store.put("k", b"x", CREATE), Written)
        assert server.connections == 2


ANSWER = b'HTTP/1.1 200 OK\r\netag: "e"\r\nlast-modified: Wed, 21 Oct 2015 07:28:00 GMT\r\ncontent-length: 0\r\n\r\n'


TWICE = ANSWER.replace(b'"e"', b'"another"')


@pytest.mark.parametrize("unasked", [b"", TWICE], ids=["closed", "answered twice"])
async def test_each_is_looked_at_before_its_use(unasked: bytes) -> None:
    """The loop may not have heard yet that the server has closed it, or has said more than it was asked for."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        store = store_at(f"http://127.0.0.1:{listener.getsockname()[1]}")

        async def serve(connection: socket.socket) -> None:
            assert await loop.sock_recv(connection, 10_000)
            connection.sendall(ANSWER)

        reading = asyncio.ensure_future(store.get("k"))
        first, _ = await loop.sock_accept(listener)
        await serve(first)
        await reading
        reading = asyncio.ensure_future(store.get("k"))
        await serve(first)
        await reading
        if unasked:
            first.sendall(unasked)
        else:
            first.close()
        assert store._client.direct is not None
        home = store._client.direct._pool._home
        assert home is not None
        assert select.select([home.idle[0].transport.get_extra_info("socket")], [], [], 10)[0]
        # Up to here the loop had no turn to hear of it.
        writing = asyncio.ensure_future(store.put("k", b"x", CREATE))
        second, _ = await asyncio.wait_for(loop.sock_accept(listener), 10)
        await serve(second)
        assert await writing == Written(Version('"e"'))
        first.close()
        second.close()
        await store.close()


async def test_whoever_speaks_first_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words came before the question: they are no answer to it."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect = loop.create_connection

        async def connected_to_a_talker(make: Callable[[], Connection], *where: Any, **how: Any) -> Any:
            made = await connect(make, *where, **how)
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(ANSWER)
                select.select([made[0].get_extra_info("socket")], [], [], 10)
            return made

        monkeypatch.setattr(loop, "create_connection", connected_to_a_talker)
        with pytest.raises(Unavailable, match="answered before it was asked") as trouble:
            await store_at(f"http://127.0.0.1:{listener.getsockname()[1]}").put("k", b"x", CREATE)
        assert not trouble.value.maybe_applied


async def test_one_that_waited_too_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_LONGEST_IDLE_SECONDS", 0.0)
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        await store.get("k")
        await store.get("k")
        assert server.connections == 2


async def test_a_quiet_time_leaves_few() -> None:
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        await asyncio.gather(*(store.get("k") for _ in range(5)))
        assert store._client.direct is not None
        home = store._client.direct._pool._home
        assert home is not None
        for waiting in home.idle:
            waiting.idle_since -= 100
        home.idle[-1].idle_since += 100
        for left in (4, 3, 2, 1, 1):
            await store.get("k")
            assert len(home.idle) == left
        assert server.connections == 5
        while server.open_connections > 1:
            await asyncio.sleep(0.001)
        await store.close()


async def test_a_request_that_is_given_up_takes_its_connection_with_it() -> None:
    async with ScriptedServer(SILENCE) as server:
        store = store_at(server.endpoint)
        asked = asyncio.ensure_future(store.put("k", b"x", CREATE))
        while not server.requests:
            await asyncio.sleep(0.001)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server.reply = OK
        assert isinstance(await store.put("k", b"x", CREATE), Written)
        assert server.connections == 2


async def test_a_store_that_is_forgotten_closes_its_connections() -> None:
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        await store.get("k")
        assert server.open_connections == 1
        del store
        gc.collect()
        await until_closed(server)
        assert server.requests[0].method == "GET"


def test_a_store_lives_through_several_loops(s3_server: S3Server, bucket: str) -> None:
    store = CloudStore(s3_server.target(bucket), environ={})
    for body in (b"one", b"two"):
        assert isinstance(asyncio.run(store.put("k", body)), Written)
        assert asyncio.run(store.get("k")).body == body


def test_a_store_outlives_a_loop_that_was_not_shut_down(s3_server: S3Server, bucket: str) -> None:
    store = CloudStore(s3_server.target(bucket), environ={})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # which whoever does so deserves
        loop = asyncio.new_event_loop()
        loop.run_until_complete(store.put("k", b"one"))
        loop.close()
        asyncio.run(store.close())
        asyncio.run(store.close())
        gc.collect()
    assert asyncio.run(store.get("k")).body == b"one"


FORGETFUL = """
import asyncio, sys
from holdfast.objects.cloud import CloudStore
from holdfast.objects.uri import StoreSpec
keys = (("access_key_id", sys.argv[3]), ("secret_access_key", sys.argv[4]))
store = CloudStore(StoreSpec("s3", sys.argv[2], "", (("endpoint", sys.argv[1]),), keys), environ={})
asyncio.run(store.put("k", b"x"))
print("done")
"""


def test_whoever_forgets_to_close_a_store_hears_no_complaint(s3_server: S3Server, bucket: str) -> None:
    arguments = (s3_server.endpoint, bucket, s3_server.access_key, s3_server.secret_key)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", FORGETFUL, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


async def test_tls_is_believed_only_with_a_certificate_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    async with ScriptedServer(OK, tls=server_side) as server:
        with pytest.raises(Unavailable, match="its certificate is not trusted") as trouble:
            await store_at(server.endpoint).put("k", b"x", CREATE)
        assert not trouble.value.maybe_applied
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
        store = store_at(server.endpoint)
        body = bytes(range(256)) * 1000
        assert isinstance(await store.put("k", body, CREATE), Written)
        assert server.requests[0].body == body
        assert (await store.get("k")).body == b"hello"
        await store.close()


async def test_a_server_without_tls_where_tls_was_asked_for() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        with pytest.raises(Unavailable, match="it does not speak TLS") as trouble:
            await store_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}").put("k", b"x", CREATE)
        assert not trouble.value.maybe_applied


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    elsewhere = {"location": f"http://127.0.0.1:{free_port()}/bucket/k"}
    async with ScriptedServer(Answer(status, error_body("TemporaryRedirect"), elsewhere)) as server:
        for call in (store_at(server.endpoint).get("k"), store_at(server.endpoint).put("k", b"x", CREATE)):
            with pytest.raises(Invalid, match="another region"):
                await call
        assert len(server.requests) == 2


async def test_a_server_that_knows_no_ranges_is_read_all_the_same() -> None:
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        assert (await store.range("k", 1, 3)).body == b"el"
        assert (await store.range("k", 3, 9)).body == b"lo"
        assert (await store.range("k", 7, 9)).body == b""
        assert (await store.range("k", 1, 3)).size == 5


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"hel", "bytes 1-3/5"), (b"he", "bytes 0-1/*"), (b"hello", "bytes 0-4/5"), (b"hel", "bytes 0-1/5"), (b"he", "")],
)
async def test_another_range_than_was_asked_for_is_no_answer(body: bytes, says: str) -> None:
    async with ScriptedServer(Answer(206, body, {"etag": '"e"', "content-range": says})) as server:
        with pytest.raises(Unavailable, match="another range"):
            await store_at(server.endpoint).range("k", 0, 2)


@pytest.mark.parametrize(
    "moment", ["yesterday", "Wed, 21 Oct 2015 07:28:00 +" + "9" * 20, "Wed, 21 Oct 2015 99999999999:1"]
)
async def test_a_time_that_cannot_be_read_is_not_guessed(moment: str) -> None:
    async with ScriptedServer(Answer(200, b"x", {"etag": '"e"', "last-modified": moment})) as server:
        with pytest.raises(Unavailable, match=re.escape(repr(moment))):
            await store_at(server.endpoint).get("k")


@pytest.mark.parametrize("size", ["9" * 5000, "\xb2", "-1", ""])
async def test_a_size_that_cannot_be_read_is_not_guessed(size: str) -> None:
    async with ScriptedServer(Answer(200, b"", {**OK.headers, "content-length": size})) as server:
        with pytest.raises(Unavailable, match=r"failed \(200\)"):
            await store_at(server.endpoint).head("k")
        server.reply = Answer(206, b"he", {**OK.headers, "content-range": f"bytes 0-1/{size}"})
        with pytest.raises(Unavailable, match="another range"):
            await store_at(server.endpoint).range("k", 0, 2)


async def test_a_body_that_may_be_cut_off_is_no_object() -> None:
    """Only the end of the connection says that it ends, and that is what a server's death looks like too."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER.replace(b"content-length: 0\r\n", b"") + b"hel")
        writer.close()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        store = store_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for call in (store.get("k"), store.get_unless("k", Version('"f"')), store.range("k", 0, 3)):
            with pytest.raises(Unavailable, match="may be cut off"):
                await call
        assert isinstance(await store.put("k", b"", CREATE), Written)  # what it says is in the head


@pytest.mark.parametrize("version", ['"e"\r\nx-amz-acl: public-read', "é", '"e"\x00'])
async def test_a_version_cannot_carry_another_header(version: str) -> None:
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        for call in (store.put("k", b"x", IfMatch(Version(version))), store.get_unless("k", Version(version))):
            with pytest.raises(Invalid, match="is no version"):
                await call
        assert server.requests == []


async def test_the_host_is_named_as_the_server_knows_it() -> None:
    async with ScriptedServer(OK) as server:
        await store_at(server.endpoint + "/below/").get("a b")
        assert server.seen == ["GET /below/bucket/a%20b"]
        assert server.requests[0].headers["host"] == server.endpoint.removeprefix("http://")


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
async def test_a_name_that_cannot_be_one(host: str) -> None:
    with pytest.raises(Unavailable, match="the name is not known") as trouble:
        await store_at(f"http://{host}:1").put("k", b"x", CREATE)
    assert not trouble.value.maybe_applied


def test_a_proxy_or_a_role_is_left_to_obstore() -> None:
    target = StoreSpec("s3", "bucket", "", (("endpoint", "http://127.0.0.1:1"),), KEYS)
    role = StoreSpec("s3", "bucket", "", (("endpoint", "http://127.0.0.1:1"),))
    assert CloudStore(target, environ={})._client.direct is not None
    assert CloudStore(target, environ={"HTTPS_PROXY": "http://127.0.0.1:2"})._client.direct is None
    assert CloudStore(role, environ={})._client.direct is None
