"""The error or outcome for every answer of a server. This pins the behaviour of obstore, too."""

import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from holdfast.base.errors import Contended, Denied, HoldfastError, Invalid, NotFound, Unavailable
from holdfast.objects.cloud import CloudStore
from holdfast.objects.cloud.errors import NoBucket
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, IfMatch, Lost, Mode, Part, Version
from holdfast.objects.uri import StoreSpec
from tests.integration.scripted_server import (
    HANG_UP,
    SILENCE,
    Answer,
    Reply,
    Request,
    ScriptedServer,
    error_body,
)
from tests.integration.servers import free_port

KEYS = (("access_key_id", "key"), ("secret_access_key", "secret"))
IF_MATCH = IfMatch(Version('"etag"'))
CONDITIONAL: list[Mode] = [CREATE, ADDRESSED, IF_MATCH]


def store_at(endpoint: str, **options: str) -> CloudStore:
    target = StoreSpec("s3", "bucket", "", (("endpoint", endpoint), *options.items()), KEYS)
    return CloudStore(target, environ={})


async def first_page(store: CloudStore) -> object:
    async for page in store.list("a/"):
        return page
    return None


async def folders(store: CloudStore) -> object:
    async for page in store.list("a/", delimiter=True):
        return page
    return None


READS: dict[str, Callable[[CloudStore], Awaitable[object]]] = {
    "get": lambda store: store.get("k"),
    "get unless": lambda store: store.get_unless("k", Version('"etag"')),
    "head": lambda store: store.head("k"),
    "range": lambda store: store.range("k", 0, 5),
    "list": first_page,
    "folders": folders,
}
WRITES: dict[str, Callable[[CloudStore], Awaitable[object]]] = {
    "create": lambda store: store.put("k", b"x", CREATE),
    "addressed": lambda store: store.put("k", b"x", ADDRESSED),
    "if-match": lambda store: store.put("k", b"x", IF_MATCH),
    "overwrite": lambda store: store.put("k", b"x", OVERWRITE),
    "delete": lambda store: store.delete("k"),
    "delete many": lambda store: store.delete_many(["k", "l"]),
}
VERBS = READS | WRITES


async def caught(call: Awaitable[object]) -> HoldfastError:
    with pytest.raises(HoldfastError) as error:
        await call
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is None
    return error.value


@pytest.mark.parametrize("mode", CONDITIONAL)
async def test_412_is_lost_and_409_is_contended(mode: Mode) -> None:
    async with ScriptedServer(Answer(412, error_body("PreconditionFailed"))) as server:
        assert await store_at(server.endpoint).put("k", b"x", mode) == Lost()
        server.reply = Answer(409, error_body("ConditionalRequestConflict"))
        error = await caught(store_at(server.endpoint).put("k", b"x", mode))
        assert isinstance(error, Contended)
        assert not error.maybe_applied
        assert server.seen == ["PUT /bucket/k"] * 2


async def test_404_is_lost_only_for_if_match_and_only_for_an_object() -> None:
    async with ScriptedServer(Answer(404, error_body("NoSuchKey"))) as server:
        store = store_at(server.endpoint)
        assert await store.put("k", b"x", IF_MATCH) == Lost()
        server.reply = Answer(404, error_body("NoSuchBucket"))
        for mode in (IF_MATCH, CREATE, OVERWRITE):
            error = await caught(store.put("k", b"x", mode))
            assert isinstance(error, NoBucket)
            assert str(error) == f"s3://bucket: no such bucket at {server.endpoint}"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer(404, error_body("NoSuchBucket")), NoBucket, "s3://bucket: no such bucket at "),
        (Answer(403, error_body("SignatureDoesNotMatch")), Denied, "with the keys in the settings"),
        (Answer(401, error_body("Unauthorized")), Denied, "with the keys in the settings"),
        (Answer(400, error_body("ExpiredToken")), Denied, "with the keys in the settings"),
        (Answer(301, error_body("PermanentRedirect")), Invalid, "another region"),
    ],
)
async def test_an_answer_that_a_retry_does_not_change(
    verb: str, answer: Answer, kind: type[HoldfastError], words: str
) -> None:
    if verb == "head" and answer.status in (400, 404):
        return  # it has no body, so the code is unknown
    async with ScriptedServer(answer) as server:
        error = await caught(VERBS[verb](store_at(server.endpoint)))
        assert isinstance(error, kind)
        assert words in str(error)
        assert "secret" not in f"{error} {error.remedy}"
        assert len(server.requests) == 1


