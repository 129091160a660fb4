"""A service whose JVM is killed, between two rounds and below a task; it prints what it was told, as JSON.

python -m tests.spark.mortal_driver STORE
"""

import asyncio
import json
import os
import signal
import sys

from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError
from holdfast.cli.pipeline.engines import hush_py4j
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.pipeline.engine import unwatched
from holdfast.pipeline.engine.spark import SparkEngine
from holdfast.pipeline.errors import SparkFailed
from tests.unit.pipeline.field import HOUR, START, Field
from tests.unit.pipeline.test_broken import accept


async def dying(store: Store, payload: bytes) -> list[Document]:
    """A task that takes its Spark with it."""
    os.kill(int(payload), signal.SIGKILL)
    return []


async def main(uri: str) -> None:
    idle: list[str] = []
    statuses: list[str] = []
    stop = asyncio.Event()
    hush_py4j()  # as the command does
    async with open_store(uri) as store:
        field = Field(store)
        engine = SparkEngine.at(store.spec, "local[1]")

        async def jvm() -> int:
            return int((await engine.spark()).session.sparkContext._gateway.proc.pid)

        async def after(ran: list[pipeline.Ran]) -> None:
            statuses.extend(each.status for each in ran)
            if not ran:
                return
            if idle:
                stop.set()
                return
            process = (await engine.spark()).session.sparkContext._gateway.proc
            process.kill()
            process.wait()
            await accept(field, "agent", "boot", 10, START + HOUR)

        async def failed(error: HoldfastError) -> None:
            idle.append(str(error))

        await accept(field, "agent", "boot", 0, START)
        await pipeline.serve(
            store,
            ["reconcile"],
            every_s=0.1,
            stop=stop,
            engine=engine,
            options=pipeline.Options(),
            on_round=after,
            on_error=failed,
        )
        try:
            await engine.run("dying", dying, [str(await jvm()).encode()], unwatched)
        except SparkFailed as error:
            print(json.dumps({"idle": idle, "statuses": statuses, "working": str(error)}))
        finally:
            await engine.close()


if __name__ == "__main__":  # a task is found again by its module's name
    asyncio.run(main(*sys.argv[1:]))
