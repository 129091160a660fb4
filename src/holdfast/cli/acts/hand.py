"""A process of the demo: increments one register, and says so after every increment that was acknowledged.

    python -m holdfast.cli.acts.hand URI KEY NAME TURNS

It says ``ready``, waits for a line, then says ``ack N`` after each increment, and at last its requests as JSON. When
nobody listens any more it ends.
"""

import asyncio
import json
import sys

from holdfast.base.ids import Ambient
from holdfast.cli.acts.counter import COUNTER, plus_one
from holdfast.objects.open import open_store
from holdfast.objects.register import Register


async def main(uri: str, key: str, name: str, turns: int) -> None:
    ambient = Ambient.system()
    async with open_store(uri, ambient=ambient) as store:
        register = Register(store, key, COUNTER, ambient)
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        for turn in range(turns):
            edited = await register.edit(f"{name}-{turn}", plus_one)
            print(f"ack {edited.value}", flush=True)
        print(json.dumps(store.usage.by_verb), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
