"""Tables of a store for engines that read at many places at once: ``spark.read.format("holdfast")``.

``find`` says which table is meant; the table plans, and its parts are read anywhere (``table``). Nothing here needs
PySpark but ``source`` and ``stream``, which hand these tables to it. ``design/0053-spark-tables.md`` has the plan.
"""

from holdfast.pipeline.tables.find import everything, find
from holdfast.pipeline.tables.table import Table, Wanted

__all__ = ["Table", "Wanted", "everything", "find"]
