"""The pipeline: what is derived from accepted batches, and what Spark reads, writes and compacts.

Importing this room needs neither PySpark nor Java; whoever starts Spark does (``session``). ``design/0050-pipeline.md``
has the plan.
"""

from holdfast.pipeline.compact import compact
from holdfast.pipeline.drive import run, serve
from holdfast.pipeline.engine import Engine, Inline
from holdfast.pipeline.job import Ran, history
from holdfast.pipeline.load import load
from holdfast.pipeline.options import Options

__all__ = ["Engine", "Inline", "Options", "Ran", "compact", "history", "load", "run", "serve"]
