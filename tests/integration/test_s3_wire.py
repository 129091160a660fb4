"""What goes over the wire: how many requests, with which headers, to each of the three kinds of store."""

import asyncio
import base64
from collections.abc import Callable

import pytest

from holdfast.objects.cloud import CloudStore
from holdfast.objects.cloud.store import LARGE_BYTES, PART_BYTES
from holdfast.objects.store import (
    ADDRESSED,
    CREATE,
    OVERWRITE,
    IfMatch,
    Lost,
    Mode,
    Version,
    Written,
)
from holdfast.objects.uri import StoreSpec
from tests.integration.scripted_server import Answer, Reply, Request, ScriptedServer, error_body

KEYS = (("access_key_id", "key"), ("secret_access_key", "secret"))
OK = Answer(
    200,
    b"hello",
    {"etag": '"e1"', "x-goog-generation": "17", "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"},
)


def target(server: ScriptedServer, scheme: str = "s3", **options: str) -> StoreSpec:
    secrets = {
        "s3": KEYS,
        "gs": (("bearer_token", "token"),),
        "az": (("account_key", base64.b64encode(b"k" * 32).decode()),),
    }[scheme]
    return StoreSpec(scheme, "bucket", "", (("endpoint", server.endpoint), *options.items()), secrets)


async def test_every_verb_is_one_request() -> None:
    async with ScriptedServer(OK) as server:
        store = CloudStore(target(server), environ={})
        await store.get("k")
        await store.get_unless("k", Version('"e0"'))
        await store.head("k")
        await store.put("k", b"x", CREATE)
        await store.put("k", b"x", IfMatch(Version('"e1"')))
        await store.put("k", b"x", OVERWRITE)
        assert server.seen == ["GET /bucket/k"] * 2 + ["HEAD /bucket/k"] + ["PUT /bucket/k"] * 3
        server.requests.clear()
        server.reply = Answer(200, b"<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>")
        await store.delete("k")
        await store.delete_many(["k", "l", "m"])
        assert server.seen == ["POST /bucket?delete"] * 2
        server.requests.clear()
        server.reply = Answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
        assert len([page async for page in store.list("a/", after="a/b")]) == 1
        assert len([page async for page in store.list("a/", delimiter=True)]) == 1
        assert server.seen == [
            "GET /bucket?list-type=2&prefix=a%2F&start-after=a%2Fb",
            "GET /bucket?delimiter=%2F&list-type=2&prefix=a%2F",
        ]


async def test_conditions_of_s3_are_etags_in_headers() -> None:
    async with ScriptedServer(OK) as server:
        store = CloudStore(target(server), environ={})
        await store.put("k", b"x", CREATE)
        await store.put("k", b"x", IfMatch(Version('"e1"')))
        await store.get_unless("k", Version('"e0"'))
        await store.put("k", b"x")
        create, if_match, unless, plain = (request.headers for request in server.requests)
        assert create["if-none-match"] == "*"
        assert if_match["if-match"] == '"e1"'
        assert unless["if-none-match"] == '"e0"'
        assert not plain.keys() & {"if-match", "if-none-match"}


async def test_unquoted_if_match() -> None:
    async with ScriptedServer(OK) as server:
        store = CloudStore(target(server, unquoted_if_match="true"), environ={})
        written = await store.put("k", b"x", CREATE)
        assert written == Written(Version('"e1"'))
        await store.put("k", b"y", IfMatch(written.version))
        assert server.requests[1].headers["if-match"] == "e1"


async def test_encryption_and_session_token_pass_through() -> None:
    async with ScriptedServer(OK) as server:
        secrets = (*KEYS, ("session_token", "temporary"))
        options = (("endpoint", server.endpoint), ("sse", "aws:kms"), ("sse_kms_key_id", "my-key"))
        store = CloudStore(StoreSpec("s3", "bucket", "", options, secrets), environ={})
        await store.put("k", b"x", CREATE)
        headers = server.requests[0].headers
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "my-key"
        assert headers["x-amz-security-token"] == "temporary"
        assert "x-amz-security-token" in headers["authorization"]
        aes = CloudStore(target(server, sse="AES256"), environ={})
        await aes.put("k", b"x", CREATE)
        assert server.requests[1].headers["x-amz-server-side-encryption"] == "AES256"


async def test_anonymous_requests_are_not_signed() -> None:
    async with ScriptedServer(OK) as server:
        await CloudStore(target(server, anonymous="true"), environ={}).get("k")
        assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("bulk", ["true", "false"])
