"""How long an event takes from publish to handler, at a gentle rate, with one worker."""

import asyncio
import time
from typing import Any

from bench.bus.work import BenchOrder
from holdfast.base.config import BusSection, Settings
from holdfast.bus import on
from holdfast.platform.open import open_platform


async def latency(uri: str, settings: Settings, *, poll_ms: int, events: int, every_s: float) -> dict[str, float]:
    """Milliseconds at the median, the 99th percentile and the worst."""
    settings = settings.model_copy(update={"bus": BusSection(event_poll_ms=poll_ms)})
    waits: list[float] = []
    stop = asyncio.Event()

    @on(BenchOrder, id="bench", concurrency=16)
    async def note(ctx: Any, event: BenchOrder) -> None:
        waits.append((time.monotonic() - event.sent) * 1e3)
        if len(waits) == events:
            stop.set()

    async with open_platform(uri, settings=settings) as hf:
        working = asyncio.ensure_future(hf.run([note], stop=stop, namespace=f"latency{poll_ms}"))
        bus = hf.bus(f"latency{poll_ms}")
        await asyncio.sleep(2 * poll_ms / 1000)
        for number in range(events):
            await bus.publish(BenchOrder(n=number, sent=time.monotonic()))
            await asyncio.sleep(every_s)
        await asyncio.wait_for(working, 60)
    ordered = sorted(waits)
    return {
        "poll_ms": poll_ms,
        "p50_ms": round(ordered[len(ordered) // 2], 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)], 1),
        "max_ms": round(ordered[-1], 1),
    }
