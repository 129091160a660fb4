"""A driver that writes, in a process of its own, to be killed.

python -m tests.spark.write_driver stream URI FILES LOG
python -m tests.spark.write_driver load URI FOLDER [NAME=VALUE ...]

A stream waits in a folder (see ``readings.wait``) if the environment names one: ``GATE_TASK`` for tasks, before they
stage anything, ``GATE_COMMIT`` for whoever commits, when everything is staged. The tasks of a load always do.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from holdfast.objects.stack import open_store
from holdfast.pipeline.datasource import register
from holdfast.pipeline.frameload import load
from holdfast.pipeline.session import read_conf, start
from tests.spark.readings import Reading, frame, wait
from tests.spark.test_spark_write import stream


def run_stream(uri: str, files: str, log: str) -> None:
    spark = start("local[1]")
    register(spark.session)
    writing = stream(spark.session, Path(files)).writeStream.option("checkpointLocation", log)
    writing = writing.format("holdfast").option("store", uri).option("class", "tests.spark.gated_reading:Reading")
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


class Gate:
    """Before a task stages anything."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wait(self.folder, "task")
        yield from batches


def run_load(uri: str, folder: str, *conf: str) -> None:
    settings = {name: value for each in conf for name, value in read_conf(each).items()}
    spark = start("local-cluster[2,1,512]", settings)
    rows = frame(spark.session, 0, 400, parts=4)

    async def work() -> None:
        async with open_store(uri) as store:
            await load(rows.mapInArrow(Gate(folder), rows.schema), store, Reading, load_id="load")

    asyncio.run(work())
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "stream":
        run_stream(*sys.argv[2:])
    else:
        run_load(*sys.argv[2:])
