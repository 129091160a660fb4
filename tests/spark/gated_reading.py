"""The type of ``readings``, for a driver that is to be killed when everything is staged: whoever commits waits here.

Spark's tasks and the process that commits are both Python processes that import this module. A task has a context.
"""

import os

from pyspark import TaskContext

from tests.spark.readings import Reading, wait

if TaskContext.get() is None:
    wait(os.environ.get("GATE_COMMIT"), "commit")

__all__ = ["Reading"]
