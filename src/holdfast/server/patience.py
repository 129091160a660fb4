"""How long a question waits for the store: a store that hangs keeps nobody waiting on the private listener for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.base.errors import Ambiguous
from holdfast.server.faults import Fault
from holdfast.server.service import Service


@asynccontextmanager
async def reading(service: Service) -> AsyncIterator[None]:
    """A block that only reads, and has its time, waiting for its turn included."""
    limit_s = service.section.read_timeout_ms / 1000
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise  # it is somebody else's
        raise Fault(
            "unavailable",
            f"there was no answer from the store within {limit_s:g} s",
            remedy="ask again later, or for less; ingest.read_timeout_ms is the limit",
        ) from None


@asynccontextmanager
async def deciding(service: Service) -> AsyncIterator[None]:
    """A block that writes a decision: where its time is over, nobody knows whether it is on record."""
    limit_s = service.section.read_timeout_ms / 1000
    remedy = "look whether it is on record, and if not send it again"
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"the store did not answer within {limit_s:g} s: the decision may be on record or not"
        raise Fault("outcome_unknown", message, remedy=remedy) from None
    except Ambiguous as error:
        raise Fault("outcome_unknown", str(error), remedy=remedy) from error
