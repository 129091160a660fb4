"""A driver of the pipeline in a process of its own, which kills itself at a chosen write.

    python -m tests.integration.pipeline_driver URI PREFIX NTH before|after [MASTER]

SIGKILL comes right before or right after the NTH write of a key with this prefix, so that what a crash leaves behind is
the same every time. It waits until the index of runs knows of the run that is under way: written beside the work.
"""

import asyncio
import os
import re
import signal
import sys

from holdfast import pipeline
from holdfast.base.config import load
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.layer import Layer
from holdfast.objects.open import backend
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.spark import SparkEngine

RUN_ID = re.compile(r"pipeline\.[a-z]+-\d{8}T\d{12}-[0-9a-f]{8}")


class Mortal(Layer):
    def __init__(self, inner: Store, prefix: str, nth: int, when: str) -> None:
        super().__init__(inner)
        self._prefix, self._left, self._when = prefix, nth, when
        self._begun: set[str] = set()
        self._noted: set[str] = set()

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        mine = key.startswith(self._prefix)
        self._left -= mine
        last = mine and self._left == 0
        if last and self._when == "before":
            await self._die()
        outcome = await super().put(key, body, mode)
        run_id = RUN_ID.search(key)
        if run_id is not None:
            (self._noted if key.startswith("runs-index/") else self._begun).add(run_id[0])
        if last:
            await self._die()
        return outcome

    async def _die(self) -> None:
        while not self._begun <= self._noted:
            await asyncio.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)


async def main(uri: str, prefix: str, nth: str, when: str, master: str = "local") -> None:
    spec = StoreSpec.parse(uri, load())
    ambient = Ambient.system()
    store = Client(Mortal(backend(spec), prefix, int(nth), when), ambient=ambient, retry=spec.retry, spec=spec)
    engine = pipeline.Inline() if master == "local" else SparkEngine.at(spec, master)
    try:
        await pipeline.run(store, engine=engine, options=pipeline.Options(lease_ttl_ms=300, merge_after_ns=0))
    finally:
        await engine.close()
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
