"""Work that a worker leaves when it is told to stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def unless_stopped(look: Coroutine[Any, Any, int], stopping: "asyncio.Future[Any] | None") -> int:
    """What the look has found; 0 if ``stopping`` came first. A look at a large backlog takes long, and what it finds is
    advice."""
    if stopping is None:
        return await look
    looking = asyncio.ensure_future(look)
    try:
        await asyncio.wait({looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not looking.done():
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
    return 0 if looking.cancelled() else looking.result()
