"""What the store does with connections: who is trusted, what is believed of an answer, several event loops."""

import asyncio
import ssl

import pytest

from holdfast.base.errors import Invalid, Unavailable
from holdfast.objects.cloud import CloudStore
from holdfast.objects.store import CREATE, IfMatch, Version, Written
from holdfast.objects.uri import StoreSpec
from tests.integration.scripted_server import SILENCE, Answer, ScriptedServer
from tests.integration.servers import S3Server
from tests.tidy.tree import ROOT

TLS = ROOT / "tests/golden/tls"
KEYS = (("access_key_id", "key"), ("secret_access_key", "secret"))
OK = Answer(200, b"hello", {"etag": '"e1"', "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"})


def store_at(endpoint: str, **options: str) -> CloudStore:
    return CloudStore(StoreSpec("s3", "bucket", "", (("endpoint", endpoint), *options.items()), KEYS), environ={})


async def test_a_cancelled_request_releases_its_permit() -> None:
    async with ScriptedServer(SILENCE) as server:
        store = store_at(server.endpoint, requests_in_flight="1")
        asked = asyncio.ensure_future(store.put("k", b"x", CREATE))
        while not server.requests:
            await asyncio.sleep(0.001)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server.reply = OK
        assert isinstance(await store.put("k", b"x", CREATE), Written)


def test_a_store_may_be_used_in_one_loop_after_another(s3_server: S3Server, bucket: str) -> None:
    store = CloudStore(s3_server.target(bucket, requests_in_flight="2"), environ={})

    async def written(body: bytes) -> None:
        keys = [f"k{number}" for number in range(6)]  # more than permits: some wait, which binds to a loop
        answers = await asyncio.gather(*(store.put(key, body) for key in keys))
        assert all(isinstance(answer, Written) for answer in answers)

    for body in (b"one", b"two"):
        asyncio.run(written(body))
        assert asyncio.run(store.get("k5")).body == body


async def test_a_server_whose_certificate_is_not_trusted_gets_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(TLS / "issued-certificate.pem", TLS / "issued-key.pem")
    monkeypatch.setenv("AWS_ALLOW_INVALID_CERTIFICATES", "true")  # obstore would read it
    async with ScriptedServer(OK, tls=server_side) as server:
        with pytest.raises(Unavailable, match="its certificate is not trusted") as trouble:
            await store_at(server.endpoint).put("k", b"x", CREATE)
        assert not trouble.value.maybe_applied
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "issuer.pem"))
        store = store_at(server.endpoint)
        body = bytes(range(256)) * 1000
        assert isinstance(await store.put("k", body, CREATE), Written)
        assert server.requests[0].body == body
        assert (await store.get("k")).body == b"hello"


async def test_a_server_that_does_not_speak_tls() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        with pytest.raises(Unavailable, match="it does not speak TLS") as trouble:
            await store_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}").put("k", b"x", CREATE)
        assert not trouble.value.maybe_applied


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"hel", "bytes 1-3/5"), (b"he", "bytes 0-1/*"), (b"hello", "bytes 0-4/5"), (b"hel", "bytes 0-1/5"), (b"he", "")],
)
async def test_a_response_with_another_range_is_rejected(body: bytes, says: str) -> None:
    async with ScriptedServer(Answer(206, body, {**OK.headers, "content-range": says})) as server:
        with pytest.raises(Unavailable):
            await store_at(server.endpoint).range("k", 0, 2)


async def test_a_body_of_unknown_length_is_rejected() -> None:
    """Only the end of the connection ends it, and a server that dies looks the same."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b'HTTP/1.1 200 OK\r\netag: "e"\r\nlast-modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n'
        writer.write(head + b"hel")
        writer.close()

    async with await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        store = store_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for call in (store.get("k"), store.get_unless("k", Version('"f"')), store.range("k", 0, 3)):
            with pytest.raises(Unavailable):
                await call


@pytest.mark.parametrize("version", ['"e"\r\nx-amz-acl: public-read', "é", '"e"\x00'])
async def test_a_version_cannot_inject_a_header(version: str) -> None:
    async with ScriptedServer(OK) as server:
        store = store_at(server.endpoint)
        for call in (store.put("k", b"x", IfMatch(Version(version))), store.get_unless("k", Version(version))):
            with pytest.raises(Invalid, match="is not a version"):
                await call
        assert server.requests == []
