"""A process of the demo: one run of thirty turns, each with an effect outside the store that must not be repeated.

    python -m holdfast.cli.acts.errand URI RUN_ID

It says ``did N`` when a turn's function has run, and at last the run's result and its own requests as JSON.
"""

import asyncio
import json
import sys

from holdfast import runs
from holdfast.objects.open import open_store

TURNS = 30


def turn(number: int) -> int:
    print(f"did {number}", flush=True)
    return number


@runs.workflow(version="1")
async def errand(ctx: runs.Context) -> int:
    return sum([await ctx.step("turn", turn, number) for number in range(1, TURNS + 1)])


async def main(uri: str, run_id: str) -> None:
    async with open_store(uri) as store:
        outcome = await errand.start(store, run_id=run_id)
        print(json.dumps({"result": outcome.result, "requests": store.usage.by_verb}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
