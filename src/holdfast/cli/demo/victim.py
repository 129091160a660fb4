"""The process that the demo kills, ``python -m holdfast.cli.demo.victim run|work``: a run, or a worker with a durable
handler.

Each step prints a line. At the end the process prints its result and its requests, as JSON.
"""

import asyncio
import json
import sys

import holdfast
from holdfast import runs
from holdfast.bus import Event, on

RUN_ID, SHELVES = "demo-stocktaking", 24
ORDERS = ("order-1", "order-2", "order-3")
ORDER_STEPS = ("charge", "pack", "send")
NAMESPACE = "shop"


class ParcelOrdered(Event):
    order_id: str


def count_shelf(number: int) -> int:
    print(f"shelf {number}", flush=True)
    return 10 * number


@runs.workflow(version="1")
async def take_stock(ctx: runs.Context) -> int:
    return sum([await ctx.step("count", count_shelf, number) for number in range(1, SHELVES + 1)])


async def work(hf: holdfast.Holdfast) -> int:
    stop, done = asyncio.Event(), set[str]()

    @on(ParcelOrdered, id="fulfil", durable=True, concurrency=1)
    async def fulfil(ctx: runs.Context, event: ParcelOrdered) -> None:
        for step in ORDER_STEPS:
            await ctx.step(step, print, step, event.order_id, flush=True)
        done.add(event.order_id)
        if len(done) == len(ORDERS):
            stop.set()  # the runner lets this handler finish

    return (await hf.run([fulfil], namespace=NAMESPACE, stop=stop)).handled


async def main(mode: str) -> None:
    async with holdfast.open() as hf:
        result = await work(hf) if mode == "work" else (await take_stock.start(hf.store, run_id=RUN_ID)).result
        print(json.dumps({"result": result, "requests": hf.store.usage.by_verb}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
