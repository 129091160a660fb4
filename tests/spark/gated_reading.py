"""The type of ``readings``, for a driver that is to be killed when everything is staged: whoever commits waits here.

Processes of Spark that plan, do and commit a write all import this module, and are told apart by what they run.
"""

import os
import sys

from tests.spark.readings import Reading, wait

if any("python_streaming_sink_runner" in argument for argument in sys.argv):
    wait(os.environ.get("GATE_COMMIT"), "commit")

__all__ = ["Reading"]
