"""Send one batch to one collector over HTTP and interpret the answer. Knows no queue and retries nothing.

``answer_of`` is pure. It looks at the body and not only at the status, because a proxy may answer too: the 404 of a
proxy or the 200 of a login page must neither park nor remove a batch, and the 401 of a proxy says nothing about our
token. Any answer that does not have the form of a collector's is ``NoAnswer``.

Tokens are protected in three ways. ``check_url`` refuses plain HTTP to another machine unless the caller allows it;
redirects are not followed; and a proxy from the environment is never used for plain HTTP.
"""

import hashlib
import ipaddress
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from holdfast.base.errors import Invalid
from holdfast.objects.uri import shown
from holdfast.telemetry.agent.sender import (
    IDENTITY_CONFLICT,
    UNTRUSTED,
    WRONG_ADDRESS,
    WRONG_NAME,
    Answer,
    Busy,
    Conflict,
    Denied,
    NoAnswer,
    Rejected,
    Taken,
)
from holdfast.telemetry.identity import BatchIdentity

PATH = "/ingest/v1/batch"
AGENT_HEADER = b"X-Lightmetrics-Agent"
SEQ_START_HEADER = b"X-Lightmetrics-Seq-Start"
SEQ_END_HEADER = b"X-Lightmetrics-Seq-End"
AUTHORITATIVE = "existing_is_authoritative"
MOST_ANSWER_BYTES = 64 << 10
"""Collectors answer with less; a longer body is not read to its end."""
MOST_DIGITS = 9
"""Digits of the seconds in Retry-After that are read; a larger number is nonsense."""
_REJECTING = {400, 411, 413, 415, 422}
_BUSY = {429, 503}
_ELSEWHERE = {"no_such_route", "misdirected"}
"""Reasons of a listener that takes no batches."""
_NAME_MISMATCH = {62, 64}
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""
_NOT_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
"""What OpenSSL 3 calls the answer of a server that speaks plain HTTP."""


def check_url(url: str, option: str = "", *, unsafe_plain_http: bool = False) -> str:
    """The URL of a collector, without a trailing slash. ``option`` names its origin in errors.

    ``Invalid`` if it is not such a URL, and for plain HTTP to another machine, where the token could be read on the
    way, unless ``unsafe_plain_http`` is set.
    """
    try:
        parsed = httpx.URL(url)  # the parser of the HTTP client: its host is the one that is connected to
    except httpx.InvalidURL:
        parsed = httpx.URL()
    valid = parsed.scheme in ("http", "https") and parsed.host and (parsed.port is None or 0 < parsed.port < 1 << 16)
    if not valid or parsed.query or parsed.fragment or "@" in url:
        raise Invalid(f"{option}{shown(url)!r} is not the URL of a collector", remedy="write https://host:port")
    if parsed.scheme == "http" and not unsafe_plain_http and not _is_local(parsed.raw_host.decode("ascii")):
        raise Invalid(
            f"{option}http://{parsed.host} is another machine, and plain HTTP would send the token to it unencrypted",
            remedy="use https://, or allow it with unsafe_plain_http (--unsafe-plain-http) in a network that you trust",
        )
    return url.rstrip("/")


def _is_local(host: str) -> bool:
    """Whether ``host`` is ``localhost`` or a loopback address in its normal form. Other forms that some resolvers take
    for loopback (2130706433, 127.1, ::ffff:127.0.0.1, localhost with a dot) do not count."""
    if host in ("localhost", "::1"):
        return True
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


def http_client(
    *, timeout: httpx.Timeout | float, verify: ssl.SSLContext | bool, limits: httpx.Limits, environment_proxies: bool
) -> httpx.AsyncClient:
    """A client that sends no request to collectors through an unencrypted proxy."""
    plain: dict[str, httpx.AsyncBaseTransport | None] = {"http://": None}  # plain HTTP goes directly to the collector
    return httpx.AsyncClient(
        timeout=timeout,
        verify=verify,
        limits=limits,
        trust_env=environment_proxies,
        mounts=plain,
        follow_redirects=False,
    )


def trusting(path: Path, source: str) -> ssl.SSLContext:
    """A TLS context that trusts only the certificates in this file or directory. ``source`` names the option."""
    remedy = "name a file that holds the certificate of the CA in PEM"
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise Invalid(f"{source} {path}: there is no certificate in it", remedy=remedy) from error
    except OSError as error:
        raise Invalid(f"{source} {path}: cannot be read: {error.strerror}", remedy=remedy) from error


