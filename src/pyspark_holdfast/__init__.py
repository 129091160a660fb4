"""Found by Spark itself: it looks for modules called ``pyspark_...`` and registers their ``DefaultSource``.

So ``spark.read.format("holdfast")`` needs no import where this package is installed beside Spark's own Python.
"""

from holdfast.pipeline.tables.datasource import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