@pytest.mark.parametrize("verb", ["get", "get unless", "head", "range"])
async def test_a_missing_object(verb: str) -> None:
    async with ScriptedServer(Answer(404, error_body("NoSuchKey"))) as server:
        error = await caught(VERBS[verb](store_at(server.endpoint)))
        assert isinstance(error, NotFound)
        assert str(error) == "s3://bucket/k: no such object"
        assert "list the keys" in str(error.remedy)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("reply", "writes_maybe_applied"),
    [
        (Answer(500, error_body("InternalError")), True),
        (Answer(502, b"<html>bad gateway</html>"), True),
        (Answer(503, error_body("ServiceUnavailable")), True),
        (Answer(503, error_body("SlowDown")), False),
        (Answer(429, b""), False),
        (HANG_UP, True),
        (SILENCE, True),
    ],
    ids=["500", "502", "503", "slow down", "429", "hang up", "silence"],
)
async def test_a_failure_is_not_retried_and_says_whether_a_write_may_have_landed(
    verb: str, reply: Reply, writes_maybe_applied: bool
) -> None:
    async with ScriptedServer(reply) as server:
        error = await caught(VERBS[verb](store_at(server.endpoint, request_timeout_ms="300")))
        assert type(error) is Unavailable
        assert error.maybe_applied is (writes_maybe_applied and verb in WRITES)
        assert server.endpoint in str(error)
        assert len(server.requests) == 1


@pytest.mark.parametrize("verb", VERBS)
async def test_a_refused_connection(verb: str) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    error = await caught(VERBS[verb](store_at(endpoint)))
    assert type(error) is Unavailable
    assert not error.maybe_applied
    assert f"cannot connect to {endpoint}: connection refused" in str(error)


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that takes no more connections, and does not say so: its queue is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_a_failed_connection_has_sent_nothing(deaf_port: int) -> None:
    store = store_at(f"http://127.0.0.1:{deaf_port}", connect_timeout_ms="200")
    error = await caught(WRITES["create"](store))
    assert type(error) is Unavailable
    assert not error.maybe_applied
    assert "no answer in time" in str(error)


async def test_a_truncated_response_is_unavailable() -> None:
    half = Answer(200, b"x" * 100, {"etag": '"e"'}, cut_at=10)
    async with ScriptedServer(half) as server:
        error = await caught(READS["get"](store_at(server.endpoint)))
        assert type(error) is Unavailable
        assert "the answer was cut off" in str(error)
        server.reply = Answer(206, b"x" * 5, {"etag": '"e"', "content-range": "bytes 0-4/100"}, cut_at=2)
        assert type(await caught(READS["range"](store_at(server.endpoint)))) is Unavailable


def past_the_end(refusal: Answer) -> Callable[[Request], Reply]:
    whole = {"etag": '"e"', "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT", "content-length": "10"}
    return lambda request: Answer(200, b"", whole) if request.method == "HEAD" else refusal


@pytest.mark.parametrize(
    "refusal",
    [
        Answer(416, error_body("InvalidRange")),
        Answer(206, b"", {"etag": '"e"', "content-range": "bytes 10-9/10"}),  # as some servers write it
    ],
    ids=["416", "206"],
)
async def test_a_range_past_the_end_is_empty_and_has_the_size_of_the_object(refusal: Answer) -> None:
    async with ScriptedServer(past_the_end(refusal)) as server:
        assert await store_at(server.endpoint).range("k", 10, 20) == Part(b"", 10, '"e"')
        assert server.requests[0].headers["range"] == "bytes=10-19"
        assert server.seen == ["GET /bucket/k", "HEAD /bucket/k"]


