"""A driver for a cluster: runs the pipeline on it, reads a table through it, and prints what it found as JSON.

python -m tests.spark.cluster_driver STORE MASTER TABLE
"""

import asyncio
import json
import sys

from holdfast import pipeline
from holdfast.objects.stack import open_store
from holdfast.pipeline.datasource import frame
from holdfast.pipeline.session import start
from holdfast.pipeline.spark import SparkEngine

LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",
}


async def main(uri: str, master: str, table: str) -> None:
    started = start(master, {} if master.startswith("sc:") else LOOPBACK)
    try:
        async with open_store(uri) as store:
            ran = await pipeline.run(store, engine=SparkEngine(started, store.spec))
        rows = frame(started.session, uri, table).collect()
        print(json.dumps({"statuses": sorted({each.status for each in ran}), "rows": len(rows)}))
    finally:
        started.stop()


asyncio.run(main(*sys.argv[1:]))
