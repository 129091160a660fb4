"""A collector in memory, behind HTTP: it accepts as a real one does, unless a test lets it answer otherwise."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from holdfast.telemetry import Gauge
from holdfast.telemetry.frame import decode, inspect
from holdfast.telemetry.identity import BatchIdentity

Hook = Callable[[], Awaitable[None]]


async def nothing() -> None:
    pass


def refusal(status: int, reason: str) -> tuple[int, bytes]:
    return status, json.dumps({"error": {"kind": "k", "reason": reason, "message": "m", "remedy": "r"}}).encode()


class FakeCollector:
    def __init__(self, *script: tuple[int, bytes], token: str = "t", most_bytes: int = 1 << 20) -> None:  # of a test
        self.script = list(script)
        """Answers that are given first."""
        self.instead: tuple[int, bytes] | None = None
        """The answer to every request."""
        self.token = token
        self.most_bytes = most_bytes
        self.bodies: list[bytes] = []
        self.accepted: dict[BatchIdentity, bytes] = {}
        self.before: Iterator[Hook] = iter(())
        """Awaited before each of the next requests is handled."""
        self.after: Hook = nothing
        """Awaited before an answer is sent."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await next(self.before, nothing)()
        status, text = self._answer(body, dict(scope["headers"])[b"authorization"].decode())
        await self.after()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": text})

    def _answer(self, body: bytes, authorization: str) -> tuple[int, bytes]:
        if self.script or self.instead is not None:
            return self.script.pop(0) if self.script else self.instead or (500, b"")
        if authorization != f"Bearer {self.token}":
            return refusal(401, "unauthenticated")
        if len(body) > self.most_bytes:
            return refusal(413, "too_large")
        accepted = self.accepted.setdefault(inspect(body).identity, body)
        if accepted != body:
            return refusal(409, "identity_conflict")
        receipt = {"duplicate": accepted is not body, "frame_sha256": hashlib.sha256(body).hexdigest()}
        return 200, json.dumps(receipt).encode()

    @property
    def numbers(self) -> list[int]:
        """The first number of each batch that came, as often as it came."""
        return [inspect(body).identity.seq_start for body in self.bodies]

    def values(self) -> list[float]:
        """The values of all accepted gauges."""
        records = [each.record for body in self.accepted.values() for each in decode(body).records()]
        return sorted(record.value for record in records if isinstance(record, Gauge))
