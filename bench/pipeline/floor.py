"""``python -m bench.pipeline.floor PARQUET OUT``: plain Spark, in a process and a JVM of its own, with own settings.

It says ``ready``; then, for each line that it reads, it aggregates the file once, writes the rows as Parquet, and says
how long that took. One-minute windows: count, sum, least and greatest value of each series.
"""

import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main(source: str, target: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = session.read.parquet(source)
    window = f.expr("time_us div 60000000").alias("minute")
    value = f.col("value")
    rows = frame.groupBy("series", window).agg(f.count(value), f.sum(value), f.min(value), f.max(value))
    named = rows.toDF("series", "minute", "count", "sum", "min", "max")
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        named.write.mode("overwrite").parquet(target)
        print(time.perf_counter() - began, flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
