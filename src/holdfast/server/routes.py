"""Routes of the private listener: live state and its stream, metrics and logs from the store, conflicts, Prometheus.

Queries of the store take at most ``ingest.read_timeout_ms``, including the time in the queue. The outcome of a write
that takes longer is unknown. A request that changes something must have the content type of JSON, which a web page
cannot send to another origin without a preflight request.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from holdfast.base.aio import blocking
from holdfast.base.errors import Ambiguous, Invalid
from holdfast.server import models
from holdfast.server.errors import Answers, Fault, as_json
from holdfast.server.models import refusals
from holdfast.server.service import Service
from holdfast.telemetry.accept.conflicts import Decision, Holds, Resolutions, conflicts, find_by_hash
from holdfast.telemetry.accept.manifest import ConflictManifest
from holdfast.telemetry.live.select import LiveQuery, select
from holdfast.telemetry.live.state import LiveBatch
from holdfast.telemetry.query.question import Aggregate

if TYPE_CHECKING:
    from holdfast.telemetry.query.logs import Logs
    from holdfast.telemetry.query.metrics import Metrics

PARALLEL_QUERIES = 2
"""Queries in progress, of live state and of the store each. One may scan all of live state, or load a database."""
CHANGE_S = 1.0
"""How often a stream checks completeness if no batch is accepted."""
HEARTBEAT_NS = 15_000_000_000
"""How often a stream reports completeness if it does not change, so that its time advances and proxies keep the
connection open."""
INLINE_RECORDS = 500
"""Batches up to this size are searched on the event loop."""
ROWS_MAX = 100_000

_STORE = ("denied", "incompatible", "corrupt", "error", "unavailable")
"""Why a query of the store may fail."""
_LIVE: dict[str, Any] = {"responses": refusals("bad_request", "error")}
_STREAM: dict[str, Any] = {
    "responses": {200: {"description": "events", "model": models.StreamEvent}, **_LIVE["responses"]}
}
_LIST: dict[str, Any] = {"responses": refusals("bad_request", *_STORE)}
_SHOW: dict[str, Any] = {"responses": refusals("bad_request", "not_found", *_STORE)}

Since = Annotated[str, Query(description="The start: 2h for two hours ago, or ISO 8601.")]
Until = Annotated[str | None, Query(description="The end; default: now.")]
Agent = Annotated[str | None, Query(description="Only of this agent.")]
Where = Annotated[
    list[str] | None, Query(description="A condition on a label, repeatable: cpu=0, mode!=idle, path=~/api/.*, x!~a|b.")
]
Metric = Annotated[str, Query(description="The metric's name.")]


async def _json_only(request: Request) -> None:
    """Runs before the body is parsed, which would report a missing content type as missing fields."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != "application/json":
        got = found or "none"
        remedy = "send the header Content-Type: application/json"
        raise Fault("bad_request", f"Content-Type must be application/json, got {got}", remedy=remedy)


_DECIDE: dict[str, Any] = {
    "responses": refusals(
        *("bad_request", "not_found", "refused", "conflict", "length_required", "too_large", "timeout"),
        *("outcome_unknown", *_STORE),
    ),
    "dependencies": [Depends(_json_only)],
}


def add_routes(app: FastAPI, service: Service, answers: Answers) -> None:
    _add_live(app, service, answers)
    _add_conflicts(app, service, answers)
    _add_holds(app, service, answers)
    sources, asking = _Sources(service), asyncio.Semaphore(PARALLEL_QUERIES)
    _add_metrics(app, service, answers, sources, asking)
    _add_logs(app, service, answers, sources, asking)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics in the text format of Prometheus."""
        return PlainTextResponse(service.metrics.page(), media_type="text/plain; version=0.0.4")


# Time limits of queries and decisions.


@asynccontextmanager
async def reading(service: Service) -> AsyncIterator[None]:
    """A block that only reads."""
    timeout = Fault(
        "unavailable",
        f"the store did not answer within {_limit_s(service):g} s",
        remedy="try again later, or ask for less; ingest.read_timeout_ms is the limit",
    )
    async with _in_time(service, timeout):
        yield


@asynccontextmanager
async def deciding(service: Service) -> AsyncIterator[None]:
    """A block that writes: after a timeout it is unknown whether the write happened."""
    remedy = "read whether the decision is recorded, and send it again if not"
    message = f"the store did not answer within {_limit_s(service):g} s: the decision may or may not be recorded"
    try:
        async with _in_time(service, Fault("outcome_unknown", message, remedy=remedy)):
            yield
    except Ambiguous as error:
        raise Fault("outcome_unknown", str(error), remedy=remedy) from error


@asynccontextmanager
async def _in_time(service: Service, timeout: Fault) -> AsyncIterator[None]:
    limit = asyncio.timeout(_limit_s(service))
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise  # raised inside the block for another reason
        raise timeout from None


def _limit_s(service: Service) -> float:
    return service.section.read_timeout_ms / 1000


# Live state.


def _wanted(
    agent: Annotated[str, Query(description="A pattern of agent ids: * and ? stand for any characters.")] = "*",
    name: Annotated[str | None, Query(description="The name of a metric or an alert; logs are then left out.")] = None,
    label: Annotated[list[str] | None, Query(description="name=value, repeatable; all must match.")] = None,
    since_ns: Annotated[
        int | None, Query(ge=0, lt=2**63, description="Only what is not older, in ns since 1970.")
    ] = None,
    series: Annotated[int, Query(ge=1, le=10**6, description="At most so many series, logs and alerts.")] = 1_000,
    points: Annotated[int, Query(ge=1, le=10**6, description="The latest so many points of each series.")] = 60,
) -> LiveQuery:
    labels: dict[str, str] = {}
    for pair in label or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise Invalid(f"label {pair!r} is not name=value", remedy="write label=host=web-1")
        labels[key] = value
    return LiveQuery(agent, name, labels, since_ns, series, points)


LiveQueryParameters = Annotated[LiveQuery, Depends(_wanted)]


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


def _add_live(app: FastAPI, service: Service, answers: Answers) -> None:
    asking = asyncio.Semaphore(PARALLEL_QUERIES)

    @app.get("/api/v1/live", response_model=models.LiveAnswer, **_LIVE)
    async def live(wanted: LiveQueryParameters) -> Response:
        """Recent series, logs and alerts in this collector's memory; ``complete`` says whether any are missing."""
        async with asking:
            completeness, batches = service.completeness(), service.live.batches()
            body = await blocking(lambda: as_json({**completeness, **select(batches, wanted)}))
        return answers.body(body)

    @app.get("/api/v1/live/stream", response_class=EventStream, **_STREAM)
    async def stream(wanted: LiveQueryParameters) -> Response:
        """The same as server-sent events, one per accepted batch."""
        return EventStream(events(service, wanted), headers={"cache-control": "no-store"})


