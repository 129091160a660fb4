"""The type of ``readings``, for a driver that is to be killed when everything is staged: the commit waits here.

Processes of Spark that plan, do and commit a write all import this module, and differ by what they run.
"""

import os
import sys

from tests.spark.readings import Reading, wait

if any("python_streaming_sink_runner" in argument for argument in sys.argv):
    wait(os.environ.get("GATE_COMMIT"), "commit")

__all__ = ["Reading"]
