"""What routes say of themselves in OpenAPI: bodies, parameters, statuses. Kept apart so that routes stay readable."""

from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query

from holdfast.base.errors import Invalid
from holdfast.ingest.frame import Reason
from holdfast.ingest.select import Wanted
from holdfast.server.faults import REASONS

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "reason", "message"],
            "properties": {
                "kind": {"type": "string"},
                "reason": {"type": "string"},
                "message": {"type": "string"},
                "remedy": {"type": "string"},
            },
        }
    },
}
RECEIPT: dict[str, Any] = {
    "type": "object",
    "required": ["duplicate", "agent_id", "boot_id", "seq_start", "seq_end", "frame_sha256", "accepted_at_unix_ns"],
    "properties": {
        "duplicate": {"type": "boolean", "description": "Whether the same bytes were accepted before."},
        "agent_id": {"type": "string"},
        "boot_id": {"type": "string"},
        "seq_start": {"type": "integer"},
        "seq_end": {"type": "integer"},
        "frame_sha256": {"type": "string"},
        "accepted_at_unix_ns": {"type": "integer"},
        "collector_id": {"type": "string"},
    },
}


def statuses(*refused: int) -> dict[int | str, dict[str, Any]]:
    """Refusals, each with the reasons that it can have."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in refused:
        reasons = [name for name, row in REASONS.items() if row.status == status]
        if status == 400:
            reasons += [reason.value for reason in Reason if reason is not Reason.TOO_LARGE]
        found[status] = {
            "description": ", ".join(reasons) or "error",
            "content": {"application/json": {"schema": ERROR}},
        }
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
            if any("security" in operation for operation in operations):
                parts["securitySchemes"] = SCHEMES
        return super().openapi()


SCHEMES = {"token": {"type": "http", "scheme": "bearer", "description": "A token from `holdfast tokens add`."}}
BATCH: dict[str, Any] = {
    "responses": {
        200: _ok("accepted, now or before", RECEIPT),
        **statuses(400, 401, 403, 408, 409, 411, 413, 415, 422, 429, 500, 503),
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
LIVE: dict[str, Any] = {"responses": {200: _ok("what is known"), **statuses(400, 500)}}
STREAM: dict[str, Any] = {
    "responses": {200: _ok("events hello, batch and missed", media="text/event-stream"), **statuses(400, 500)}
}
METRICS: dict[str, Any] = {"responses": {200: _ok("figures", {"type": "string"}, "text/plain")}}
HEALTH: dict[str, Any] = {"responses": {200: _ok("alive")}}
READY: dict[str, Any] = {"responses": {200: _ok("ready"), **statuses(503)}}


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
