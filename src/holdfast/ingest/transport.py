"""One batch to one collector over HTTP, and what its answer means. Knows no queue and retries nothing.

``answer_of`` is pure and decides by what a collector of ours says, not by a status alone: a proxy's 404 or the 200 of a
login page must neither park nor remove a batch, and its 401 says nothing of our token. Whatever cannot be understood is
``Silent``.
"""

import hashlib
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from holdfast.ingest.agent.sender import (
    IDENTITY_CONFLICT,
    MISNAMED,
    UNTRUSTED,
    Answer,
    Busy,
    Conflict,
    Denied,
    Rejected,
    Silent,
    Taken,
)
from holdfast.ingest.frame import Identity

PATH = "/ingest/v1/batch"
AGENT_HEADER = b"X-Lightmetrics-Agent"
SEQ_START_HEADER = b"X-Lightmetrics-Seq-Start"
SEQ_END_HEADER = b"X-Lightmetrics-Seq-End"
AUTHORITATIVE = "existing_is_authoritative"
MOST_ANSWER_BYTES = 64 << 10
"""More is no answer of a collector."""
MOST_DIGITS = 9
"""Of the seconds in Retry-After. Whoever asks for more is a proxy that is out of its mind."""
_REFUSING = {400, 411, 413, 415, 422}
_BUSY = {429, 503}
_OTHER_NAME = {62, 64}
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""


class HttpTransport:
    """``urls`` are the collectors, in the order in which they are tried. ``token`` is asked before every request, so
    that a token can be replaced while an agent runs."""

    def __init__(self, client: httpx.AsyncClient, urls: Sequence[str], token: Callable[[], str]) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._client = client
        self._token = token

    async def post(self, route: int, identity: Identity, frame: bytes) -> Answer:
        try:
            request = self._client.build_request(
                "POST", self.urls[route] + PATH, content=frame, headers=headers_of(identity, self._token())
            )
            response = await self._client.send(request, stream=True)
            try:
                body = await _body(response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            return _silent(error)
        return answer_of(response.status_code, response.headers, body, frame)


def headers_of(identity: Identity, token: str) -> list[tuple[bytes, bytes]]:
    """As bytes: names of agents are UTF-8."""
    return [
        (b"Authorization", b"Bearer " + token.encode()),
        (b"Content-Type", b"application/octet-stream"),
        (AGENT_HEADER, identity.agent_id.encode()),
        (SEQ_START_HEADER, b"%d" % identity.seq_start),
        (SEQ_END_HEADER, b"%d" % identity.seq_end),
    ]


def answer_of(status: int, headers: Mapping[str, str], body: bytes, frame: bytes) -> Answer:
    document = _document(body)
    if status == 200:
        return _taken(document, frame)
    reason, message = _error(document)
    said = document["error"] if reason else {}
    detail = f"{status} {message or reason or 'and not as a collector does'}"
    if status in {401, 403} and reason:
        return Denied(reason, detail, said)
    if status in _BUSY:
        return Busy(detail, retry_after_ms(headers))
    if status == 409 and reason == IDENTITY_CONFLICT:
        return Conflict(detail, _resolution(document) == AUTHORITATIVE, said)
    if status in _REFUSING and reason:
        return Rejected(reason, detail, said)
    return Silent(detail)


def retry_after_ms(headers: Mapping[str, str]) -> int:
    """Seconds, or a date, which is compared with the answer's own: the clock here may be wrong."""
    asked = headers.get("Retry-After", "")
    if asked.isdecimal():
        return int(asked[:MOST_DIGITS]) * 1000
    try:
        waiting = parsedate_to_datetime(asked) - parsedate_to_datetime(headers.get("Date", ""))
    except (TypeError, ValueError, OverflowError):  # no dates, or one with a time zone and one without
        return 0
    return max(0, int(waiting.total_seconds() * 1000))


def _taken(document: dict[str, Any], frame: bytes) -> Answer:
    duplicate = document.get("duplicate")
    if not isinstance(duplicate, bool):
        return Silent("200 that no collector gave: it does not say whether the batch is a duplicate")
    named = document.get("frame_sha256")
    if named is not None and named != hashlib.sha256(frame).hexdigest():
        return Silent(f"200 for other bytes: {str(named)[:64]}")
    return Taken(duplicate)


def _error(document: dict[str, Any]) -> tuple[str, str]:
    """The word and the sentence in our one shape of errors; both empty for somebody else's."""
    error = document.get("error")
    if not isinstance(error, dict):
        return "", ""
    words = [error.get(name) for name in ("reason", "code", "kind")]
    return next((word for word in words if isinstance(word, str)), ""), str(error.get("message", ""))


def _resolution(document: dict[str, Any]) -> str | None:
    error = document.get("error")
    places = [document, error] if isinstance(error, dict) else [document]
    return next((place["resolution"] for place in places if isinstance(place.get("resolution"), str)), None)


def _document(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def _body(response: httpx.Response) -> bytes:
    pieces = bytearray()
    async for piece in response.aiter_bytes():
        pieces += piece
        if len(pieces) > MOST_ANSWER_BYTES:
            return b""
    return bytes(pieces)


def _silent(error: Exception) -> Silent:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _OTHER_NAME:
                return Silent(f"its certificate is for another name: {cause.verify_message}", MISNAMED)
            return Silent(f"its certificate is not trusted: {cause.verify_message}", UNTRUSTED)
        cause = cause.__cause__ or cause.__context__
    return Silent(" ".join(str(error).split()) or type(error).__name__)
