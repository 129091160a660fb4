"""What the port makes of every answer. The behaviour of obstore in between is pinned here, too."""

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
    with pytest.raises(HoldfastError) as trouble:
        await call
    assert "\n" not in str(trouble.value)
    assert trouble.value.__cause__ is None
    return trouble.value


@pytest.mark.parametrize("mode", CONDITIONAL)
async def test_412_is_lost_and_409_is_contended(mode: Mode) -> None:
    async with ScriptedServer(Answer(412, error_body("PreconditionFailed"))) as server:
        assert await store_at(server.endpoint).put("k", b"x", mode) == Lost()
        server.reply = Answer(409, error_body("ConditionalRequestConflict"))
        trouble = await caught(store_at(server.endpoint).put("k", b"x", mode))
        assert isinstance(trouble, Contended)
        assert not trouble.maybe_applied
        assert server.seen == ["PUT /bucket/k"] * 2


async def test_404_is_lost_only_for_if_match_and_only_for_an_object() -> None:
    async with ScriptedServer(Answer(404, error_body("NoSuchKey"))) as server:
        store = store_at(server.endpoint)
        assert await store.put("k", b"x", IF_MATCH) == Lost()
        server.reply = Answer(404, error_body("NoSuchBucket"))
        for mode in (IF_MATCH, CREATE, OVERWRITE):
            trouble = await caught(store.put("k", b"x", mode))
            assert isinstance(trouble, NoBucket)
            assert str(trouble) == f"s3://bucket: no such bucket at {server.endpoint}"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "head"])
async def test_a_missing_bucket_is_named_by_every_verb(verb: str) -> None:
    async with ScriptedServer(Answer(404, error_body("NoSuchBucket"))) as server:
        trouble = await caught(VERBS[verb](store_at(server.endpoint)))
        assert isinstance(trouble, NoBucket)
        assert "s3://bucket: no such bucket" in str(trouble)
        assert len(server.requests) == 1


@pytest.mark.parametrize("verb", ["get", "get unless", "head", "range"])
async def test_a_missing_object(verb: str) -> None:
    async with ScriptedServer(Answer(404, error_body("NoSuchKey"))) as server:
        trouble = await caught(VERBS[verb](store_at(server.endpoint)))
        assert isinstance(trouble, NotFound)
        assert str(trouble) == "s3://bucket/k: no such object"
        assert "list the keys" in str(trouble.remedy)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("status", "code"), [(403, "SignatureDoesNotMatch"), (401, "Unauthorized")])
async def test_refused_access(verb: str, status: int, code: str) -> None:
    async with ScriptedServer(Answer(status, error_body(code))) as server:
        trouble = await caught(VERBS[verb](store_at(server.endpoint)))
        assert isinstance(trouble, Denied)
        assert "asked with the keys in the settings" in str(trouble)
        assert len(server.requests) == 1


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
async def test_trouble_is_not_repeated_here_and_says_whether_it_may_have_landed(
    verb: str, reply: Reply, writes_maybe_applied: bool
) -> None:
    async with ScriptedServer(reply) as server:
        trouble = await caught(VERBS[verb](store_at(server.endpoint, request_timeout_ms="300")))
        assert type(trouble) is Unavailable
        assert trouble.maybe_applied is (writes_maybe_applied and verb in WRITES)
        assert server.endpoint in str(trouble)
        assert len(server.requests) == 1


@pytest.mark.parametrize("verb", VERBS)
async def test_nobody_listens(verb: str) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    trouble = await caught(VERBS[verb](store_at(endpoint)))
    assert type(trouble) is Unavailable
    assert not trouble.maybe_applied
    assert f"cannot connect to {endpoint}: connection refused" in str(trouble)


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


async def test_a_connection_that_does_not_come_about_has_carried_nothing(deaf_port: int) -> None:
    store = store_at(f"http://127.0.0.1:{deaf_port}", connect_timeout_ms="200")
    trouble = await caught(WRITES["create"](store))
    assert type(trouble) is Unavailable
    assert not trouble.maybe_applied
    assert "no answer in time" in str(trouble)


async def test_half_an_answer_is_no_answer() -> None:
    half = Answer(200, b"x" * 100, {"etag": '"e"'}, cut_at=10)
    async with ScriptedServer(half) as server:
        trouble = await caught(READS["get"](store_at(server.endpoint)))
        assert type(trouble) is Unavailable
        assert "the answer was cut off" in str(trouble)
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


async def test_a_server_without_etags_is_not_taken_for_a_store() -> None:
    async with ScriptedServer(Answer(200, b"hello")) as server:
        assert isinstance(await caught(READS["get"](store_at(server.endpoint))), Invalid)
        trouble = await caught(WRITES["create"](store_at(server.endpoint)))
        assert type(trouble) is Unavailable
        assert trouble.maybe_applied


