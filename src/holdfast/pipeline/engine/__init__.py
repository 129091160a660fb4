"""The two engines that run jobs: Spark, and this process with DuckDB. ``design/0055-jobs-as-sql.md`` has the rules."""

from holdfast.pipeline.engine.local import Inline
from holdfast.pipeline.engine.protocol import Engine, Progress, unwatched

__all__ = ["Engine", "Inline", "Progress", "unwatched"]
