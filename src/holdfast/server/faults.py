"""How failures leave over HTTP: one JSON shape, and one table of reasons.

    {"error": {"kind": "invalid", "reason": "wrong_checksum", "message": "...", "remedy": "..."}}

``kind`` is that of ``holdfast.base.errors``, and its status stands in the table there. ``reason`` says more, and a few
reasons have a status of their own, below: HTTP has words for them that the kinds have not. A client decides by status
and reason; message and remedy are for people.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.base.errors import TABLE, Ambiguous, HoldfastError, Unavailable
from holdfast.ingest.frame import FrameInvalid, Reason


class Row(NamedTuple):
    kind: str
    status: int
    meaning: str


REASONS: dict[str, Row] = {
    "missing_header": Row("invalid", 400, "a header that every batch has is absent"),
    "bad_header": Row("invalid", 400, "a header cannot be read"),
    "bad_request": Row("invalid", 400, "the request is no HTTP, or something in it is wrong: a parameter, its body"),
    "unauthenticated": Row("denied", 401, "there is no token, or it is not valid"),
    "agent_not_allowed": Row("denied", 403, "the token is valid, and not for this agent"),
    "identity_quarantined": Row("denied", 403, "an operator holds this agent and boot; keep the batch and try later"),
    "denied": Row("denied", 403, "the store does not let this collector do it"),
    "no_such_route": Row("not_found", 404, "nothing is served at this path"),
    "not_found": Row("not_found", 404, "the path is served, and there is nothing of this name: a metric, a conflict"),
    "method_not_allowed": Row("invalid", 405, "the path is served, and not by this method"),
    "timeout": Row("invalid", 408, "the request did not come in time"),
    "identity_conflict": Row("refused", 409, "other bytes were accepted under this identity; keep the batch"),
    "refused": Row("refused", 409, "a safety rule forbids it, such as to decide again what is final"),
    "conflict": Row("conflict", 409, "somebody else has changed it meanwhile"),
    "incompatible": Row("incompatible", 409, "what is stored has a format that this version does not know"),
    "length_required": Row("invalid", 411, "Content-Length is absent"),
    "too_large": Row("invalid", 413, "the body or what it unpacks to is beyond the limits"),
    "content_encoding": Row("invalid", 415, "Content-Encoding is given; frames are compressed inside"),
    "header_mismatch": Row("invalid", 422, "the headers name another batch than the body holds"),
    "rate_limited": Row("unavailable", 429, "too many requests per second with this token"),
    "concurrency_limited": Row("unavailable", 429, "too many requests at a time with this token"),
    "error": Row("error", 500, "the collector failed; its log says how"),
    "corrupt": Row("corrupt", 500, "stored bytes are not what they should be; tell the operator"),
    "overloaded": Row("unavailable", 503, "the collector has no room for this request now"),
    "draining": Row("unavailable", 503, "the collector is about to end; ask another"),
    "not_ready": Row("unavailable", 503, "the collector cannot write to its store, or to its spool"),
    "unavailable": Row("unavailable", 503, "the store did not answer, and nothing was accepted; send the same again"),
    "outcome_unknown": Row("ambiguous", 503, "what was sent may or may not be on record; send it again to learn which"),
}
"""All reasons but those of a frame (``Reason``, status 400). An error of ours that has no reason has its kind for one,
and what is invalid is a bad request."""

_FRAMES = {
    Reason.MAGIC: "send one frame as the body, and nothing around it",
    Reason.VERSION: "upgrade the collector before its senders",
    Reason.FLAGS: "upgrade the collector before its senders",
    Reason.LENGTH: "the bytes were cut or changed on the way: send the frame as it was made",
    Reason.CHECKSUM: "the bytes were cut or changed on the way: send the frame as it was made",
    Reason.TOO_LARGE: "send smaller batches",
}
_REMEDIES = {
    "invalid": "see /openapi.json for what is taken here",
    "not_found": "list what there is, and look for its name",
    "denied": "give this collector's credentials the rights of its role",
    "incompatible": "upgrade this collector",
    "refused": "look at what stands against it first",
}
_ANY_REMEDY = "look into the collector's log"

RETRY_AFTER_S = 1


class Fault(HoldfastError):
    """A refusal with a reason of the table. ``fields`` go into the JSON beside the message."""

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
        """The methods of a path, which a 405 has to name."""
        self.retry_after_s = retry_after_s
        self.fields = fields or {}


class Failure(NamedTuple):
    """What is sent: the status, the headers that belong to it, and the document."""

    status: int
    reason: str
    headers: dict[str, str]
    document: dict[str, Any]


def failure_of(error: Exception) -> Failure:
    """Every exception as an answer. What is no error of ours says nothing of itself to the outside."""
    if isinstance(error, Fault):
        row = REASONS[error.reason]
        failure = _failure(row.kind, error.reason, row.status, error, error.retry_after_s, error.fields)
        if error.allow:
            failure.headers["allow"] = error.allow
        return failure
    if isinstance(error, FrameInvalid):
        status = 413 if error.reason is Reason.TOO_LARGE else TABLE[error.kind].http_status
        remedy = _FRAMES.get(error.reason, "mend what makes these frames: as they are, none is taken")
        return _failure(error.kind, error.reason.value, status, error, remedy=remedy)
    if isinstance(error, HoldfastError):
        retry = RETRY_AFTER_S if isinstance(error, Unavailable | Ambiguous) else None
        reason = "bad_request" if error.kind == "invalid" else error.kind
        return _failure(error.kind, reason, error.http_status, error, retry)
    internal = HoldfastError("the server failed; its log says how", remedy="send the same request later")
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
    """``remedy`` is for an error that names none."""
    headers = {}
    if status in (429, 503):
        headers["retry-after"] = str(max(1, math.ceil(retry_after_s or RETRY_AFTER_S)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    named = error.remedy or remedy or _REMEDIES.get(kind, _ANY_REMEDY)
    body: dict[str, Any] = {"kind": kind, "reason": reason, "message": str(error), "remedy": named}
    return Failure(status, reason, headers, {"error": {**body, **(fields or {})}})
