"""The data source of Spark that is called ``holdfast``. Importing this module needs PySpark.

Where this package is installed beside Spark's Python, Spark finds it by itself (``pyspark_holdfast``); elsewhere
``register`` makes it known to a session.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from holdfast.pipeline.engine.session import PUSHDOWN, is_remote
from holdfast.pipeline.errors import NoSpark, in_one_line
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.source import found_table, schema_of, table_reader, wanted_of
from holdfast.pipeline.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "holdfast"


class HoldfastSource(DataSource):
    """One for each ``load``. The table is looked up once, and stays pinned as it was then."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schema_of(*self._found())

    def reader(self, schema: StructType) -> DataSourceReader:
        return table_reader(*self._found(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # as below: Spark's name
        with in_one_line():
            from holdfast.pipeline.tables.stream import stream_reader  # noqa: PLC0415  # needs PySpark 4.2

            given, table = self._found(schema)
            return stream_reader(given, table, wanted_of(given, table, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from holdfast.pipeline.write.sink import batch_writer  # noqa: PLC0415  # a reader needs nothing of it

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        from holdfast.pipeline.write.sink import stream_writer  # noqa: PLC0415  # as above

        return stream_writer(self.options, schema, overwrite)

    def _found(self, schema: StructType | None = None) -> tuple[Given, Table]:
        found: tuple[Given, Table] | None = getattr(self, "_pinned", None)
        if found is None:
            found = self._pinned = found_table(self.options, schema)
        return found


def register(session: "SparkSession") -> None:
    """Make the format known to a session, and let its filters reach the tables."""
    check_python(session)
    session.dataSource.register(HoldfastSource)
    session.conf.set(PUSHDOWN, "true")


def check_python(session: "SparkSession") -> None:
    """``NoSpark`` if Spark runs a Python that was not chosen and is not this one, as in a virtual environment that is
    not activated: it would not find the format.
    """
    if is_remote(session) or "PYSPARK_PYTHON" in os.environ:
        return
    used = shutil.which(session.sparkContext.pythonExec) or session.sparkContext.pythonExec
    if Path(used).parent != Path(sys.executable).parent:
        raise NoSpark(
            f"Spark runs {used}, and Holdfast is installed for {sys.executable}",
            remedy=f"set PYSPARK_PYTHON={sys.executable} before the session begins",
        )


def frame(session: "SparkSession", store: Any, table: str, **options: Any) -> "DataFrame":
    """A table as a DataFrame: ``frame(spark, hf, "Customer", as_of=12)``.

    ``store`` is a URI, or anything open that has a store: credentials are not taken from it, Spark's own Python reads
    the settings.
    """
    check_python(session)
    uri = store if isinstance(store, str) else uri_of(store)
    reader = session.read.format(FORMAT).option("store", uri).option("table", table)
    for name, value in options.items():
        listed = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        reader = reader.option(name, str(listed).lower() if isinstance(value, bool) else str(listed))
    return reader.load()


def uri_of(store: Any) -> str:
    """The address of a store or a platform, with the options that are no secrets."""
    spec = getattr(store, "store", store).spec
    options = "&".join(f"{name}={value}" for name, value in spec.options)
    return f"{spec.uri}?{options}" if options else str(spec.uri)
