"""The data source of Spark that is called ``holdfast``. Importing this module needs PySpark."""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from holdfast.pipeline.sink import batch_writer, stream_writer


class HoldfastSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # Spark's name
        return stream_writer(self.options, schema, overwrite)


def register(session: SparkSession) -> None:
    """Make the format known to a session."""
    session.dataSource.register(HoldfastSource)
