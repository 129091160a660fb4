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
    late = Fault(
        "unavailable",
        f"there was no answer from the store within {_limit_s(service):g} s",
        remedy="ask again later, or for less; ingest.read_timeout_ms is the limit",
    )
    async with _in_time(service, late):
        yield


@asynccontextmanager
async def deciding(service: Service) -> AsyncIterator[None]:
    """A block that writes a decision: where its time is over, nobody knows whether it is on record."""
    remedy = "look whether it is on record, and if not send it again"
    message = f"the store did not answer within {_limit_s(service):g} s: the decision may be on record or not"
    try:
        async with _in_time(service, Fault("outcome_unknown", message, remedy=remedy)):
            yield
    except Ambiguous as error:
        raise Fault("outcome_unknown", str(error), remedy=remedy) from error


@asynccontextmanager
async def _in_time(service: Service, late: Fault) -> AsyncIterator[None]:
    limit = asyncio.timeout(_limit_s(service))
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise  # it is somebody else's
        raise late from None


def _limit_s(service: Service) -> float:
    return service.section.read_timeout_ms / 1000
