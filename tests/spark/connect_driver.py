"""A driver through Spark Connect: runs a job, reads a table, and prints what it found as JSON.

python -m tests.spark.connect_driver STORE MASTER

Then it waits for a line, and prints what a task said, or the error.
"""

import asyncio
import json
import sys

from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.pipeline.engine.spark import SparkEngine
from holdfast.pipeline.errors import SparkLost
from holdfast.pipeline.tables.datasource import frame
from holdfast.pipeline.write.rows import run_tasks


async def answering(store: Store, ambient: Ambient, work: Document) -> list[Document]:
    return [{"said": work["word"]}]


async def main(uri: str, master: str) -> None:
    async with open_store(uri) as store:
        engine = SparkEngine.at(store.spec, master)
        try:
            ran = await pipeline.run(store, ["reconcile"], engine=engine)
            rows = frame((await engine.spark()).session, uri, "accepted").collect()
            tell({"statuses": [each.status for each in ran], "rows": len(rows)})
            sys.stdin.readline()
            try:
                tell(await run_tasks(store, engine, "answering", answering, [{"word": "here"}], lambda *_: None))
            except SparkLost as error:
                tell(str(error))
        finally:
            await engine.close()


def tell(found: object) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":  # a task is found again by its module's name
    asyncio.run(main(*sys.argv[1:]))
