"""The same events for every contender: ours, the bare requests, a queue in SQLite."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from holdfast.base.config import S3Section, Settings
from holdfast.bus import Bus, Event
from holdfast.objects.store import CREATE, IfMatch, Store, Written

try:
    from persistqueue import SQLiteAckQueue
    from persistqueue.exceptions import Empty

    INSTALLED = True
except ImportError:
    INSTALLED = False

AT_ONCE = 16
PAYLOAD = "x" * 200


class BenchOrder(Event):
    n: int
    text: str = PAYLOAD
    sent: float = 0.0


def our_settings(address: str | None) -> Settings:
    if address is None:
        return Settings()
    return Settings(
        s3=S3Section(endpoint=address, region="us-east-1", access_key_id="test", secret_access_key=SecretStr("test"))
    )


async def publish(bus: Bus, events: int) -> None:
    """Sixteen at a time, as the floor does it."""
    left = iter(range(events))

    async def some() -> None:
        for number in left:
            await bus.publish(BenchOrder(n=number))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def floor_worker(store: Store, keys: list[str]) -> None:
    """What the layout cannot do without: read the event, create the claim, replace it."""
    left = iter(keys)
    body = b'{"claim":"' + b"x" * 400 + b'"}'

    async def some() -> None:
        for key in left:
            await store.get(key)
            claim = f"floor/{key.rpartition('_')[2]}"
            written = await store.put(claim, body, CREATE)
            if isinstance(written, Written):
                await store.put(claim, body + key.encode(), IfMatch(written.version))

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def sqlite_queue(folder: Path, events: int, workers: int) -> dict[str, Any]:
    """Events through ``persist-queue``'s queue with acknowledgements. Its workers are threads of one process."""
    queue = SQLiteAckQueue(str(folder), multithreading=True, auto_commit=True)
    begun = time.perf_counter()
    for number in range(events):
        queue.put({"n": number, "text": PAYLOAD})
    published = time.perf_counter() - begun
    counts = [0] * workers

    def work(number: int) -> None:
        while True:
            try:
                item = queue.get(block=False)
            except Empty:
                return
            queue.ack(item)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handled = time.perf_counter() - begun
    queue.close()
    return {"events": sum(counts), "publish_per_second": events / published, "handle_per_second": events / handled}
