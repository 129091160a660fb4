"""What leaves through a listener: documents and refusals in the one shape, counted by listener."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.faults import failure_of
from holdfast.server.service import Service


class Answers:
    def __init__(self, service: Service, listener: str) -> None:
        """``listener``: ``ingest`` or ``private``."""
        self._service = service
        self._listener = listener

    def document(self, document: dict[str, Any]) -> Response:
        return self.body(as_bytes(document))

    def body(self, body: bytes) -> Response:
        self.count(200, "ok")
        return Response(body, 200, media_type="application/json")

    def refusal(self, request: Request, error: Exception) -> Response:
        failure = failure_of(error)
        self.count(failure.status, failure.reason)
        self._service.refusals.note(request, failure, error)
        return Response(as_bytes(failure.document), failure.status, failure.headers, media_type="application/json")

    def count(self, status: int, reason: str) -> None:
        self._service.meters.request(self._listener, status, reason)


def as_bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