async def test_a_server_without_etags_is_an_error() -> None:
    async with ScriptedServer(Answer(200, b"hello")) as server:
        assert isinstance(await caught(READS["get"](store_at(server.endpoint))), Invalid)
        error = await caught(WRITES["create"](store_at(server.endpoint)))
        assert type(error) is Unavailable
        assert error.maybe_applied


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_write_does_not_follow_a_redirect(status: int) -> None:
    async with ScriptedServer(Answer(200, b"", {"etag": '"e"'})) as elsewhere:
        away = Answer(status, b"", {"location": f"{elsewhere.endpoint}/bucket/k"})
        async with ScriptedServer(away) as server:
            for verb in ("create", "addressed", "if-match", "overwrite"):
                error = await caught(WRITES[verb](store_at(server.endpoint)))
                assert isinstance(error, Invalid)
                assert "another region" in str(error)
            assert elsewhere.seen == []


async def test_a_bulk_delete_that_succeeds_in_part_is_a_failure() -> None:
    body = (
        b"<DeleteResult><Deleted><Key>a</Key></Deleted>"
        b"<Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    async with ScriptedServer(Answer(200, body)) as server:
        error = await caught(store_at(server.endpoint).delete_many(["a", "b"]))
        assert isinstance(error, Denied)
        assert "s3://bucket/b:" in str(error)
        server.reply = Answer(200, body.replace(b"AccessDenied", b"InternalError"))
        error = await caught(store_at(server.endpoint).delete_many(["a", "b"]))
        assert type(error) is Unavailable
        assert "s3://bucket/b:" in str(error)


async def test_a_truncated_listing_is_unavailable() -> None:
    async with ScriptedServer(Answer(200, b"<ListBucketResult>" + b" " * 100, cut_at=50)) as server:
        assert type(await caught(first_page(store_at(server.endpoint)))) is Unavailable


async def test_a_key_that_is_not_a_path_is_named() -> None:
    entry = "<Contents><Key>a//b</Key><Size>0</Size><LastModified>2024-01-01T00:00:00Z</LastModified></Contents>"
    body = f"<ListBucketResult>{entry}</ListBucketResult>".encode()
    async with ScriptedServer(Answer(200, body)) as server:
        error = await caught(first_page(store_at(server.endpoint)))
        assert isinstance(error, Invalid)
        assert "a//b" in str(error)


async def test_a_key_is_not_read_as_a_status() -> None:
    async with ScriptedServer(Answer(409, error_body("ConditionalRequestConflict"))) as server:
        for key in ("status: 412,", 'a", status: 412, "', "<Code>NoSuchBucket</Code>"):
            assert isinstance(await caught(store_at(server.endpoint).put(key, b"x", CREATE)), Contended)


@pytest.mark.parametrize(("status", "expected"), [(404, Denied), (500, Unavailable)])
async def test_without_credentials_only_the_metadata_service_gets_requests(
    status: int, expected: type[HoldfastError]
) -> None:
    async with ScriptedServer(Answer(200)) as server, ScriptedServer(Answer(status)) as instance:
        target = StoreSpec("s3", "bucket", options=(("endpoint", server.endpoint),))
        store = CloudStore(target, environ={"AWS_EC2_METADATA_SERVICE_ENDPOINT": instance.endpoint})
        for mode in (CREATE, IF_MATCH, OVERWRITE):
            error = await caught(store.put("k", b"x", mode))
            assert type(error) is expected
            assert "no credentials were found" in str(error)
        assert server.seen == []
        assert instance.seen == ["PUT /latest/api/token"] * 3


async def test_without_credentials_and_metadata_service_the_error_comes_soon(deaf_port: int) -> None:
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{deaf_port}"}
    async with ScriptedServer(Answer(200)) as server:
        store = CloudStore(StoreSpec("s3", "bucket", options=(("endpoint", server.endpoint),)), environ=environ)
        error = await caught(store.get("k"))
        assert isinstance(error, Denied)
        assert "AWS_ACCESS_KEY_ID" in (error.remedy or "")
