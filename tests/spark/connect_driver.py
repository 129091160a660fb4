"""A driver through Spark Connect: runs the pipeline, reads a table, and prints what it found as JSON.

python -m tests.spark.connect_driver STORE MASTER
"""

import asyncio
import json
import sys

from holdfast import pipeline
from holdfast.objects.stack import open_store
from holdfast.pipeline.datasource import frame
from holdfast.pipeline.session import start
from holdfast.pipeline.spark import SparkEngine


async def main(uri: str, master: str) -> None:
    started = start(master)
    try:
        async with open_store(uri) as store:
            ran = await pipeline.run(store, engine=SparkEngine(started, store.spec))
        rows = frame(started.session, uri, "rollup").collect()
        print(json.dumps({"statuses": sorted({each.status for each in ran}), "rows": len(rows)}))
    finally:
        started.stop()


asyncio.run(main(*sys.argv[1:]))
