"""One worker in a process of its own: ``python -m bench.bus.process ROLE URI TOTAL NUMBER OF FOLDER [ADDRESS]``.

It gets ready, says so by a file, waits for the file ``go``, works, and prints when it handled its first and its last
event and how many, as JSON. Times are of the system's monotonic clock, which all processes share.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.bus.work import BenchOrder, floor_worker, our_settings
from holdfast.base.config import Settings
from holdfast.bus import Handler, on
from holdfast.objects import open as open_store
from holdfast.platform import durable, handlers
from holdfast.platform.open import open_platform

WARM = (durable, handlers)
"""Loaded before the clock runs."""


async def ready(folder: Path, number: int) -> None:
    (folder / f"ready{number}").touch()
    while not (folder / "go").exists():  # noqa: ASYNC110  # the event is a file: it comes from another process
        await asyncio.sleep(0.002)


async def ours(uri: str, settings: Settings, total: int, number: int, folder: Path) -> dict[str, Any]:
    times: list[float] = []

    def handler() -> Handler:
        @on(BenchOrder, id="bench", concurrency=16)
        async def note(ctx: Any, event: BenchOrder) -> None:
            times.append(time.monotonic())

        return note

    async with open_platform(uri, settings=settings) as hf:
        await ready(folder, number)
        before = hf.store.usage.requests()
        await hf.run([handler()], until_idle=True)
        return {"times": [min(times), max(times)] if times else [], "count": len(times), "requests": _since(hf, before)}


async def floor(uri: str, settings: Settings, total: int, number: int, of: int, folder: Path) -> dict[str, Any]:
    async with open_store(uri, settings=settings) as store:
        names = [key async for key in store.keys("events/default/")][number::of]
        await ready(folder, number)
        before = store.usage.requests()
        begun = time.monotonic()
        await floor_worker(store, names)
        ended = time.monotonic()
        return {"times": [begun, ended], "count": len(names), "requests": store.usage.requests() - before}


def _since(hf: Any, before: int) -> int:
    return int(hf.store.usage.requests() - before)


def main() -> None:
    role, uri, total, number, of, folder, *address = sys.argv[1:]
    settings = our_settings(address[0] if address else None)
    place = Path(folder)
    if role == "ours":
        answer = asyncio.run(ours(uri, settings, int(total), int(number), place))
    else:
        answer = asyncio.run(floor(uri, settings, int(total), int(number), int(of), place))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
