"""Failures as HTTP responses: one JSON shape, and one table of reasons.

    {"error": {"kind": "invalid", "reason": "wrong_checksum", "message": "...", "remedy": "..."}}

``kind`` is that of ``holdfast.base.errors``, whose table gives its status. ``reason`` is more precise, and some reasons
have a status of their own, below. A client decides by status and reason; message and remedy are for people.
"""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from holdfast.base.errors import TABLE, Ambiguous, HoldfastError, Unavailable
from holdfast.server.logs import log_refusal
from holdfast.telemetry.frame import FrameInvalid, Reason

if TYPE_CHECKING:
    from holdfast.server.metrics import Metrics


class Row(NamedTuple):
    kind: str
    status: int
    meaning: str


REASONS: dict[str, Row] = {
    "missing_header": Row("invalid", 400, "a required header is missing"),
    "bad_header": Row("invalid", 400, "a header cannot be read"),
    "bad_request": Row("invalid", 400, "a parameter, the body or the head of the request is wrong"),
    "unauthenticated": Row("denied", 401, "the token is missing or not valid"),
    "agent_not_allowed": Row("denied", 403, "the token is valid, but not for this agent"),
    "identity_quarantined": Row(
        "denied", 403, "an operator has put this agent and boot in quarantine; keep the batch and try later"
    ),
    "foreign_origin": Row("denied", 403, "the request comes from a web page of another origin"),
    "denied": Row("denied", 403, "the store does not allow the collector to do it"),
    "no_such_route": Row("not_found", 404, "this path does not exist"),
    "not_found": Row("not_found", 404, "the path exists, but what it names does not: a metric, a conflict"),
    "method_not_allowed": Row("invalid", 405, "the path exists, but not with this method"),
    "timeout": Row("invalid", 408, "the request did not arrive in time"),
    "identity_conflict": Row("refused", 409, "other bytes were accepted under this identity; keep the batch"),
    "refused": Row("refused", 409, "a safety rule forbids it, such as changing a final decision"),
    "conflict": Row("conflict", 409, "it was changed by another request in the meantime"),
    "incompatible": Row("incompatible", 409, "stored data has a format that this version cannot read"),
    "length_required": Row("invalid", 411, "Content-Length is missing"),
    "too_large": Row("invalid", 413, "the body, or what it unpacks to, is beyond the limits"),
    "content_encoding": Row("invalid", 415, "Content-Encoding is not supported; frames are compressed inside"),
    "misdirected": Row("denied", 421, "the private listener does not answer for the name in Host"),
    "record_times": Row(
        "invalid", 422, "a record is too old or dated in the future, or the records are of too many hours"
    ),
    "header_mismatch": Row("invalid", 422, "the headers name another batch than the body holds"),
    "rate_limited": Row("unavailable", 429, "too many requests per second with this token"),
    "concurrency_limited": Row("unavailable", 429, "too many requests at a time with this token"),
    "error": Row("error", 500, "the collector failed; see its log"),
    "corrupt": Row("corrupt", 500, "stored bytes are damaged; tell the operator"),
    "overloaded": Row("unavailable", 503, "the collector has no room for this request or connection now"),
    "draining": Row("unavailable", 503, "the collector is shutting down; use another"),
    "not_ready": Row("unavailable", 503, "the collector cannot write to its store, or to its spool"),
    "unavailable": Row("unavailable", 503, "the store did not answer, and nothing was accepted; send the same again"),
    "outcome_unknown": Row("ambiguous", 503, "the write may or may not have happened; send it again to find out"),
}
"""All reasons except those of a frame (``Reason``, status 400). The reason of any other error of ours is its kind, or
``bad_request`` for ``invalid``."""

FRAME_REASONS = tuple(reason.value for reason in Reason if reason is not Reason.TOO_LARGE)