async def events(service: Service, wanted: LiveQuery) -> AsyncGenerator[bytes, None]:
    """Batches as they are accepted, and completeness when it changes. Events have no ids, because a stream cannot be
    resumed: a client that reconnects requests the live state."""
    subscription = service.live.subscribe()
    clock = service.ambient.clock
    try:
        reported = service.completeness()
        due_ns = clock.monotonic_ns() + HEARTBEAT_NS
        yield _event("hello", reported)
        while not subscription.ended:
            kept, missed = await subscription.next(CHANGE_S)
            if missed:
                yield _event("missed", {"batches": missed})
            if kept is not None and (found := await _batch_event(kept, wanted)):
                yield found
            current = service.completeness()
            changed = current.get("partial_because") != reported.get("partial_because")
            if not service.draining and (changed or clock.monotonic_ns() >= due_ns):
                reported, due_ns = current, clock.monotonic_ns() + HEARTBEAT_NS
                yield _event("completeness", reported)
    finally:
        service.live.unsubscribe(subscription)


async def _batch_event(kept: LiveBatch, wanted: LiveQuery) -> bytes:
    """Empty if no record matches. A large batch is searched in a thread."""
    if len(kept.batch) <= INLINE_RECORDS:
        return _matching(kept, wanted)
    return await blocking(_matching, kept, wanted)


def _matching(kept: LiveBatch, wanted: LiveQuery) -> bytes:
    found = select([kept], wanted)
    if not found["series"] and not found["logs"] and not found["alerts"]:
        return b""
    return _event("batch", {"identity": str(kept.identity), "collector_id": kept.collector_id, **found})


