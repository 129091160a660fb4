"""The two applications of a collector: ``ingest_app`` accepts batches, ``private_app`` serves reads and decisions.

Routes only translate: they call ``Intake``, live state or the store, and ``errors`` maps every failure to a response.
Both have an OpenAPI description at ``/openapi.json``.

The private listener has no tokens, so it serves only requests for its own names: a web page whose name was made to
resolve to this address (DNS rebinding) sends its own name as ``Host``, and a page of another origin sends ``Origin``.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends as DependsType
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.base.errors import HoldfastError
from holdfast.server import models
from holdfast.server.connections import Guard, mark_authenticated
from holdfast.server.errors import FRAME_REASONS, Answers, Fault, draining
from holdfast.server.intake import lowered
from holdfast.server.models import refusals
from holdfast.server.routes import add_routes
from holdfast.server.service import Service

BODY_BYTES = 256 << 10
"""The longest body of a request on the private listener."""
_HOST = re.compile(r"(\[(?P<ipv6>[^]%]*)\]|(?P<name>[^][:]*))(:[0-9]*)?")
"""A host as in a URL, with or without a port."""
BATCH = "/ingest/v1/batch"
PROBES = ("/healthz", "/readyz")
"""These paths accept unknown parameters, which load balancers may add."""

_OTHER = "send batches to another collector"
_BEARER = HTTPBearer(scheme_name="token", description="A token from `holdfast tokens add`.", auto_error=False)


def _header(name: str, kind: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": True, "schema": {"type": kind}, "description": meaning}


_BATCH: dict[str, Any] = {
    "response_model": models.Receipt,
    "response_description": "accepted, now or before",
    "responses": refusals(
        *("missing_header", "bad_header", "bad_request", *FRAME_REASONS),
        *("unauthenticated", "agent_not_allowed", "identity_quarantined", "timeout", "identity_conflict"),
        *("length_required", "too_large", "content_encoding", "header_mismatch"),
        *("rate_limited", "concurrency_limited", "overloaded", "draining", "outcome_unknown"),
        *("incompatible", "corrupt", "error", "unavailable"),
        models={409: models.ConflictErrorDocument},
    ),
    "openapi_extra": {
        "parameters": [
            _header("X-Lightmetrics-Agent", "string", "The agent id in the frame."),
            _header("X-Lightmetrics-Seq-Start", "integer", "The first sequence number in the frame."),
            _header("X-Lightmetrics-Seq-End", "integer", "The last sequence number in the frame."),
        ],
        "requestBody": {
            "required": True,
            "description": "A frame, see docs/formats.md. No Content-Encoding.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
}


def ingest_app(service: Service) -> FastAPI:
    """For agents and load balancers."""
    answers = Answers(service.metrics, "ingest")
    app = _app(service, answers, "Holdfast collector: ingest")

    @app.post(BATCH, dependencies=[Security(_BEARER)], **_BATCH)
    async def batch(request: Request) -> Response:
        """Send one batch: a frame as the body, its identity in the headers."""
        if request.query_params:
            raise _unknown_parameters(request, set())
        headers = lowered(request.scope["headers"])
        token = service.intake.authenticate(headers)
        mark_authenticated(request.scope)
        return answers.document(await service.intake.accept(token, headers, request.stream()))

    @app.get("/readyz", response_model=models.Ready, responses=refusals("draining", "not_ready"))
    async def readyz() -> Response:
        """Whether batches should be sent here. It needs no token, so the response has no address, path or figure."""
        if service.draining:
            raise draining()
        if await service.readiness.problem():
            where = "store" if service.spooling is None else "disk of the spool"
            raise Fault("not_ready", f"no batch can be accepted: the {where} accepts no writes", remedy=_OTHER)
        return answers.document({"status": "ready"})

    app.head("/readyz", include_in_schema=False)(readyz)
    _add_guard(app, service, answers)
    return app


def private_app(service: Service) -> FastAPI:
    """For people and dashboards."""
    answers = Answers(service.metrics, "private")
    app = _app(service, answers, "Holdfast collector: private reads", [Depends(_known_parameters)])
    add_routes(app, service, answers)

    not_ready = refusals("draining", "not_ready", models={503: models.NotReadyErrorDocument})

    @app.get("/readyz", response_model=models.ReadyState, responses=not_ready)
    async def readyz() -> Response:
        """Whether batches should be sent here, and the state of background work."""
        state = await service.state()
        if service.draining:
            raise draining(state)
        if state["store_problem"]:
            problem = f"no batch can be accepted: {state['store_problem']}"
            raise Fault("not_ready", problem, remedy=_OTHER, fields=state)
        return answers.document({"status": "ready", **state})

    app.head("/readyz", include_in_schema=False)(readyz)
    names = frozenset(name.strip().lower() for name in service.section.private_names.split(","))
    app.add_middleware(PrivateRules, answers=answers, names=names - {""})
    _add_guard(app, service, answers)
    return app


class PrivateRules:
    """Checks a request on the private listener before the framework reads it: names, origin, length of the body."""

    def __init__(self, app: ASGIApp, answers: Answers, names: frozenset[str]) -> None:
        self._app = app
        self._answers = answers
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] == "http" else None
        app = self._app if problem is None else self._answers.refusal(Request(scope), problem)
        await app(scope, receive, send)

    def _problem(self, scope: Scope) -> Fault | None:
        headers = lowered(scope["headers"])
        if [name for name, _ in scope["headers"]].count(b"origin") > 1:  # the HTTP parser refuses a second Host
            return Fault("bad_request", "the header Origin is repeated", remedy="send it once")
        host = headers.get("host", "localhost")  # HTTP/1.1 requires it, so no browser leaves it out
        if not self._is_own(host):
            remedy = "use an IP address or localhost, or add the name to ingest.private_names"
            return Fault("misdirected", f"this listener does not answer for the name {host[:100]!r}", remedy=remedy)
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{scope['scheme']}://{host.lower()}":
            remedy = "send no Origin, or serve the page from the same host and port"
            return Fault("foreign_origin", f"the web page of {origin[:100]!r} is of another origin", remedy=remedy)
        if "transfer-encoding" in headers:
            return Fault("length_required", "Content-Length is missing", remedy="send the length of the body")
        if int(headers.get("content-length", 0)) > BODY_BYTES:  # the HTTP parser has checked that it is a number
            return Fault("too_large", f"the body is longer than {BODY_BYTES} bytes", remedy="send a shorter body")
        return None

    def _is_own(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = (parts["name"] or "").lower().removesuffix(".")
        if name == "localhost" or name in self._names:
            return True
        try:
            ipaddress.IPv4Address(name) if parts["ipv6"] is None else ipaddress.IPv6Address(parts["ipv6"])
        except ValueError:
            return False
        return True


async def _known_parameters(request: Request) -> None:
    """An unknown parameter is probably misspelt, and ignoring it would give a wrong answer."""
    path = request.scope["route"].path
    if path in PROBES:
        return
    parameters = request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {}).get("parameters", ())
    known = {each["name"] for each in parameters if each["in"] == "query"}
    if set(request.query_params) - known:
        raise _unknown_parameters(request, known)


def _unknown_parameters(request: Request, known: set[str]) -> Fault:
    unknown = sorted(set(request.query_params) - known)
    remedy = f"known here: {', '.join(sorted(known))}" if known else "this path takes none"
    return Fault("bad_request", f"unknown parameters: {', '.join(unknown)}", remedy=remedy)


def _add_guard(app: FastAPI, service: Service, answers: Answers) -> None:
    """The outermost middleware, so it is added last."""
    app.add_middleware(Guard, answers=answers, body_timeout_s=service.section.body_timeout_ms / 1000)


def _app(service: Service, answers: Answers, title: str, dependencies: Sequence[DependsType] = ()) -> FastAPI:
    app = FastAPI(
        title=title, version="1", dependencies=dependencies, docs_url=None, redoc_url=None, redirect_slashes=False
    )

    def handler(translate: Callable[[Any], Exception]) -> Callable[[Request, Exception], Any]:
        async def handle(request: Request, error: Exception) -> Response:
            return answers.refusal(request, translate(error))

        return handle

    app.add_exception_handler(RequestValidationError, handler(_invalid))
    app.add_exception_handler(HTTPException, handler(_of_framework))
    app.add_exception_handler(HoldfastError, handler(lambda error: error))

    @app.get("/healthz", response_model=models.Alive)
    async def healthz() -> Response:
        """Whether the process is alive."""
        return answers.document({"status": "alive", "collector_id": service.collector_id})

    app.head("/healthz", include_in_schema=False)(healthz)  # for load balancers that send HEAD
    return app


def _invalid(error: RequestValidationError) -> Exception:
    problems = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors())
    return Fault("bad_request", f"the parameters are wrong: {problems}", remedy="see /openapi.json")


def _of_framework(error: HTTPException) -> Exception:
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return Fault("method_not_allowed", "this path has another method", remedy="see /openapi.json", allow=allowed)
    if isinstance(error.__cause__, HoldfastError):  # raised while the framework read the body
        return error.__cause__
    if error.status_code == 400:
        return Fault("bad_request", f"the body cannot be read: {error.detail}", remedy="see /openapi.json")
    return Fault("no_such_route", "this path does not exist", remedy="see /openapi.json")