_FRAMES = {
    Reason.MAGIC: "send exactly one frame as the body",
    Reason.VERSION: "upgrade collectors before senders",
    Reason.FLAGS: "upgrade collectors before senders",
    Reason.LENGTH: "the bytes were truncated or changed on the way: send the original frame",
    Reason.CHECKSUM: "the bytes were truncated or changed on the way: send the original frame",
    Reason.TOO_LARGE: "send smaller batches",
}
_REMEDIES = {
    "invalid": "see /openapi.json",
    "not_found": "list what exists, and check the name",
    "denied": "give this collector's credentials the permissions of its role",
    "incompatible": "upgrade this collector",
    "refused": "see the message for what forbids it",
}
_ANY_REMEDY = "see the collector's log"

RETRY_AFTER_S = 1


class Fault(HoldfastError):
    """A refusal with a reason of the table. ``fields`` are added to the JSON."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        remedy: str,
        retry_after_s: float | None = None,
        fields: Mapping[str, Any] | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason
        self.allow = allow
        """For a 405: the methods of the path."""
        self.retry_after_s = retry_after_s
        self.fields = fields or {}


def draining(fields: Mapping[str, Any] | None = None) -> Fault:
    message = "this collector is shutting down"
    return Fault("draining", message, remedy="send batches to another collector", fields=fields)


class Failure(NamedTuple):
    """The response to a request that failed."""

    status: int
    reason: str
    headers: dict[str, str]
    document: dict[str, Any]


def failure_of(error: Exception) -> Failure:
    """The response for an exception. The message of an exception that is not ours is not sent."""
    if isinstance(error, Fault):
        row = REASONS[error.reason]
        failure = _failure(row.kind, error.reason, row.status, error, error.retry_after_s, error.fields)
        if error.allow:
            failure.headers["allow"] = error.allow
        return failure
    if isinstance(error, FrameInvalid):
        status = 413 if error.reason is Reason.TOO_LARGE else TABLE[error.kind].http_status
        remedy = _FRAMES.get(error.reason, "fix the sender: its frames are not valid")
        return _failure(error.kind, error.reason.value, status, error, remedy=remedy)
    if isinstance(error, HoldfastError):
        retry = RETRY_AFTER_S if isinstance(error, Unavailable | Ambiguous) else None
        reason = "bad_request" if error.kind == "invalid" else error.kind
        return _failure(error.kind, reason, error.http_status, error, retry)
    internal = HoldfastError("the collector failed; see its log", remedy="send the same request later")
    return _failure(internal.kind, internal.kind, internal.http_status, internal)


def _failure(
    kind: str,
    reason: str,
    status: int,
    error: HoldfastError,
    retry_after_s: float | None = None,
    fields: Mapping[str, Any] | None = None,
    remedy: str = "",
) -> Failure:
    """``remedy`` is used if the error has none."""
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(retry_after_s or RETRY_AFTER_S)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    remedy = error.remedy or remedy or _REMEDIES.get(kind, _ANY_REMEDY)
    body: dict[str, Any] = {"kind": kind, "reason": reason, "message": str(error), "remedy": remedy}
    return Failure(status, reason, headers, {"error": {**body, **(fields or {})}})


class Answers:
    """Responses of one listener, counted and logged. ``listener`` is ``ingest`` or ``private``."""

    def __init__(self, metrics: "Metrics", listener: str) -> None:
        self._metrics = metrics
        self._listener = listener

    def document(self, document: dict[str, Any]) -> Response:
        return self.body(as_json(document))

    def body(self, body: bytes) -> Response:
        self._metrics.count_response(self._listener, 200, "ok")
        return Response(body, 200, media_type="application/json")

    def refusal(self, request: Request, error: Exception) -> Response:
        failure = failure_of(error)
        self._metrics.count_response(self._listener, failure.status, failure.reason)
        log_refusal(request, failure, error)
        return Response(as_json(failure.document), failure.status, failure.headers, media_type="application/json")


def as_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