def _event(name: str, document: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


# Conflicts and holds, as in `holdfast conflicts`.


def _add_conflicts(app: FastAPI, service: Service, answers: Answers) -> None:
    resolutions = Resolutions(service.store, service.ambient)

    @app.get("/api/v1/conflicts", **_LIST)
    async def identity_conflicts(
        agent: Agent = None,
        limit: Annotated[int, Query(ge=1, le=10_000, description="At most so many.")] = 100,
    ) -> Response:
        """Recorded identity conflicts, by agent, boot and sequence number."""
        found: list[dict[str, Any]] = []
        async with reading(service):
            async for conflict in conflicts(service.store, agent_id=agent):
                found.append({"quarantine_manifest_key": conflict.key, **conflict.document()})
                if len(found) >= limit:
                    break
        return answers.document({"conflicts": found, "truncated": len(found) >= limit})

    @app.get("/api/v1/conflicts/{sha256}", **_SHOW)
    async def show(sha256: str) -> Response:
        """One conflict with all decisions, by the hash of its submitted bytes or the first characters of the hash."""
        async with reading(service):
            conflict = await find_by_hash(service.store, sha256)
            decisions = await resolutions.of(conflict.identity, conflict.submitted_frame_sha256)
        return answers.document(_document(conflict, decisions))

    @app.post("/api/v1/conflicts/{sha256}/resolve", **_DECIDE)
    async def resolve(sha256: str, decision: models.Decide) -> Response:
        """Record a decision about a conflict: existing_is_authoritative, which is final, or quarantine_identity."""
        async with reading(service):
            conflict = await find_by_hash(service.store, sha256)
        identity, submitted = conflict.identity, conflict.submitted_frame_sha256
        async with deciding(service):
            decisions = await resolutions.decide(
                identity, submitted, decision.resolution, by=decision.by, why=decision.why
            )
            await service.holds.refresh()
        return answers.document(_document(conflict, decisions))


def _add_holds(app: FastAPI, service: Service, answers: Answers) -> None:
    holds = Holds(service.store, service.ambient)

    @app.get("/api/v1/holds", **_LIST)
    async def list_holds() -> Response:
        """Agents and boots that are or were in quarantine."""
        async with reading(service):
            found = await holds.all()
        return answers.document({"holds": [each.document() for each in found]})

    @app.post("/api/v1/holds/lift", **_DECIDE)
    async def lift(request: models.Lift) -> Response:
        """Accept batches of a quarantined agent and boot again."""
        async with deciding(service):
            lifted = await holds.lift(request.agent_id, request.boot_id, by=request.by, why=request.why)
            await service.holds.refresh()
        return answers.document(lifted.document())


def _document(conflict: ConflictManifest, decisions: tuple[Decision, ...]) -> dict[str, Any]:
    return {
        "quarantine_manifest_key": conflict.key,
        **conflict.document(),
        "decisions": [each.document() for each in decisions],
    }


# Metrics and logs from the store, as in `holdfast metrics` and `holdfast logs`.


class _Sources:
    """DuckDB is imported by the first query."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def metrics(self) -> "Metrics":
        from holdfast.telemetry.query.metrics import Metrics  # noqa: PLC0415  # see above

        service = self._service
        return Metrics(service.store, service.ambient, service.follower.limits)

    @cached_property
    def logs(self) -> "Logs":
        from holdfast.telemetry.query.logs import Logs  # noqa: PLC0415  # see above

        service = self._service
        return Logs(service.store, service.ambient, service.follower.limits)


def _add_metrics(
    app: FastAPI, service: Service, answers: Answers, sources: _Sources, asking: asyncio.Semaphore
) -> None:
    @app.get("/api/v1/metrics/list", **_LIST)
    async def list_metrics(
        pattern: Annotated[str, Query(description="A pattern as in a shell: node_*.")] = "*",
        since: Since = "1h",
        until: Until = None,
        agent: Agent = None,
    ) -> Response:
        """Metrics that have samples in the range, with the numbers of their series and agents."""
        async with reading(service), asking:
            found = await sources.metrics.list(pattern, since=since, until=until, agent=agent)
        return answers.document(found.document("metrics"))

    @app.get("/api/v1/metrics/labels", **_SHOW)
    async def labels(metric: Metric, since: Since = "1h", until: Until = None, agent: Agent = None) -> Response:
        """The labels of a metric and their values, with the number of series of each."""
        async with reading(service), asking:
            found = await sources.metrics.labels(metric, since=since, until=until, agent=agent)
        return answers.document(found.document("labels"))

    @app.get("/api/v1/metrics/query", **_SHOW)
    async def query(
        metric: Metric,
        since: Since = "1h",
        until: Until = None,
        step: Annotated[str | None, Query(description="10s, 1m, 1h; default: about 60 steps.")] = None,
        aggregate: Annotated[Aggregate, Query(description="How the samples of a step become one value.")] = (
            Aggregate.AVG
        ),
        q: Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False, description="Of quantile: 0.95.")] = None,
        where: Where = None,
        agent: Agent = None,
        by: Annotated[list[str] | None, Query(description="A label to group series by, repeatable.")] = None,
        total: Annotated[bool, Query(description="Group all series together.")] = False,
    ) -> Response:
        """The values of a metric, step by step."""
        if total and by:
            raise Invalid("total groups all series together, and by only some", remedy="give one of them")
        async with reading(service), asking:
            found = await sources.metrics.query(
                metric,
                since=since,
                until=until,
                step=step,
                aggregate=aggregate,
                q=q,
                where=where,
                agent=agent,
                by=[] if total else by,
            )
        return answers.document(found.document())


def _add_logs(app: FastAPI, service: Service, answers: Answers, sources: _Sources, asking: asyncio.Semaphore) -> None:
    @app.get("/api/v1/logs/search", **_LIST)
    async def search(
        words: Annotated[str, Query(description="All must be in the message.")] = "",
        contains: Annotated[str, Query(description="Text that is in the message, in any case.")] = "",
        regex: Annotated[str, Query(description="A regular expression (RE2) that matches in the message.")] = "",
        since: Since = "1h",
        until: Until = None,
        severity: Annotated[
            str, Query(max_length=20, description="At least this: info, warn, error, or a number.")
        ] = "0",
        where: Where = None,
        agent: Agent = None,
        limit: Annotated[int, Query(ge=1, le=ROWS_MAX, description="At most so many, the newest.")] = 100,
    ) -> Response:
        """Logs that contain all of the words, the newest first."""
        async with reading(service), asking:
            found = await sources.logs.search(
                words,
                contains=contains,
                regex=regex,
                since=since,
                until=until,
                severity=severity,
                where=where,
                agent=agent,
                limit=limit,
            )
        return answers.document(found.document("logs"))
