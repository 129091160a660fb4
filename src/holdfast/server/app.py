"""The two applications of a collector: one takes batches, one answers private reads. Both describe themselves in
OpenAPI at ``/openapi.json``; ``docs/reference/http.md`` says the same in words, and a test compares.

Routes only translate: they call ``Intake``, live state or the store, and every failure goes through ``faults``.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as DependsType
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.base import codec
from holdfast.base.aio import blocking
from holdfast.base.errors import HoldfastError
from holdfast.base.telemetry import logger
from holdfast.ingest.select import Wanted, select
from holdfast.server import openapi
from holdfast.server.answers import Answers, as_bytes
from holdfast.server.conflicts import add_conflict_routes
from holdfast.server.faults import Fault
from holdfast.server.intake import lowered
from holdfast.server.questions import add_question_routes
from holdfast.server.service import Service
from holdfast.server.shortcut import Answered, Body, Shortcut
from holdfast.server.stream import EventStream, events

MOST_BODY = 256 << 10
"""Of a request on the private listener."""
QUESTIONS = 2
"""Questions to live state that are worked on at a time: each may look through all of it."""

_log = logger("server")


BATCH = "/ingest/v1/batch"
ANOTHER = "send batches to another collector"
DRAINING = "this collector is about to end"
PROBES = ("/healthz", "/readyz")
"""Whoever watches a collector may add parameters of its own."""
JSON = {"content-type": "application/json"}


class IngestApp:
    """What agents and load balancers reach. Batches take a short way past the framework, which otherwise costs a small
    batch a tenth of its time; everything else, and the description of all, is the framework's."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._answers = Answers(service, "ingest")
        self.framework = _app(self._answers, "Holdfast collector: ingest")

        @self.framework.post(BATCH, **openapi.BATCH)
        async def batch(request: Request) -> Response:
            """Send one batch: a frame as the body, its identity in the headers."""
            return await self._take(request)

        _health(self.framework, service, self._answers)
        _ready_to_all(self.framework, service, self._answers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == BATCH and scope["method"] == "POST":
            request = Request(scope, receive)
            try:
                response = await self._take(request)
            except Exception as error:  # noqa: BLE001  # whatever it is, it becomes an answer, and is logged
                response = self._answers.refusal(request, error)
            await response(scope, receive, send)
        else:
            await self.framework(scope, receive, send)

    @property
    def shortcut(self) -> Shortcut:
        """The same for small batches, past the parser too."""
        return Shortcut(BATCH.encode(), self._short)

    async def _short(self, headers: dict[str, str], body: Body, peer: tuple[str, int] | None) -> Answered:
        try:
            taken = codec.encode(await self._service.intake.take(headers, body))
            self._answers.count(200, "ok")
        except Exception as error:  # noqa: BLE001  # as above
            scope: dict[str, Any] = {"type": "http", "method": "POST", "path": BATCH, "client": peer, "headers": []}
            refused = self._answers.refusal(Request(scope), error)
            headers = {name: value for name, value in refused.headers.items() if name != "content-length"}
            return refused.status_code, headers, bytes(refused.body)
        return 200, JSON, taken

    async def _take(self, request: Request) -> Response:
        if request.query_params:
            raise _unknown_parameters(request, set())
        headers = lowered(request.scope["headers"])
        return self._answers.document(await self._service.intake.take(headers, request.stream()))


def private_app(service: Service) -> FastAPI:
    """What people and dashboards reach, on a listener of its own."""
    answers = Answers(service, "private")
    app = _app(answers, "Holdfast collector: private reads", dependencies=[Depends(_known_parameters)])
    app.add_middleware(_SmallBodies, answers=answers)
    asking = asyncio.Semaphore(QUESTIONS)

    @app.get("/api/v1/live", **openapi.LIVE)
    async def live(wanted: Annotated[Wanted, openapi.WANTED]) -> Response:
        """Recent series, logs and alerts, as far as this collector knows them; ``complete`` says how far that is."""
        async with asking:
            completeness, kept = service.completeness(), service.live.kept()
            body = await blocking(lambda: as_bytes({**completeness, **select(kept, wanted)}))
        return answers.body(body)

    @app.get(openapi.STREAM_PATH, **openapi.STREAM)
    async def stream(wanted: Annotated[Wanted, openapi.WANTED]) -> Response:
        """The same as server-sent events, batch by batch as they are accepted."""
        return EventStream(events(service, wanted), headers={"cache-control": "no-store"})

    add_conflict_routes(app, service, answers)
    add_question_routes(app, service, answers)

    @app.get("/metrics", **openapi.METRICS)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return PlainTextResponse(service.meters.page(), media_type="text/plain; version=0.0.4")

    _health(app, service, answers)
    _ready_in_full(app, service, answers)
    return app


class _SmallBodies:
    """The framework reads a body to its end before anybody looks at it. Decisions are short; whatever says that it is
    long, or does not say how long it is, is refused unread."""

    def __init__(self, app: ASGIApp, answers: Answers) -> None:
        self._app = app
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = _body_problem(lowered(scope["headers"])) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await self._answers.refusal(Request(scope), problem)(scope, receive, send)


def _body_problem(headers: dict[str, str]) -> Fault | None:
    if "transfer-encoding" in headers:
        return Fault("length_required", "Content-Length is absent", remedy="send the length of the body")
    if int(headers.get("content-length", 0)) > MOST_BODY:  # the parser has seen that it is a number
        return Fault("too_large", f"more than {MOST_BODY} bytes are no decision", remedy="send a shorter body")
    return None


def _health(app: FastAPI, service: Service, answers: Answers) -> None:
    @app.get("/healthz", **openapi.HEALTH)
    async def healthz() -> Response:
        """Whether the process is alive: it answers, so it is."""
        return answers.document({"status": "alive", "collector_id": service.collector_id})

    app.head("/healthz", include_in_schema=False)(healthz)  # some load balancers ask for no body


def _ready_in_full(app: FastAPI, service: Service, answers: Answers) -> None:
    @app.get("/readyz", **openapi.READY)
    async def readyz() -> Response:
        """Whether batches should be sent here, and how far derived work lags behind."""
        standing = await service.standing()
        if service.draining:
            raise Fault("draining", DRAINING, remedy=ANOTHER, fields=standing)
        if standing["store_problem"]:
            problem = f"no batch can be accepted: {standing['store_problem']}"
            raise Fault("not_ready", problem, remedy=ANOTHER, fields=standing)
        return answers.document({"status": "ready", **standing})

    app.head("/readyz", include_in_schema=False)(readyz)


def _ready_to_all(app: FastAPI, service: Service, answers: Answers) -> None:
    @app.get("/readyz", **openapi.READY_TO_ALL)
    async def readyz() -> Response:
        """Whether batches should be sent here. Whoever asks shows no token, and is told of no address and no path."""
        if service.draining:
            raise Fault("draining", DRAINING, remedy=ANOTHER)
        if await service.readiness.problem():
            where = "store" if service.spooling is None else "disk of the spool"
            raise Fault("not_ready", f"no batch can be accepted: the {where} takes no writes", remedy=ANOTHER)
        return answers.document({"status": "ready"})

    app.head("/readyz", include_in_schema=False)(readyz)


async def _known_parameters(request: Request) -> None:
    """A parameter that nobody reads is a misspelt one: its answer would be to another question."""
    path = request.scope["route"].path
    if path in PROBES:
        return
    described = request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {}).get("parameters", ())
    known = {each["name"] for each in described if each["in"] == "query"}
    if set(request.query_params) - known:
        raise _unknown_parameters(request, known)


