"""A driver whose tasks wait: each leaves its worker's pid in a folder, and goes on when there is a file ``go``.

python -m tests.spark.gated_driver URI FOLDER [NAME=VALUE ...]
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.objects.spec import StoreSpec
from holdfast.objects.stack import open_store
from holdfast.objects.store import Store
from holdfast.pipeline.engine import Progress, Task
from holdfast.pipeline.session import read_conf
from holdfast.pipeline.spark import SparkEngine

MASTER = "local-cluster[2,1,512]"


@dataclass(frozen=True)
class Gate:
    task: Task
    folder: str

    async def __call__(self, store: Store, payload: bytes) -> list[Document]:
        Path(self.folder, f"{os.getpid()}.worker").touch()
        while not Path(self.folder, "go").exists():
            await asyncio.sleep(0.02)
        return await self.task(store, payload)


class GatedEngine:
    def __init__(self, engine: SparkEngine, folder: str) -> None:
        self._engine = engine
        self._folder = folder

    async def cores(self) -> int:
        return await self._engine.cores()

    async def run(self, name: str, task: Task, payloads: Sequence[bytes], progress: Progress) -> list[Document]:
        return await self._engine.run(name, Gate(task, self._folder), payloads, progress)

    async def close(self) -> None:
        await self._engine.close()


async def main(uri: str, folder: str, *conf: str) -> None:
    spec = StoreSpec.parse(uri)
    settings = {name: value for each in conf for name, value in read_conf(each).items()}
    engine = GatedEngine(SparkEngine.at(spec, MASTER, settings), folder)
    async with open_store(spec) as store:
        try:
            ran = await pipeline.run(store, ["reconcile", "rollup"], engine=engine)
        finally:
            await engine.close()
    sys.exit(0 if {each.status for each in ran} == {"success"} else 1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
