"""What an answer of a collector means to an agent, and what an answer of another server does not."""

import hashlib
import json
from collections.abc import Callable
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


HTML = b"<h1>Sign in</h1>"
CONFLICT = error("conflict", reason="identity_conflict")
RESOLVED = "existing_is_authoritative"
PRIVATE = "is this the private address? use that of --listen"


@pytest.mark.parametrize(
    ("status", "document", "headers", "means"),
    [
        (200, {"duplicate": True}, {}, Taken(True)),
        (200, {"duplicate": False, "frame_sha256": HASH}, {}, Taken(False)),
        (409, CONFLICT, {}, Conflict("409 why")),
        (409, error("identity_conflict", resolution=RESOLVED), {}, Conflict("409 why", resolved=True)),
        (409, {**error("identity_conflict"), "resolution": RESOLVED}, {}, Conflict("409 why", resolved=True)),
        *((each, error("invalid", reason="r"), {}, Rejected("r", f"{each} why")) for each in (400, 411, 413, 415, 422)),
        (401, error("denied", reason="unauthenticated"), {}, Denied("unauthenticated", "401 why")),
        (403, error("denied", reason="identity_quarantined"), {}, Denied("identity_quarantined", "403 why")),
        (429, error("unavailable"), {"Retry-After": "7"}, Busy("429 why", 7_000)),
        (503, error("unavailable"), {"Retry-After": "7"}, Busy("503 why", 7_000)),
        *(
            (status, error("kind", reason=reason), {}, NoAnswer(f"{status} why: {PRIVATE}", "wrong_address"))
            for status, reason in ((404, "no_such_route"), (421, "misdirected"))
        ),
    ],
)
def test_what_an_answer_of_a_collector_means(
    status: int, document: object, headers: dict[str, str], means: Answer
) -> None:
    assert answer(status, document, **headers) == means


@pytest.mark.parametrize("body", [{}, [], "ok", {"duplicate": "no"}, {"duplicate": False, "frame_sha256": "0" * 64}])
def test_a_200_without_a_receipt_for_the_frame_removes_nothing(body: object) -> None:
    assert isinstance(answer(200, body), NoAnswer)


def test_an_answer_without_the_error_document_of_a_collector_decides_nothing() -> None:
    for status in (200, 400, 401, 403, 409, 411, 413, 415, 422):
        assert isinstance(answer_of(status, {}, HTML, FRAME), NoAnswer)
        assert isinstance(answer(status, {}), NoAnswer)
    for status in (301, 404, 405, 409, 500, 502, 504):
        assert isinstance(answer(status, error("refused")), NoAnswer)
    assert answer(401, {}) == NoAnswer("401 without the error document of a collector")


def test_a_retry_after_date_is_compared_with_the_date_header() -> None:
    headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert retry_after_ms(headers) == 30_000
    assert retry_after_ms({"Retry-After": "soon"}) == 0
    assert retry_after_ms({}) == 0


Handle = Callable[[httpx.Request], httpx.Response]


async def posted(
    handle: Handle, identity: BatchIdentity = BATCH.identity, url: str = "https://a.test/", **options: Any
) -> Answer:
    async with httpx.AsyncClient(transport=httpx.MockTransport(handle), follow_redirects=True) as client:
        return await HttpTransport(client, [url], lambda: "secret", **options).post(0, identity, FRAME)


class Seen(list[httpx.Request]):
    """Requests, each answered alike."""

    def __init__(self, status: int = 200, **headers: str) -> None:
        super().__init__()
        self._status, self._headers = status, headers

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.append(request)
        return httpx.Response(self._status, headers=self._headers, json={"duplicate": False})


async def test_a_request_carries_frame_numbers_and_token() -> None:
    seen = Seen()
    assert await posted(seen) == Taken(False)
    assert await posted(seen, BatchIdentity("wäb", "b", 0, 0)) == Taken(False)
    request, other = seen
    assert (str(request.url), request.content) == ("https://a.test/ingest/v1/batch", FRAME)
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["X-Lightmetrics-Agent"] == "web-1"
    assert (request.headers["X-Lightmetrics-Seq-Start"], request.headers["X-Lightmetrics-Seq-End"]) == ("7", "8")
    assert "Content-Encoding" not in request.headers
    assert (b"X-Lightmetrics-Agent", "wäb".encode()) in other.headers.raw


async def test_a_connection_error_and_an_endless_answer_are_no_answer() -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    assert await posted(silent) == NoAnswer("refused")
    assert isinstance(await posted(lambda _: httpx.Response(200, content=b"x" * 1_000_000)), NoAnswer)


@pytest.mark.parametrize(
    "asked",
    ["9" * 5_000, "Sun, 06 Nov 1994 08:49:37 -0000", "Sun, 06 Nov 1994 08:49:37 +99999999", "soon", "-1", "1.5", ""],
)
def test_an_invalid_retry_after_is_ignored(asked: str) -> None:
    headers = {"Retry-After": asked, "Date": "Sun, 06 Nov 1994 08:49:00 GMT"}
    answer = answer_of(503, headers, b"", b"frame")
    assert isinstance(answer, Busy)
    assert 0 <= answer.retry_after_ms <= 10**12


LOCAL = ("http://LOCALHOST:8080", "http://127.0.0.1", "http://127.1.2.3:80/path", "http://[::1]:8080")
ELSEWHERE = (
    *("http://collector", "HTTP://collector", "http://10.0.0.1", "http://0.0.0.0", "http://[::]", "http://localhost."),
    *("http://localhost.example.com", "http://127.0.0.1.example.com", "http://127.1", "http://2130706433"),
    *("http://0x7f.0.0.1", "http://[::ffff:127.0.0.1]", "http://[0:0:0:0:0:ffff:7f00:1]", "http://[::1%25eth0]"),
)
"""Some systems resolve a few of these to loopback; only the normal forms count."""


@pytest.mark.parametrize("url", LOCAL)
def test_plain_http_is_allowed_to_this_machine(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_no_token_goes_to_another_machine_over_plain_http(url: str) -> None:
    seen = Seen()
    with pytest.raises(Invalid, match="is another machine, and plain HTTP would send the token") as caught:
        await posted(seen, url=url)
    assert f"http://{httpx.URL(url).host}" in str(caught.value)
    assert "use https://, or allow it with unsafe_plain_http" in str(caught.value.remedy)
    assert "secret" not in str(caught.value)
    assert not seen
    assert await posted(seen, url=url, unsafe_plain_http=True) == Taken(False)


@pytest.mark.parametrize(
    "url",
    ["http://localhost:80@example.com", "http://127.0.0.1\\@example.com", "http://:p@localhost", "http://0177.0.0.1"],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    for unsafe in (False, True):
        with pytest.raises(Invalid, match="is not the URL of a collector"):
            check_url(url, unsafe_plain_http=unsafe)


@pytest.mark.parametrize("target", ["https://a.test/elsewhere", "http://a.test/ingest/v1/batch", "https://c.test"])
async def test_a_redirect_is_not_followed(target: str) -> None:
    seen = Seen(307, Location=target)
    assert isinstance(await posted(seen), NoAnswer)
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
