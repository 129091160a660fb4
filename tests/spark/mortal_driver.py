"""A service whose JVM is killed between two rounds, or below a task; it prints the error that ends it.

python -m tests.spark.mortal_driver STORE idle|working
"""

import asyncio
import os
import signal
import sys

import psutil

from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.cli.pipeline.driver import hush_py4j
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.pipeline.engine.spark import SparkEngine
from holdfast.pipeline.errors import SparkLost
from holdfast.pipeline.write.rows import run_tasks
from tests.unit.pipeline.field import HOUR, START, Field
from tests.unit.pipeline.test_broken import accept


async def dying(store: Store, ambient: Ambient, work: Document) -> list[Document]:
    """A task that takes its Spark with it."""
    os.kill(work["pid"], signal.SIGKILL)
    return []


async def main(uri: str, when: str) -> None:
    stop = asyncio.Event()
    hush_py4j()  # as the command does
    async with open_store(uri) as store:
        field = Field(store)
        engine = SparkEngine.at(store.spec, "local[1]")

        async def jvm() -> psutil.Process:
            await engine.cores()
            return next(each for each in psutil.Process().children() if "java" in each.name())

        async def after(ran: list[pipeline.Ran]) -> None:
            process = await jvm()
            process.kill()
            process.wait()
            await accept(field, "agent", "boot", 10, START + HOUR)

        try:
            if when == "idle":
                await accept(field, "agent", "boot", 0, START)
                await pipeline.serve(
                    store,
                    ["reconcile"],
                    every_s=0.1,
                    stop=stop,
                    engine=engine,
                    options=pipeline.Options(),
                    on_round=after,
                )
            else:
                await run_tasks(store, engine, "dying", dying, [{"pid": (await jvm()).pid}], lambda *_: None)
        except SparkLost as error:
            print(error)
        finally:
            await engine.close()


if __name__ == "__main__":  # a task is found again by its module's name
    asyncio.run(main(*sys.argv[1:]))
