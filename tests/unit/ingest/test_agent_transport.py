"""What an answer of a collector means to an agent, and what an answer of somebody else does not."""

import hashlib
import json

import httpx
import pytest

from holdfast.ingest.agent.sender import Answer, Busy, Conflict, Denied, Rejected, Silent, Taken
from holdfast.ingest.frame import Identity, encode, pack
from holdfast.ingest.records import Log
from holdfast.ingest.transport import HttpTransport, answer_of, retry_after_ms

BATCH = pack("web-1", "boot", [Log("one", 1), Log("two", 2)], seq_start=7)
FRAME = encode(BATCH)
HASH = hashlib.sha256(FRAME).hexdigest()


def answer(status: int, document: object, **headers: str) -> Answer:
    return answer_of(status, headers, json.dumps(document).encode(), FRAME)


def error(kind: str, **rest: str) -> dict[str, object]:
    return {"error": {"kind": kind, "message": "why", **rest}}


@pytest.mark.parametrize("duplicate", [True, False])
def test_200_says_whether_it_was_there_before(duplicate: bool) -> None:
    assert answer(200, {"duplicate": duplicate}) == Taken(duplicate)
    assert answer(200, {"duplicate": duplicate, "frame_sha256": HASH}) == Taken(duplicate)


@pytest.mark.parametrize("body", [{}, [], "ok", {"duplicate": "no"}, {"duplicate": False, "frame_sha256": "0" * 64}])
def test_200_of_somebody_else_removes_nothing(body: object) -> None:
    assert isinstance(answer(200, body), Silent)


def test_a_login_page_removes_nothing() -> None:
    assert isinstance(answer_of(200, {}, b"<html>Sign in</html>", FRAME), Silent)


def test_conflicts() -> None:
    assert answer(409, error("conflict", reason="identity_conflict")) == Conflict("409 why")
    resolved = error("identity_conflict", resolution="existing_is_authoritative")
    assert answer(409, resolved) == Conflict("409 why", resolved=True)
    assert answer(409, {**error("identity_conflict"), "resolution": "existing_is_authoritative"}) == Conflict(
        "409 why", resolved=True
    )
    assert isinstance(answer(409, error("refused")), Silent)
    assert isinstance(answer(409, {}), Silent)


@pytest.mark.parametrize("status", [400, 411, 413, 415, 422])
def test_only_a_collector_can_say_that_a_batch_will_never_do(status: int) -> None:
    assert answer(status, error("invalid", reason="too_large")) == Rejected("too_large", f"{status} why")
    assert isinstance(answer(status, {}), Silent)
    assert isinstance(answer_of(status, {}, b"<h1>Request Entity Too Large</h1>", FRAME), Silent)


@pytest.mark.parametrize("status", [301, 404, 405, 500, 502, 504])
def test_anything_else_decides_nothing(status: int) -> None:
    assert isinstance(answer(status, error("unavailable")), Silent)


def test_who_sends_is_refused_apart_from_what_is_sent() -> None:
    assert answer(401, error("denied", reason="unauthenticated")) == Denied("unauthenticated", "401 why")
    assert answer(403, error("denied", reason="identity_quarantined")) == Denied("identity_quarantined", "403 why")


@pytest.mark.parametrize("status", [401, 403])
def test_only_a_collector_can_say_that_a_sender_is_not_allowed(status: int) -> None:
    assert answer(status, {}) == Silent(f"{status} and not as a collector does")
    assert isinstance(answer_of(status, {}, b"<h1>Sign in</h1>", FRAME), Silent)


@pytest.mark.parametrize("status", [429, 503])
def test_busy_collectors_say_for_how_long(status: int) -> None:
    assert answer(status, error("unavailable"), **{"Retry-After": "7"}) == Busy(f"{status} why", 7_000)


def test_a_date_is_compared_with_the_collectors_own() -> None:
    headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert retry_after_ms(headers) == 30_000
    assert retry_after_ms({"Retry-After": "soon"}) == 0
    assert retry_after_ms({}) == 0


async def test_a_request_carries_frame_numbers_and_token() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"duplicate": False})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        transport = HttpTransport(client, ["http://a.test/", "http://b.test"], lambda: "secret")
        assert await transport.post(0, BATCH.identity, FRAME) == Taken(False)
    (request,) = seen
    assert str(request.url) == "http://a.test/ingest/v1/batch"
    assert request.content == FRAME
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["X-Lightmetrics-Agent"] == "web-1"
    assert (request.headers["X-Lightmetrics-Seq-Start"], request.headers["X-Lightmetrics-Seq-End"]) == ("7", "8")
    assert "Content-Encoding" not in request.headers


async def test_no_answer_is_silence() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        transport = HttpTransport(client, ["http://a.test"], lambda: "secret")
        assert await transport.post(0, Identity("a", "b", 0, 0), FRAME) == Silent("refused")


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(200, content=b"x" * 1_000_000))
    ) as client:
        transport = HttpTransport(client, ["http://a.test"], lambda: "secret")
        assert isinstance(await transport.post(0, BATCH.identity, FRAME), Silent)


async def test_a_name_that_is_no_ascii_is_sent_as_it_is() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"duplicate": False})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        transport = HttpTransport(client, ["http://a.test"], lambda: "secret")
        assert await transport.post(0, Identity("wäb", "b", 0, 0), FRAME) == Taken(False)
    assert (b"X-Lightmetrics-Agent", "wäb".encode()) in seen[0].headers.raw


@pytest.mark.parametrize(
    "asked",
    ["9" * 5_000, "Sun, 06 Nov 1994 08:49:37 -0000", "Sun, 06 Nov 1994 08:49:37 +99999999", "soon", "-1", "1.5", ""],
)
def test_whatever_a_proxy_asks_for_is_no_reason_to_fail(asked: str) -> None:
    headers = {"Retry-After": asked, "Date": "Sun, 06 Nov 1994 08:49:00 GMT"}
    answer = answer_of(503, headers, b"", b"frame")
    assert isinstance(answer, Busy)
    assert 0 <= answer.retry_after_ms <= 10**12