async def test_deletes_are_counted_as_the_requests_that_are_sent(bulk: str) -> None:
    async with ScriptedServer(Answer(200, b"<DeleteResult><Deleted><Key>0</Key></Deleted></DeleteResult>")) as server:
        store = CloudStore(target(server, bulk_delete=bulk), environ={})
        for keys in (1, 1000, 1001):
            server.requests.clear()
            await store.delete_many([f"{number}" for number in range(keys)])
            assert len(server.requests) == store.delete_requests(keys)
            assert {request.method for request in server.requests} == {"POST" if bulk == "true" else "DELETE"}


def multipart(requests: list[Request]) -> Callable[[Request], Reply]:
    def reply(request: Request) -> Reply:
        requests.append(request)
        if request.method == "POST" and "uploads" in request.target:
            body = "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
            return Answer(200, body.encode())
        if request.method == "POST":
            body = '<CompleteMultipartUploadResult><ETag>"e-n"</ETag></CompleteMultipartUploadResult>'
            return Answer(200, body.encode())
        return Answer(200, b"", {"etag": '"part"'})

    return reply


async def test_only_large_bodies_without_a_condition_go_up_in_parts() -> None:
    requests: list[Request] = []
    large = bytes(LARGE_BYTES + 1)
    parts = -(-len(large) // PART_BYTES)
    async with ScriptedServer(multipart(requests)) as server:
        store = CloudStore(target(server), environ={})
        for mode in (OVERWRITE, ADDRESSED):
            requests.clear()
            assert await store.put("k", large, mode) == Written(Version('"e-n"'))
            assert [request.method for request in requests] == ["POST", *["PUT"] * parts, "POST"]
            assert store.put_requests(len(large), mode) == len(requests)
        single: list[tuple[bytes, Mode]] = [
            (large, CREATE),
            (large, IfMatch(Version('"e"'))),
            (bytes(LARGE_BYTES), OVERWRITE),
        ]
        for body, condition in single:
            requests.clear()
            await store.put("k", body, condition)
            assert [(request.method, len(request.body)) for request in requests] == [("PUT", len(body))]


class Gate:
    """Answers when the test says so; counts how many waited at once."""

    def __init__(self) -> None:
        self.waiting = 0
        self.largest = 0
        self.turn = asyncio.Event()

    async def __call__(self, request: Request) -> Reply:
        self.waiting += 1
        self.largest = max(self.largest, self.waiting)
        await self.turn.wait()
        self.waiting -= 1
        return Answer(200, b"hello", {"etag": '"e"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"})


async def test_requests_in_flight_are_limited() -> None:
    gate = Gate()
    async with ScriptedServer(gate) as server:
        store = CloudStore(target(server, requests_in_flight="3"), environ={})
        verbs = [store.get("k"), store.head("k"), store.put("k", b"x"), store.find("k"), store.find("l")]
        calls = [asyncio.ensure_future(verb) for verb in (*verbs, *(store.get(f"k{n}") for n in range(15)))]
        while gate.waiting < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)  # for those that should not come
        cancelled = calls[-2:]
        for call in cancelled:
            call.cancel()
        gate.turn.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers if isinstance(answer, BaseException)] == [asyncio.CancelledError] * 2
        assert len(server.requests) == 18
    assert gate.largest == 3


async def test_conditions_of_azure_are_etags_and_blob_already_exists_is_lost() -> None:
    async with ScriptedServer(OK) as server:
        store = CloudStore(target(server, "az", account="account"), environ={})
        written = await store.put("a/k%é", b"x", CREATE)
        assert written == Written(Version('"e1"'))
        assert server.seen == ["PUT /bucket/a/k%25%C3%A9"]
        await store.put("k", b"x", IfMatch(written.version))
        create, update = (request.headers for request in server.requests)
        assert create["if-none-match"] == "*"
        assert update["if-match"] == '"e1"'
        server.reply = Answer(409, error_body("BlobAlreadyExists"))
        assert await store.put("k", b"x", CREATE) == Lost()
        server.reply = Answer(412, error_body("ConditionNotMet"))
        assert await store.put("k", b"x", IfMatch(written.version)) == Lost()
        server.reply = Answer(404, error_body("BlobNotFound"))
        assert await store.put("k", b"x", IfMatch(written.version)) == Lost()


def batch(status: str) -> Answer:
    """What Azure answers to a batch of one."""
    lines = ["--b", "Content-Type: application/http", "Content-ID: 0", "", f"HTTP/1.1 {status}", "", "", "--b--", ""]
    return Answer(202, "\r\n".join(lines).encode(), {"content-type": "multipart/mixed; boundary=b"})


async def test_deletes_on_azure_ignore_missing_blobs() -> None:
    async with ScriptedServer(batch("202 Accepted")) as server:
        store = CloudStore(target(server, "az", account="account"), environ={})
        await store.delete("k")
        server.reply = batch("404 The specified blob does not exist.")
        await store.delete_many(["k", "l"])
        assert server.seen == ["POST /bucket?restype=container&comp=batch"] * 3
        assert store.delete_requests(2) == 2
