"""The data source of Spark that is called ``holdfast``. Importing this module needs PySpark.

Where this package is installed beside Spark's Python, Spark finds it by itself (``pyspark_holdfast``); elsewhere
``register`` makes it known to a session.

Spark plans in a Python process beside its driver and reads in those of its executors; each opens the store from its
spec and closes it. What a query pins is pinned once, when its DataFrame is made: the source carries it on.

Filters reach a source only where ``spark.sql.python.filterPushdown.enabled`` is true; then they leave out files, hours
and chunks before a task starts. Elsewhere Spark filters what it gets: the same rows, read at a higher price. Spark
refuses a reader that takes filters while the setting is off, so that no one relies on filters that have no effect;
ours does not depend on them, and says so by ``_Pushing``.

Errors leave as one line, ``holdfast-error:kind: what happened (hint)``, which is part of the message that Spark makes.
"""

import asyncio
import gc
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.base.errors import Invalid
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.session import PUSHDOWN, is_remote
from holdfast.pipeline.engine.tasks import read_in_task
from holdfast.pipeline.errors import NoSpark, in_one_line
from holdfast.pipeline.tables.find import find
from holdfast.pipeline.tables.given import KEPT, Given
from holdfast.pipeline.tables.table import Condition, Conditions, Operator, Table, Wanted, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "holdfast"
T = TypeVar("T")

_OPERATORS: Mapping[type[Filter], Operator] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
    StringStartsWith: "startswith",
}


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


# --- a read ---


def found_table(options: Mapping[str, str], schema: StructType | None = None) -> tuple[Given, Table]:
    """What options mean, looked up in the store. ``schema`` is that of a table of Spark's catalog, or a user's."""
    with in_one_line():
        given = Given.of(options)
        kept = schema.fields[0].metadata.get(KEPT) if schema is not None and schema.fields else None
        if kept is not None:
            given = Given({**json.loads(kept), **given.options})
        return given, with_store(given.spec(), lambda store: find(store, given))


def schema_of(given: Given, table: Table) -> StructType:
    """The columns as Spark has them. A column of JSON texts is marked, and with a table of Spark's catalog the options
    are kept.
    """
    with in_one_line():
        narrowed = _narrowed(given, table)
        found = from_arrow_schema(narrowed)
    for field, own in zip(found.fields, narrowed, strict=True):
        field.metadata = {name.decode(): value.decode() for name, value in (own.metadata or {}).items()}
    if given.of_catalog and found.fields:
        found.fields[0].metadata = {**found.fields[0].metadata, KEPT: json.dumps(dict(given.options))}
    return found


def table_reader(given: Given, table: Table, schema: StructType) -> "TableReader":
    with in_one_line():
        return TableReader(given.spec(), table, wanted_of(given, table, schema), schema)


class TableReader(DataSourceReader):
    """One read of a table. Pickled: Spark takes it to the tasks."""

    def __init__(self, spec: StoreSpec, table: Table, wanted: Wanted, schema: StructType) -> None:
        self._spec, self._table, self._wanted = spec, table, wanted
        self._schema = schema
        self.pushFilters = _Pushing(self)  # type: ignore[method-assign]  # see there

    def push(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Take note of the filters. Spark puts all of them to the rows again."""
        listed = list(filters)
        found = [condition_of(each) for each in listed]
        terms = tuple(each for each in found if each is not None)
        self._wanted = Wanted(self._wanted.columns, Conditions(terms), self._wanted.partitions)
        return listed

    def partitions(self) -> list[InputPartition]:
        with in_one_line():
            parts = with_store(self._spec, lambda store: self._table.plan(store, self._wanted))
            return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = partition.value
        if part is None:  # Spark makes a partition of its own where there are none
            return iter(())
        return batches(self._spec, self._schema, lambda store: self._table.read(store, part, self._wanted))


@dataclass
class _Pushing:
    """``pushFilters`` of a reader, which looks like the one that every reader has: Spark then asks it for filters
    where they are pushed, and does not insist on them where they are not."""

    reader: TableReader

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self.reader.push(filters)


def condition_of(given: Filter) -> Condition | None:
    """The filter as a condition; None if it says nothing that we use."""
    if isinstance(given, IsNotNull):
        return Condition(given.attribute[0], "not null") if len(given.attribute) == 1 else None
    operator = _OPERATORS.get(type(given))
    path: tuple[str, ...] = getattr(given, "attribute", ())
    value: Any = getattr(given, "value", None)
    if operator is None or len(path) != 1 or value is None:
        return None
    if operator == "in":
        value = tuple(value)
        if any(each is None for each in value):
            return None
    return Condition(path[0], operator, value)


def _narrowed(given: Given, table: Table) -> pa.Schema:
    names = check_columns(table.name, table.schema, given.texts("columns"))
    return pa.schema([table.schema.field(name) for name in names])


def wanted_of(given: Given, table: Table, schema: StructType) -> Wanted:
    """The columns of the schema: all of them, those of the option, or those of a schema that the user gave."""
    names = check_columns(table.name, table.schema, schema.fieldNames())
    if len(names) < len(schema.fields):
        raise Invalid(f"table {table.name}: the schema that was given has a column twice", remedy="name it once")
    known = from_arrow_schema(table.schema)
    for name, field in zip(names, schema.fields, strict=True):
        kind, asked = known[name].dataType.simpleString(), field.dataType.simpleString()
        if asked != kind:
            raise Invalid(
                f"table {table.name}: column {name} is of type {kind}, and the schema that was given says {asked}",
                remedy="leave the schema out, and cast the column afterwards",
            )
    return Wanted(names, partitions=given.whole("partitions", least=1))


def with_store(spec: StoreSpec, use: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """What ``use`` gives, on a loop and a store of its own."""

    async def work() -> T:
        async with open_store(spec) as store:
            return await use(store)

    found = asyncio.run(work())
    _keep_modules()
    return found


@cache
def _keep_modules() -> None:
    """Spare garbage collections what was imported: PySpark's processes serve many reads, and collect after each."""
    gc.collect()
    gc.freeze()


def batches(
    spec: StoreSpec, schema: StructType, read: Callable[[Client], AsyncIterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Batches in Spark's schema, one after the other, on a loop that lives until they are read."""
    wanted = to_arrow_schema(schema, timezone="UTC")

    async def rows(store: Client) -> AsyncIterator[pa.RecordBatch]:
        async with aclosing(read(store)) as found:  # type: ignore[type-var]  # it is a generator
            async for batch in found:
                yield _cast(batch, wanted)

    try:
        yield from read_in_task(spec, rows)
    finally:
        _keep_modules()


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- sessions ---


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
