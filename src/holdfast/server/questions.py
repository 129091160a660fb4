"""Questions about metrics and logs over HTTP, on the private listener: the same answers as ``holdfast metrics`` and
``holdfast logs`` give, from the store, so that every collector gives the same ones.
"""

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query, Response

from holdfast.base.errors import Invalid
from holdfast.metrics.question import Aggregate
from holdfast.server import openapi
from holdfast.server.answers import Answers
from holdfast.server.patience import reading
from holdfast.server.service import Service

if TYPE_CHECKING:
    from holdfast.platform.logs import Logs
    from holdfast.platform.metrics import Metrics

AT_ONCE = 2
"""Questions that are worked on at a time: each has a database of its own in memory."""

ASK: dict[str, Any] = {"responses": openapi.refusals("bad_request", "not_found", *openapi.STORE)}
LOOK: dict[str, Any] = {"responses": openapi.refusals("bad_request", *openapi.STORE)}

Since = Annotated[str, Query(description="From when on: 2h for so long ago, or ISO 8601.")]
Until = Annotated[str | None, Query(description="Until when; default: now.")]
Agent = Annotated[str | None, Query(description="Only of this agent.")]
Where = Annotated[
    list[str] | None, Query(description="A condition on a label, repeatable: cpu=0, mode!=idle, path=~/api/.*, x!~a|b.")
]
Metric = Annotated[str, Query(description="The metric's name.")]


class _Desk:
    """Who answers. DuckDB is loaded with the first question: a collector that nobody asks does without."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @cached_property
    def metrics(self) -> "Metrics":
        from holdfast.platform.metrics import Metrics  # noqa: PLC0415  # see above

        service = self._service
        return Metrics(service.store, service.ambient, service.follower.limits, overlap_ns=service.overlap_ns)

    @cached_property
    def logs(self) -> "Logs":
        from holdfast.platform.logs import Logs  # noqa: PLC0415  # see above

        service = self._service
        return Logs(service.store, service.ambient, service.follower.limits, overlap_ns=service.overlap_ns)


def add_question_routes(app: FastAPI, service: Service, answers: Answers) -> None:
    desk = _Desk(service)
    asking = asyncio.Semaphore(AT_ONCE)

    @app.get("/api/v1/metrics/list", **LOOK)
    async def list_metrics(
        pattern: Annotated[str, Query(description="As in a shell: node_*.")] = "*",
        since: Since = "1h",
        until: Until = None,
        agent: Agent = None,
    ) -> Response:
        """Metrics that have samples in the range, with how many series and agents each has."""
        async with reading(service), asking:
            found = await desk.metrics.list(pattern, since=since, until=until, agent=agent)
        return answers.document(found.document("metrics"))

    @app.get("/api/v1/metrics/labels", **ASK)
    async def labels(metric: Metric, since: Since = "1h", until: Until = None, agent: Agent = None) -> Response:
        """The labels of a metric and their values, with how many series have each."""
        async with reading(service), asking:
            found = await desk.metrics.labels(metric, since=since, until=until, agent=agent)
        return answers.document(found.document("labels"))

    @app.get("/api/v1/metrics/query", **ASK)
    async def query(
        metric: Metric,
        since: Since = "1h",
        until: Until = None,
        step: Annotated[str | None, Query(description="10s, 1m, 1h; default: about 60 steps.")] = None,
        aggregate: Annotated[Aggregate, Query(description="What a step says.")] = Aggregate.AVG,
        q: Annotated[float | None, Query(description="The part of a quantile, such as 0.95.")] = None,
        where: Where = None,
        agent: Agent = None,
        by: Annotated[list[str] | None, Query(description="A label to put series together by, repeatable.")] = None,
        total: Annotated[bool, Query(description="Put all series together.")] = False,
    ) -> Response:
        """The values of a metric, step by step."""
        if total and by:
            raise Invalid("total puts all series together, by only some", remedy="give one of them")
        async with reading(service), asking:
            found = await desk.metrics.query(
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

    @app.get("/api/v1/logs/search", **LOOK)
    async def search(
        words: Annotated[str, Query(description="All must be in the message.")] = "",
        since: Since = "1h",
        until: Until = None,
        severity: Annotated[str, Query(description="At least this: info, warn, error, or a number.")] = "0",
        where: Where = None,
        agent: Agent = None,
        limit: Annotated[int, Query(description="At most so many, the newest.")] = 100,
    ) -> Response:
        """Logs that have all of the words, the newest first."""
        async with reading(service), asking:
            found = await desk.logs.search(
                words, since=since, until=until, severity=severity, where=where, agent=agent, limit=limit
            )
        return answers.document(found.document("logs"))
