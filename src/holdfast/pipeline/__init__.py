"""The pipeline: what is derived from accepted batches, and what Spark reads, writes and compacts.

Importing this room needs neither PySpark nor Java; starting Spark does (``session``). Names are looked up when
they are first used: Spark imports this room in many small processes, most of which need little of it.
``design/0050-pipeline.md`` has the plan.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.pipeline.compaction import compact
    from holdfast.pipeline.drive import run, serve
    from holdfast.pipeline.engine import Engine, Inline
    from holdfast.pipeline.frameload import load
    from holdfast.pipeline.job import Ran, history
    from holdfast.pipeline.options import Options

__all__ = ["Engine", "Inline", "Options", "Ran", "compact", "history", "load", "run", "serve"]

_HOMES = {
    "Engine": "engine",
    "Inline": "engine",
    "Options": "options",
    "Ran": "job",
    "compact": "compaction",
    "history": "job",
    "load": "frameload",
    "run": "drive",
    "serve": "drive",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return found