class HttpTransport:
    """``urls`` are the collectors, in the order in which they are tried. ``token`` is called before every request, so
    that a token can be replaced while an agent runs."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        urls: Sequence[str],
        token: Callable[[], str],
        *,
        unsafe_plain_http: bool = False,
    ) -> None:
        self.urls = tuple(check_url(url, unsafe_plain_http=unsafe_plain_http) for url in urls)
        self._client = client
        self._token = token

    async def post(self, route: int, identity: BatchIdentity, frame: bytes) -> Answer:
        try:
            request = self._client.build_request(
                "POST", self.urls[route] + PATH, content=frame, headers=headers_of(identity, self._token())
            )
            response = await self._client.send(request, stream=True, follow_redirects=False)
            try:
                body = await _body(response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            return _no_answer(error, self.urls[route])
        return answer_of(response.status_code, response.headers, body, frame)


def headers_of(identity: BatchIdentity, token: str) -> list[tuple[bytes, bytes]]:
    """As bytes, because agent ids may hold any character of Unicode."""
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
    fields = document["error"] if reason else {}
    detail = f"{status} {message or reason or 'without the error document of a collector'}"
    if status in {401, 403} and reason:
        return Denied(reason, detail, fields)
    if status in _BUSY:
        return Busy(detail, retry_after_ms(headers))
    if status == 409 and reason == IDENTITY_CONFLICT:
        return Conflict(detail, _resolution(document) == AUTHORITATIVE, fields)
    if status in _REJECTING and reason:
        return Rejected(reason, detail, fields)
    if reason in _ELSEWHERE:
        return NoAnswer(f"{detail}: is this the private address? use that of --listen", WRONG_ADDRESS)
    return NoAnswer(detail)


def retry_after_ms(headers: Mapping[str, str]) -> int:
    """From seconds, or from a date, which is compared with the Date header because the local clock may be wrong."""
    asked = headers.get("Retry-After", "")
    if asked.isdecimal():
        return int(asked[:MOST_DIGITS]) * 1000
    try:
        waiting = parsedate_to_datetime(asked) - parsedate_to_datetime(headers.get("Date", ""))
    except (TypeError, ValueError, OverflowError):  # not dates, or only one of them has a time zone
        return 0
    return max(0, int(waiting.total_seconds() * 1000))


def _taken(document: dict[str, Any], frame: bytes) -> Answer:
    duplicate = document.get("duplicate")
    if not isinstance(duplicate, bool):
        return NoAnswer("200 without the receipt of a collector: the field duplicate is missing")
    named = document.get("frame_sha256")
    if named is not None and named != hashlib.sha256(frame).hexdigest():
        return NoAnswer(f"200 for other bytes, with the SHA-256 {str(named)[:64]}")
    return Taken(duplicate)


def _error(document: dict[str, Any]) -> tuple[str, str]:
    """The reason and the message of a collector's error document; both are empty for any other document."""
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


def _no_answer(error: Exception, url: str) -> NoAnswer:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _NAME_MISMATCH:
                return NoAnswer(f"its certificate is for another name: {cause.verify_message}", WRONG_NAME)
            return NoAnswer(f"its certificate is not trusted: {cause.verify_message}", UNTRUSTED)
        if isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
            return NoAnswer("the port may speak plain HTTP: use http://")
        cause = cause.__cause__ or cause.__context__
    detail = " ".join(str(error).split()) or type(error).__name__
    # A TLS server closes such a connection, or resets it if it has not read the whole request.
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and url.startswith("http:"):
        detail = f"{detail.rstrip('.')}; the port may speak TLS: use https://"
    return NoAnswer(detail)


class TokenSource:
    """The token in a file, read again when the file changes. Once it was read, a file that is gone changes nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._token = ""
        try:
            self._read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise Invalid(
                f"token file {path} cannot be read: {reason}",
                remedy="name a readable file that holds the token and nothing else",
            ) from error

    def __call__(self) -> str:
        with suppress(OSError, UnicodeDecodeError, Invalid):
            self._read()
        return self._token

    def _read(self) -> None:
        found = self._path.stat()
        if self._seen == (found.st_mtime_ns, found.st_ino):
            return
        self._token = check_token(self._path.read_text(encoding="utf-8"), f"token file {self._path}")
        self._seen = (found.st_mtime_ns, found.st_ino)


def check_token(text: str, source: str, remedy: str = "put the token into it, and nothing else") -> str:
    """The token in ``text``, which may end with a line feed. Errors do not show it, because it may be a secret."""
    token = text.strip()
    if not token:
        raise Invalid(f"{source} is empty", remedy=remedy)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid(f"{source} is not a token: it has spaces or characters that a token cannot have", remedy=remedy)
    return token