@pytest.mark.parametrize("verb", VERBS)
async def test_a_bucket_in_another_region(verb: str) -> None:
    async with ScriptedServer(Answer(301, error_body("PermanentRedirect"))) as server:
        trouble = await caught(VERBS[verb](store_at(server.endpoint)))
        assert isinstance(trouble, Invalid)
        assert "another region" in str(trouble)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_write_does_not_follow_a_redirect(status: int) -> None:
    async with ScriptedServer(Answer(200, b"", {"etag": '"e"'})) as elsewhere:
        away = Answer(status, b"", {"location": f"{elsewhere.endpoint}/bucket/k"})
        async with ScriptedServer(away) as server:
            for verb in ("create", "addressed", "if-match", "overwrite"):
                trouble = await caught(WRITES[verb](store_at(server.endpoint)))
                assert isinstance(trouble, Invalid)
                assert "another region" in str(trouble)
            assert elsewhere.seen == []


async def test_an_expired_token_is_refused_access() -> None:
    async with ScriptedServer(Answer(400, error_body("ExpiredToken"))) as server:
        for verb in ("get", "create", "delete", "list"):
            trouble = await caught(VERBS[verb](store_at(server.endpoint)))
            assert isinstance(trouble, Denied)
            assert "secret" not in str(trouble) + str(trouble.remedy)


async def test_a_bulk_delete_that_succeeds_in_part_is_a_failure() -> None:
    body = (
        b"<DeleteResult><Deleted><Key>a</Key></Deleted>"
        b"<Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    async with ScriptedServer(Answer(200, body)) as server:
        trouble = await caught(store_at(server.endpoint).delete_many(["a", "b"]))
        assert isinstance(trouble, Denied)
        assert "s3://bucket/b:" in str(trouble)
        server.reply = Answer(200, body.replace(b"AccessDenied", b"InternalError"))
        trouble = await caught(store_at(server.endpoint).delete_many(["a", "b"]))
        assert type(trouble) is Unavailable
        assert "s3://bucket/b:" in str(trouble)


async def test_a_listing_that_breaks_off_says_so() -> None:
    async with ScriptedServer(Answer(200, b"<ListBucketResult>" + b" " * 100, cut_at=50)) as server:
        assert type(await caught(first_page(store_at(server.endpoint)))) is Unavailable


async def test_a_key_that_is_not_a_path_is_named() -> None:
    entry = "<Contents><Key>a//b</Key><Size>0</Size><LastModified>2024-01-01T00:00:00Z</LastModified></Contents>"
    body = f"<ListBucketResult>{entry}</ListBucketResult>".encode()
    async with ScriptedServer(Answer(200, body)) as server:
        trouble = await caught(first_page(store_at(server.endpoint)))
        assert isinstance(trouble, Invalid)
        assert "a//b" in str(trouble)


async def test_a_key_cannot_pass_for_an_answer() -> None:
    async with ScriptedServer(Answer(409, error_body("ConditionalRequestConflict"))) as server:
        for key in ("status: 412,", 'a", status: 412, "', "<Code>NoSuchBucket</Code>"):
            assert isinstance(await caught(store_at(server.endpoint).put(key, b"x", CREATE)), Contended)


@pytest.mark.parametrize(("status", "expected"), [(404, Denied), (500, Unavailable)])
async def test_without_credentials_the_instance_is_asked_and_the_store_never(
    status: int, expected: type[HoldfastError]
) -> None:
    async with ScriptedServer(Answer(200)) as server, ScriptedServer(Answer(status)) as instance:
        target = StoreSpec("s3", "bucket", options=(("endpoint", server.endpoint),))
        store = CloudStore(target, environ={"AWS_EC2_METADATA_SERVICE_ENDPOINT": instance.endpoint})
        for mode in (CREATE, IF_MATCH, OVERWRITE):
            trouble = await caught(store.put("k", b"x", mode))
            assert type(trouble) is expected
            assert "no credentials were found" in str(trouble)
        assert server.seen == []
        assert instance.seen == ["PUT /latest/api/token"] * 3


async def test_without_credentials_and_without_an_instance_the_answer_comes_soon(deaf_port: int) -> None:
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{deaf_port}"}
    async with ScriptedServer(Answer(200)) as server:
        store = CloudStore(StoreSpec("s3", "bucket", options=(("endpoint", server.endpoint),)), environ=environ)
        trouble = await caught(store.get("k"))
        assert isinstance(trouble, Denied)
        assert "AWS_ACCESS_KEY_ID" in (trouble.remedy or "")
