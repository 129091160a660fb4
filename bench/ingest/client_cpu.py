"""What a sending application pays: processor time of ``Client`` per batch, encoding included."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from bench.frames.hosts import records
from bench.ingest.batches import AGENT, Size
from bench.ingest.sides import Collector
from holdfast.telemetry import Client


async def client_cpu(ours: Collector, size: Size, senders: int, *, count: int) -> dict[str, Any]:
    """Of ``count`` batches by so many clients at a time, each with a sequence of its own, on one loop."""
    batch = records(size.scrapes)
    each = max(1, count // senders)

    async def send(client: Client, times: int) -> None:
        for _ in range(times):
            await client.send(batch)

    async with AsyncExitStack() as stack:
        opened = [Client(ours.url, agent_id=AGENT, token=ours.token) for _ in range(senders)]
        clients = [await stack.enter_async_context(client) for client in opened]
        await asyncio.gather(*(send(client, 1) for client in clients))  # connections are made once
        began = time.process_time()
        await asyncio.gather(*(send(client, each) for client in clients))
        spent = (time.process_time() - began) / (each * senders)
    return {
        "client_cpu_us_per_batch": round(spent * 1e6),
        "client_cpu_us_per_sample": round(spent * 1e6 / len(batch), 2),
    }
