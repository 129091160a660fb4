"""What a sending application pays: processor time of ``Client`` per batch of one scrape, encoding included."""

import time
from typing import Any

from bench.frames.hosts import records
from bench.ingest.batches import AGENT, SMALL
from bench.ingest.sides import Collector
from holdfast.ingest import Client


async def client_cpu(ours: Collector, count: int) -> dict[str, Any]:
    scrape = records(SMALL.scrapes)
    async with Client(ours.url, agent_id=AGENT, token=ours.token) as client:
        began = time.process_time()
        for _ in range(count):
            await client.send(scrape)
        spent = time.process_time() - began
    return {"batches": count, "samples_per_batch": len(scrape), "cpu_us_per_batch": round(spent / count * 1e6)}
