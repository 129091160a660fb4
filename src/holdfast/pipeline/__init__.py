"""The pipeline: what is derived from accepted batches, and what Spark reads, writes and compacts.

Importing this package needs neither PySpark nor Java; ``start`` and functions on DataFrames do. Names are imported when
they are first used: Spark imports this package in many short-lived processes, most of which need little of it.
``design/0050-pipeline.md`` has the plan.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.pipeline.drive import run, serve
    from holdfast.pipeline.engine import Engine, Inline
    from holdfast.pipeline.engine.session import start
    from holdfast.pipeline.job import Ran, history
    from holdfast.pipeline.jobs.compact import compact
    from holdfast.pipeline.options import Options
    from holdfast.pipeline.tables.datasource import frame, register
    from holdfast.pipeline.write.frame import load
    from holdfast.pipeline.write.sink import foreach_batch

__all__ = [
    "Engine",
    "Inline",
    "Options",
    "Ran",
    "compact",
    "foreach_batch",
    "frame",
    "history",
    "load",
    "register",
    "run",
    "serve",
    "start",
]

_HOMES = {
    "Engine": "engine",
    "Inline": "engine",
    "Options": "options",
    "Ran": "job",
    "compact": "jobs.compact",
    "foreach_batch": "write.sink",
    "frame": "tables.datasource",
    "history": "job",
    "load": "write.frame",
    "register": "tables.datasource",
    "run": "drive",
    "serve": "drive",
    "start": "engine.session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return found
