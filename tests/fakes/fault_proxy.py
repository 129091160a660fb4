"""A proxy between an S3 client and a real S3 server that loses, repeats and delays on purpose, and counts.

    async with FaultProxy("http://127.0.0.1:9000", lossy(seed=7)) as proxy:
        ...                     # clients use proxy.endpoint
        proxy.counts.by_answer()

It runs on the loop that enters it; ``in_thread`` gives it one of its own, for blocking tests. A failure of the proxy
itself is raised when it is closed.

Target and headers are forwarded unchanged, because the client's signature covers them. Every delivery is counted before
the client gets its answer.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit

import httpx

from holdfast.base.portal import Portal
from tests.fakes import fault_plans as plans
from tests.fakes.fault_plans import Chooser, Fault, Plan, Rule
from tests.integration.scripted_server import (
    HANG_UP,
    Answer,
    HangUp,
    Reply,
    Request,
    ScriptedServer,
    error_body,
)

CONDITIONS = ("if-match", "if-none-match")
_FIRST_LISTING_API = {"prefix", "delimiter", "marker", "max-keys", "encoding-type"}
_CODES = {403: "AccessDenied", 409: "ConditionalRequestConflict", 500: "InternalError", 503: "SlowDown"}
_OF_ONE_CONNECTION = {"connection", "transfer-encoding", "expect"}


def classify(request: Request) -> plans.Request:
    """A request to S3 in the verbs that ``objects`` counts by.

    Others are ``copy``, ``multipart`` or ``bucket``. The key of a listing is its prefix.
    """
    parts = urlsplit(request.target)
    query = parse_qs(parts.query, keep_blank_values=True)
    bucket, _, raw_key = parts.path.removeprefix("/").partition("/")
    key = unquote(raw_key)
    verb = request.method.lower()
    if request.method == "POST" and "delete" in query:
        verb = "delete"
    elif not key:
        listing = "list-type" in query or query.keys() <= _FIRST_LISTING_API
        verb = "list" if request.method == "GET" and bucket and listing else "bucket"
    elif "uploadId" in query or "uploads" in query:
        verb = "multipart"
    elif request.method == "PUT" and "x-amz-copy-source" in request.headers:
        verb = "copy"
    elif request.method == "GET" and "range" in request.headers:
        verb = "range"
    if verb == "list":
        key = query.get("prefix", [""])[0]
    return plans.Request(request.method, verb, key, any(name in request.headers for name in CONDITIONS))


class Counts:
    """Totals since the proxy started, or since ``clear``."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.most_at_once = 0
        """Requests that were waiting for their answers."""
        self.received_bytes = 0
        """Of bodies, from the server."""
        self.requests: Counter[str] = Counter()
        self.at_server: Counter[tuple[str, int]] = Counter()
        self.faults: Counter[str] = Counter()

    def asked(self) -> int:
        """Requests that clients sent."""
        return self.requests.total()

    def served(self) -> int:
        """Requests that reached the server."""
        return self.at_server.total()

    def by_answer(self) -> dict[str, int]:
        """Requests that reached the server, as ``get 200``."""
        return {f"{verb} {status}": number for (verb, status), number in sorted(self.at_server.items())}


class FaultProxy(ScriptedServer):
    def __init__(self, upstream: str, plan: Plan | None = None) -> None:
        super().__init__(self._exchange)
        self.upstream = upstream
        self.counts = Counts()
        self._waiting = 0
        self._failure: BaseException | None = None
        self._http = httpx.AsyncClient(timeout=None, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self.use(plan or Plan())

    def use(self, plan: Plan) -> None:
        """Follow another plan from the next request on, with fresh counters of its rules."""
        self._chooser = Chooser(plan)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self._http.aclose()
        if self._failure is not None and error is None:
            raise self._failure

    async def _exchange(self, request: Request) -> Reply:
        self.requests.clear()  # nothing reads them
        classified = classify(request)
        fault = self._chooser.choose(classified)
        self.counts.requests[classified.verb] += 1
        if fault is not None:
            self.counts.faults[fault.kind] += 1
        self._waiting += 1
        self.counts.most_at_once = max(self.counts.most_at_once, self._waiting)
        try:
            return await self.perform(request, classified, fault)
        except Exception as failure:  # noqa: BLE001  # raised when the proxy is closed
            self._failure = self._failure or failure
            return HANG_UP
        finally:
            self._waiting -= 1

    async def perform(self, request: Request, classified: plans.Request, fault: Fault | None) -> Reply:
        match fault:
            case plans.CutResponse():
                await self.deliver(request, classified)
                return HANG_UP
            case plans.DelayResponse(ms):
                answer = await self.deliver(request, classified)
                await asyncio.sleep(ms / 1000)
                return answer
            case plans.Twice(cut):
                await self.deliver(request, classified)
                second = await self.deliver(request, classified)
                return HANG_UP if cut else second
            case plans.Answer(status):
                return refusal(status)
            case plans.LoseRequest():
                return HANG_UP
        return await self.deliver(request, classified)

    async def deliver(self, request: Request, classified: plans.Request) -> Answer | HangUp:
        """Send a request to the server over a connection of its own; ``HANG_UP`` if it does not answer."""
        headers = {name: value for name, value in request.headers.items() if name not in _OF_ONE_CONNECTION}
        sent = self._http.build_request(
            request.method,
            self.upstream,
            headers=headers,
            content=request.body,
            extensions={"target": request.target.encode()},
        )
        status = 0
        try:
            received = await self._http.send(sent)
            status = received.status_code
            self.counts.received_bytes += len(received.content)
        except httpx.TransportError:
            return HANG_UP
        finally:
            self.counts.at_server[classified.verb, status] += 1
        kept = {name: value for name, value in received.headers.items() if name not in _OF_ONE_CONNECTION}
        return Answer(status, received.content, kept)


def refusal(status: int) -> Answer:
    """An error in the form of S3."""
    body = error_body(_CODES[status], "answered by the fault proxy")
    return Answer(status, body, {"content-type": "application/xml"})


@contextmanager
def in_thread(upstream: str, plan: Plan | None = None) -> Iterator[FaultProxy]:
    """A running proxy for blocking code. Its loop runs in a thread; ``use`` and ``counts`` work from here."""
    with Portal() as portal:
        proxy = FaultProxy(upstream, plan)
        portal.enter(proxy)
        yield proxy


async def _delay(upstream: str, ms: float) -> None:
    async with FaultProxy(upstream, Plan.of(Rule(fault=plans.DelayResponse(ms)))) as proxy:
        print(proxy.endpoint, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":  # a process of its own for benchmarks: answers of a server, later by so many milliseconds
    asyncio.run(_delay(sys.argv[1], float(sys.argv[2])))
