"""What routes say of themselves in OpenAPI: bodies, parameters, statuses. Kept apart so that routes stay readable."""

from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query
from fastapi.responses import PlainTextResponse

from holdfast.base.errors import Invalid
from holdfast.ingest.frame import Reason
from holdfast.ingest.select import Wanted
from holdfast.server import shapes
from holdfast.server.faults import REASONS
from holdfast.server.shapes import Schema
from holdfast.server.stream import EventStream

FRAME = tuple(reason.value for reason in Reason if reason is not Reason.TOO_LARGE)
STORE = ("denied", "incompatible", "corrupt", "error", "unavailable")
"""Why a question to the store may have no answer."""
STREAM_PATH = "/api/v1/live/stream"
EVENT_SCHEMAS = {name: f"Stream{name.capitalize()}" for name in shapes.EVENTS}
"""What each event of the stream is called among the components."""


def refusals(*reasons: str, fields: dict[int, Schema] | None = None) -> dict[int | str, dict[str, Any]]:
    """By status, each with the reasons that it can have, and with what an error has beside them."""
    by_status: dict[int, list[str]] = {}
    for reason in reasons:
        by_status.setdefault(400 if reason in FRAME else REASONS[reason].status, []).append(reason)
    return {status: _refusal(status, by_status[status], (fields or {}).get(status)) for status in sorted(by_status)}


def _refusal(status: int, reasons: list[str], fields: Schema | None) -> dict[str, Any]:
    schema = shapes.error(reasons, fields)
    found: dict[str, Any] = {"description": ", ".join(reasons), "content": {"application/json": {"schema": schema}}}
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    if status == 401:
        found["headers"] = {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}}
    return found


def _header(name: str, kind: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": True, "schema": {"type": kind}, "description": meaning}


def _ok(meaning: str, schema: dict[str, Any] | None = None, media: str = "application/json") -> dict[str, Any]:
    return {"description": meaning, "content": {media: {"schema": schema or {"type": "object"}}}}


class Described(FastAPI):
    """An application whose description is true: of what the framework adds by itself, only what there is."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            found = super().openapi()
            operations = [each for path in found["paths"].values() for each in path.values()]
            for operation in operations:
                if "HTTPValidationError" in str(operation["responses"].get("422")):
                    del operation["responses"]["422"]  # wrong parameters are 400, in our own shape
            parts = found.setdefault("components", {})
            for name in ("HTTPValidationError", "ValidationError"):
                parts.get("schemas", {}).pop(name, None)
            if STREAM_PATH in found["paths"]:
                schemas = {EVENT_SCHEMAS[name]: schema for name, schema in shapes.EVENTS.items()}
                parts.setdefault("schemas", {}).update(schemas)
            if any("security" in operation for operation in operations):
                parts["securitySchemes"] = SCHEMES
        return super().openapi()


SCHEMES = {"token": {"type": "http", "scheme": "bearer", "description": "A token from `holdfast tokens add`."}}
BATCH: dict[str, Any] = {
    "responses": {
        200: _ok("accepted, now or before", shapes.RECEIPT),
        **refusals(
            *("missing_header", "bad_header", "bad_request", *FRAME),
            *("unauthenticated", "agent_not_allowed", "identity_quarantined", "timeout", "identity_conflict"),
            *("length_required", "too_large", "content_encoding", "header_mismatch"),
            *("rate_limited", "concurrency_limited", "overloaded", "draining", "outcome_unknown"),
            *("incompatible", "corrupt", "error", "unavailable"),
            fields={409: shapes.CONFLICT},
        ),
    },
    "openapi_extra": {
        "security": [{"token": []}],
        "parameters": [
            _header("X-Lightmetrics-Agent", "string", "The agent id in the frame."),
            _header("X-Lightmetrics-Seq-Start", "integer", "The first sequence number in the frame."),
            _header("X-Lightmetrics-Seq-End", "integer", "The last sequence number in the frame."),
        ],
        "requestBody": {
            "required": True,
            "description": "A frame, as docs/formats.md has it. No Content-Encoding.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
}
LIVE: dict[str, Any] = {"responses": {200: _ok("what is known", shapes.LIVE), **refusals("bad_request", "error")}}
_EVENTS = {name: {"$ref": f"#/components/schemas/{schema}"} for name, schema in EVENT_SCHEMAS.items()}
STREAM: dict[str, Any] = {
    "response_class": EventStream,
    "responses": {
        200: {
            **_ok(f"events {', '.join(_EVENTS)}; data is JSON", shapes.TEXT, "text/event-stream"),
            "x-events": _EVENTS,
        },
        **refusals("bad_request", "error"),
    },
}
METRICS: dict[str, Any] = {
    "response_class": PlainTextResponse,
    "responses": {200: _ok("figures, in the text format of Prometheus", shapes.TEXT, "text/plain")},
}
HEALTH: dict[str, Any] = {"responses": {200: _ok("alive", shapes.ALIVE)}}
READY: dict[str, Any] = {
    "responses": {
        200: _ok("ready", shapes.READY),
        **refusals("draining", "not_ready", fields={503: shapes.STANDING}),
    }
}
READY_TO_ALL: dict[str, Any] = {
    "responses": {200: _ok("ready", shapes.READY_TO_ALL), **refusals("draining", "not_ready")}
}


def _wanted(
    agent: Annotated[str, Query(description="A pattern of agent ids: * and ? stand for any characters.")] = "*",
    name: Annotated[str | None, Query(description="The name of a metric or an alert; logs are then left out.")] = None,
    label: Annotated[list[str] | None, Query(description="name=value, repeatable; all must fit.")] = None,
    since_ns: Annotated[int | None, Query(ge=0, description="Only what was seen since, in ns since 1970.")] = None,
    series: Annotated[int, Query(ge=1, description="At most so many series, logs and alerts.")] = 1_000,
    points: Annotated[int, Query(ge=1, description="The latest so many points of each series.")] = 60,
) -> Wanted:
    labels: dict[str, str] = {}
    for pair in label or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Invalid(f"label {pair!r} is not name=value", remedy="write label=host=web-1")
        labels[key] = value
    return Wanted(agent, name, labels, since_ns, series, points)


WANTED = Depends(_wanted)
