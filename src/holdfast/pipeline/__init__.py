"""The pipeline: everything that is derived from accepted batches, computed by Spark and published through the store.

Importing this room needs neither PySpark nor Java; whoever starts Spark does (``session``). ``design/0050-pipeline.md``
has the plan.
"""

from holdfast.pipeline.drive import run, serve
from holdfast.pipeline.engine import Engine, Inline
from holdfast.pipeline.job import Ran, history
from holdfast.pipeline.options import Options

__all__ = ["Engine", "Inline", "Options", "Ran", "history", "run", "serve"]
