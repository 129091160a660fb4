"""Bodies of requests and responses as pydantic models, from which OpenAPI is generated.

Responses are built as plain documents and not validated when they are sent; a test validates them.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints

from holdfast.server.errors import FRAME_REASONS, REASONS
from holdfast.telemetry.accept.conflicts import Resolution

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000)]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Receipt(Model):
    duplicate: bool = Field(description="Whether the same bytes were accepted before.")
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    accepted_at_unix_ns: int
    collector_id: str


class Alive(Model):
    status: str
    collector_id: str


class Ready(Model):
    status: str


class State(Model):
    collector_id: str
    authority_id: str
    acceptance: str
    store_problem: str | None = Field(description="Why no batch can be accepted.")
    spool_batches: int | None = Field(description="Accepted on this disk, and not in the store yet.")
    landing_lag_s: float | None = Field(description="Since everything in the spool had landed; null without a spool.")
    landing_problem: str | None = Field(description="Why the last round of landing left batches behind.")
    live_rebuilt: bool = Field(description="Whether live state was rebuilt from the store.")
    follow_lag_s: float | None = Field(description="Of a query collector: since it has seen everything.")
    tokens_problem: str | None = Field(description="Why the token file could not be read again.")


class ReadyState(State):
    status: str


class Error(Model):
    kind: str
    reason: str = Field(description="See the table of reasons in the documentation.")
    message: str
    remedy: str


class ErrorDocument(Model):
    error: Error


class ConflictError(Error):
    """``identity_conflict`` has more fields; the other reasons of status 409 do not."""

    accepted_manifest_key: str | None = None
    accepted_frame_sha256: str | None = None
    quarantine_manifest_key: str | None = Field(None, description="The record of the conflict; null if there is none.")
    resolution: str | None = Field(None, description="The decision of an operator; null if there is none.")


class ConflictErrorDocument(Model):
    error: ConflictError


class NotReadyError(State, Error):
    pass


class NotReadyErrorDocument(Model):
    error: NotReadyError


class Completeness(Model):
    complete: bool = Field(description="Whether everything acknowledged before through_unix_ns is included.")
    collector_id: str
    since_unix_ns: int = Field(description="The start of the window.")
    batches: int = Field(description="Batches in live state.")
    partial_because: str | None = Field(None, description="Only if the answer is not complete.")
    through_unix_ns: int | None = Field(None, description="Only if the answer is complete.")


class Series(Model):
    agent: str
    boot: str
    kind: str
    name: str
    labels: dict[str, str]
    points: list[tuple[int, Any]] = Field(
        description="[time_ns, value]; NaN, +Inf and -Inf are strings; a histogram is an object."
    )


class LogRow(Model):
    agent: str
    boot: str
    seq: int
    time_ns: int
    severity: int
    attributes: dict[str, str]
    message: str


class AlertRow(Model):
    agent: str
    boot: str
    seq: int
    time_ns: int
    name: str
    state: str
    labels: dict[str, str]
    value: float | int | str | None
    message: str


class Found(Model):
    series: list[Series]
    logs: list[LogRow]
    alerts: list[AlertRow]
    truncated: bool = Field(description="Whether there was more.")


class LiveAnswer(Completeness, Found):
    pass


class HelloEvent(Completeness):
    """The first event: whether live state is complete."""


class CompletenessEvent(Completeness):
    """The same whenever it changes, and every 15 s."""


class BatchEvent(Found):
    """The matching records of one accepted batch."""

    identity: str
    collector_id: str = Field(description="The collector that accepted it.")


class MissedEvent(Model):
    """The reader was too slow."""

    batches: int = Field(description="Batches dropped before the next event.")


class StreamEvent(RootModel[HelloEvent | CompletenessEvent | BatchEvent | MissedEvent]):
    """The data of an event; its name is the name of the schema in lower case, without Event."""


EVENTS: dict[str, type[Model]] = {
    "hello": HelloEvent,
    "completeness": CompletenessEvent,
    "batch": BatchEvent,
    "missed": MissedEvent,
}


class Decide(Model):
    """A decision about a conflict."""

    resolution: Resolution
    by: Text
    why: Text


class Lift(Model):
    """The end of a quarantine."""

    agent_id: Text
    boot_id: Text
    by: Text
    why: Text


_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
_BEARER = {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}}
_HEADERS = {401: _BEARER, 429: _RETRY, 503: _RETRY}


def refusals(*reasons: str, models: dict[int, type[Model]] | None = None) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route: reasons by status. With a default, FastAPI adds no 422 of its own."""
    by_status: dict[int, list[str]] = {}
    for reason in reasons:
        by_status.setdefault(400 if reason in FRAME_REASONS else REASONS[reason].status, []).append(reason)
    found: dict[int | str, dict[str, Any]] = {
        status: {
            "description": ", ".join(by_status[status]),
            "model": (models or {}).get(status, ErrorDocument),
            **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
        }
        for status in sorted(by_status)
    }
    return {**found, "default": {"description": "any other error", "model": ErrorDocument}}
