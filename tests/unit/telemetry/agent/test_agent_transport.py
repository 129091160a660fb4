"""What an answer of a collector means to an agent, and what an answer of another server does not."""

import hashlib
import json
from typing import Any

import httpx
import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry.agent.sender import Answer, Busy, Conflict, Denied, NoAnswer, Rejected, Taken
from holdfast.telemetry.agent.transport import HttpTransport, answer_of, check_url, http_client, retry_after_ms
from holdfast.telemetry.frame import encode, pack
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Log
from tests.unit.server.server_desk import listening

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
    assert isinstance(answer(200, body), NoAnswer)


def test_a_login_page_removes_nothing() -> None:
    assert isinstance(answer_of(200, {}, b"<html>Sign in</html>", FRAME), NoAnswer)


def test_conflicts() -> None:
    assert answer(409, error("conflict", reason="identity_conflict")) == Conflict("409 why")
    resolved = error("identity_conflict", resolution="existing_is_authoritative")
    assert answer(409, resolved) == Conflict("409 why", resolved=True)
    assert answer(409, {**error("identity_conflict"), "resolution": "existing_is_authoritative"}) == Conflict(
        "409 why", resolved=True
    )
    assert isinstance(answer(409, error("refused")), NoAnswer)
    assert isinstance(answer(409, {}), NoAnswer)


@pytest.mark.parametrize("status", [400, 411, 413, 415, 422])
def test_only_a_collector_can_say_that_a_batch_will_never_do(status: int) -> None:
    assert answer(status, error("invalid", reason="too_large")) == Rejected("too_large", f"{status} why")
    assert isinstance(answer(status, {}), NoAnswer)
    assert isinstance(answer_of(status, {}, b"<h1>Request Entity Too Large</h1>", FRAME), NoAnswer)


@pytest.mark.parametrize("status", [301, 404, 405, 500, 502, 504])
def test_anything_else_decides_nothing(status: int) -> None:
    assert isinstance(answer(status, error("unavailable")), NoAnswer)


def test_who_sends_is_refused_apart_from_what_is_sent() -> None:
    assert answer(401, error("denied", reason="unauthenticated")) == Denied("unauthenticated", "401 why")
    assert answer(403, error("denied", reason="identity_quarantined")) == Denied("identity_quarantined", "403 why")


@pytest.mark.parametrize("status", [401, 403])
def test_only_a_collector_can_say_that_a_sender_is_not_allowed(status: int) -> None:
    assert answer(status, {}) == NoAnswer(f"{status} without the error document of a collector")
    assert isinstance(answer_of(status, {}, b"<h1>Sign in</h1>", FRAME), NoAnswer)


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
        transport = HttpTransport(client, ["https://a.test/", "https://b.test"], lambda: "secret")
        assert await transport.post(0, BATCH.identity, FRAME) == Taken(False)
    (request,) = seen
    assert str(request.url) == "https://a.test/ingest/v1/batch"
    assert request.content == FRAME
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["X-Lightmetrics-Agent"] == "web-1"
    assert (request.headers["X-Lightmetrics-Seq-Start"], request.headers["X-Lightmetrics-Seq-End"]) == ("7", "8")
    assert "Content-Encoding" not in request.headers


async def test_no_answer_is_silence() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        transport = HttpTransport(client, ["https://a.test"], lambda: "secret")
        assert await transport.post(0, BatchIdentity("a", "b", 0, 0), FRAME) == NoAnswer("refused")


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(200, content=b"x" * 1_000_000))
    ) as client:
        transport = HttpTransport(client, ["https://a.test"], lambda: "secret")
        assert isinstance(await transport.post(0, BATCH.identity, FRAME), NoAnswer)


async def test_a_name_that_is_no_ascii_is_sent_as_it_is() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"duplicate": False})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        transport = HttpTransport(client, ["https://a.test"], lambda: "secret")
        assert await transport.post(0, BatchIdentity("wäb", "b", 0, 0), FRAME) == Taken(False)
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


LOCAL = (
    "http://localhost",
    "http://LOCALHOST:8080",
    "http://127.0.0.1",
    "http://127.1.2.3:80/path",
    "http://[::1]:8080",
)
ELSEWHERE = (
    "http://collector",
    "http://10.0.0.1",
    "http://0.0.0.0",
    "http://[::]",
    "http://localhost.example.com",
    "http://localhost.",
    "http://127.0.0.1.example.com",
    "http://127.1",
    "http://2130706433",
    "http://0x7f.0.0.1",
    "http://[::ffff:127.0.0.1]",
    "http://[::ffff:10.0.0.1]",
    "http://[0:0:0:0:0:ffff:7f00:1]",
    "http://[::1%25eth0]",
    "HTTP://collector",
)
"""Some systems resolve a few of these to loopback; only the normal forms count."""


@pytest.mark.parametrize("url", LOCAL)
def test_plain_http_is_allowed_to_this_machine(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_no_token_goes_to_another_machine_over_plain_http(url: str) -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"duplicate": False})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        with pytest.raises(Invalid, match="is another machine, and plain HTTP would send the token") as caught:
            await HttpTransport(client, [url], lambda: "secret").post(0, BATCH.identity, FRAME)
        assert f"http://{httpx.URL(url).host}" in str(caught.value)
        assert "use https://, or allow it with unsafe_plain_http" in str(caught.value.remedy)
        assert "secret" not in str(caught.value)
        assert not seen
        allowed = HttpTransport(client, [url], lambda: "secret", unsafe_plain_http=True)
        assert await allowed.post(0, BATCH.identity, FRAME) == Taken(False)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:80@example.com",
        "http://127.0.0.1\\@example.com",
        "http://:p@localhost",
        "http://@localhost",
        "http://0177.0.0.1",
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    for unsafe in (False, True):
        with pytest.raises(Invalid, match="is not the URL of a collector"):
            check_url(url, unsafe_plain_http=unsafe)


@pytest.mark.parametrize("target", ["https://a.test/elsewhere", "http://a.test/ingest/v1/batch", "https://c.test"])
async def test_a_redirect_is_not_followed(target: str) -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(307, headers={"Location": target})

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle), follow_redirects=True) as client:
        transport = HttpTransport(client, ["https://a.test"], lambda: "secret")
        assert isinstance(await transport.post(0, BATCH.identity, FRAME), NoAnswer)
    assert [str(request.url) for request in seen] == ["https://a.test/ingest/v1/batch"]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
async def test_a_proxy_of_the_environment_gets_no_request_over_plain_http(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def proxy(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"duplicate": false}'})

    seen: list[str] = []
    async with listening(proxy) as url:
        monkeypatch.setenv(name, url)
        for other in ("NO_PROXY", "no_proxy", name.lower()):
            monkeypatch.delenv(other, raising=False)
        async with http_client(timeout=5.0, verify=True, limits=httpx.Limits(), environment_proxies=True) as client:
            answered = await HttpTransport(client, ["http://127.0.0.1:1"], lambda: "secret").post(
                0, BATCH.identity, FRAME
            )
    assert isinstance(answered, NoAnswer)
    assert not seen
