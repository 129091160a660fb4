"""Live state as server-sent events: batches as they are accepted, and how complete that is whenever it changes.

There is nothing to resume: what a reader missed is not kept for it, so events have no ids. Who comes again is told at
first how complete live state is, and asks for what is in it.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

from fastapi.responses import StreamingResponse

from holdfast.base.aio import blocking
from holdfast.ingest.live import Kept
from holdfast.ingest.select import Wanted, select
from holdfast.server.service import Service

LOOK_S = 1.0
"""How soon it is told that completeness has changed, where no batch comes."""
HEARTBEAT_NS = 15_000_000_000
"""How often completeness is told though it has not changed: its time goes on, and connections stay open."""
INLINE_RECORDS = 500
"""Batches up to this size are looked into on the loop."""


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


async def events(service: Service, wanted: Wanted) -> AsyncGenerator[bytes, None]:
    subscription = service.live.subscribe()
    clock = service.ambient.clock
    try:
        told = service.completeness()
        due_ns = clock.monotonic_ns() + HEARTBEAT_NS
        yield _event("hello", told)
        while not subscription.ended:
            kept, missed = await subscription.next(LOOK_S)
            if missed:
                yield _event("missed", {"batches": missed})
            if kept is not None and (found := await _batch_event(kept, wanted)):
                yield found
            standing = service.completeness()
            if not service.draining and (_verdict(standing) != _verdict(told) or clock.monotonic_ns() >= due_ns):
                told, due_ns = standing, clock.monotonic_ns() + HEARTBEAT_NS
                yield _event("completeness", told)
    finally:
        service.live.unsubscribe(subscription)


def _verdict(completeness: dict[str, Any]) -> str | None:
    why: str | None = completeness.get("partial_because")
    return why


async def _batch_event(kept: Kept, wanted: Wanted) -> bytes:
    """A large batch is looked into off the loop, which takes other batches meanwhile. Empty if nothing is wanted."""
    if len(kept.batch) <= INLINE_RECORDS:
        return _found_in(kept, wanted)
    return await blocking(_found_in, kept, wanted)


def _found_in(kept: Kept, wanted: Wanted) -> bytes:
    found = select([kept], wanted)
    if not found["series"] and not found["logs"] and not found["alerts"]:
        return b""
    return _event("batch", {"identity": str(kept.identity), "collector_id": kept.collector_id, **found})


def _event(name: str, document: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n".encode()
