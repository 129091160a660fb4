"""Work beside requests that must not end: an unforeseen error is logged, and the work begins again.

Without this a task that fails would end silently, and its work would never be done again.
"""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.base.telemetry import logger

PAUSE_S = 1.0

_log = logger("ingest")


async def lasting(what: str, run: Callable[[], Awaitable[None]], *, pause_s: float = PAUSE_S) -> None:
    """Run until it returns by itself or is cancelled."""
    while True:
        try:
            return await run()
        except Exception as error:  # noqa: BLE001  # whatever it is, the work goes on
            _log.error("%s failed, and begins again in %g s: %s", what, pause_s, error, exc_info=error)
        await asyncio.sleep(pause_s)