def _unknown_parameters(request: Request, known: set[str]) -> Fault:
    unknown = sorted(set(request.query_params) - known)
    remedy = f"known here: {', '.join(sorted(known))}" if known else "this path takes none"
    return Fault("bad_request", f"unknown parameters: {', '.join(unknown)}", remedy=remedy)


def _app(answers: Answers, title: str, dependencies: Sequence[DependsType] = ()) -> FastAPI:
    options: dict[str, Any] = {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    app = openapi.Described(title=title, version="1", dependencies=dependencies, **options)

    def handler(translate: Callable[[Any], Exception]) -> Callable[[Request, Exception], Any]:
        async def handle(request: Request, error: Exception) -> Response:
            return answers.refusal(request, translate(error))

        return handle

    app.add_exception_handler(Exception, handler(lambda error: error))
    app.add_exception_handler(RequestValidationError, handler(_misused))
    app.add_exception_handler(HTTPException, handler(_unrouted))
    app.add_exception_handler(HoldfastError, handler(lambda error: error))  # these are no surprises
    return app


def _misused(error: RequestValidationError) -> Exception:
    problems = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors())
    return Fault("bad_request", f"the parameters are wrong: {problems}", remedy="see /openapi.json")


def _unrouted(error: HTTPException) -> Exception:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return Fault("method_not_allowed", "this path has another method", remedy="see /openapi.json", allow=allowed)
    if error.status_code == 400:
        return Fault("bad_request", f"the body cannot be read: {error.detail}", remedy="see /openapi.json")
    return Fault("no_such_route", "nothing is served at this path", remedy="see /openapi.json")
