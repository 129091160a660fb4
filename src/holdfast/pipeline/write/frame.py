"""Load: any Spark DataFrame into the ontology, as one commit.

    landed = await pipeline.load(frame, hf.store, Customer, on_conflict="replace")

Spark's tasks check rows and stage them, Spark's tasks decide range by range of keys what is new, and the driver makes
one commit. With ``load_id`` a load that is repeated is known, for ever, and writes nothing.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.base import codec
from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.client import Client
from holdfast.objects.open import carried
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.load import Landed
from holdfast.ontology.format.data.intake import check_columns
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.pipeline.engine import Engine
from holdfast.pipeline.engine.session import Spark, is_remote
from holdfast.pipeline.engine.spark import ROWS, SparkEngine, reason
from holdfast.pipeline.errors import SparkFailed
from holdfast.pipeline.write.rows import Columns, LoadOptions, Staged, Staging, Typed, format_hint, known_type, land

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Say = Callable[[str, int, int], None]


async def load(
    frame: "DataFrame",
    store: Client,
    of: type[Mixin] | str,
    *,
    on_conflict: Policy | str = Policy.ERROR,
    absent: bool = False,
    latest_by: str | None = None,
    instead: bool = False,
    allow_empty: bool = False,
    retract_column: str | None = None,
    load_id: str | None = None,
    batch: int = 0,
    if_head: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    say: Say = lambda step, done, total: None,
) -> Landed:
    """Commit the rows of a DataFrame; ``of`` is a class, or the name of a type that the store knows.

    Columns are fields; a relation's ends are ``left_key`` and ``right_key``. A frame of ``changes``, or one whose
    ``retract_column`` says so, retracts rows too. ``Conflict`` for an identity that has several rows, and for what
    ``on_conflict``, ``absent`` or ``if_head`` refuse; ``InvalidValue`` for a row that does not fit.
    """
    if store.spec.scheme == "memory":
        raise Invalid("a store in memory is this process's alone, and Spark's workers are others", remedy="use file:")
    typed = await known_type(store, of) if isinstance(of, str) else Typed(python=of)
    info = typed.type_info()
    columns = columns_of(frame.schema, info, retract_column, latest_by)
    rules = Rules(policy(on_conflict), absent, latest_by, instead, columns.change is not None)
    load_options = LoadOptions(rules, load_id, batch, if_head, metadata or {}, allow_empty=allow_empty)
    name = store.ambient.ids.unique()
    session = frame.sparkSession
    say("stage", 0, 0)
    parts = await blocking(_staged, frame, Staging(carried(store.spec), name, typed, columns))
    running = Spark(session, ours=False, remote=is_remote(session))
    return await land(store, info, name, parts, load_options, engine or SparkEngine(running, carried(store.spec)), say)


async def staged_files(
    engine: Engine, staging: Staging, source: str, style: str, retract_column: str | None = None
) -> tuple[list[Staged], Columns]:
    """Stage rows of files that Spark reads; and what their columns mean. The session is that of the engine."""
    if not isinstance(engine, SparkEngine):
        raise Invalid("files are read by Spark here, and this engine has none")
    spark = await engine.spark()

    def work() -> tuple[list[Staged], Columns]:
        reading = spark.session.read.format(style)
        if style == "csv":
            reading = reading.option("header", "true")
        try:
            frame = reading.load(source)
            schema = frame.schema
        except Exception as error:  # py4j and Spark Connect each have their own
            said = f"{source}: Spark cannot read it ({reason(error)})"
            if "PATH_NOT_FOUND" in str(error):
                raise NotFound(said, remedy="name files that exist") from error
            raise Invalid(said, remedy=format_hint(source, style)) from error
        columns = columns_of(schema, staging.typed.type_info(), retract_column, staging.columns.latest_by)
        return _staged(frame, replace(staging, columns=columns)), columns

    return await blocking(work)


def columns_of(schema: "StructType", info: TypeInfo, retract_column: str | None, latest_by: str | None) -> Columns:
    """What the columns of a frame mean. ``InvalidValue`` for one that the type does not have, or that it lacks."""
    names = schema.fieldNames()
    found = Columns.of(names, info, retract_column, latest_by)
    if found.change is None:
        check_columns(info, [name for name in names if name not in found.left_out])
    marked = [each.name for each in schema.fields if each.metadata.get("holdfast") == "json"]
    return replace(found, json=tuple(dict.fromkeys((*found.json, *marked))))


def policy(wanted: Policy | str) -> Policy:
    try:
        return Policy(wanted)
    except ValueError as error:
        listed = ", ".join(each.value for each in Policy)
        raise Invalid(f"on_conflict is {wanted!r}", remedy=f"give one of {listed}") from error


def _staged(frame: "DataFrame", staging: Staging) -> list[Staged]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = staging.run(batches)
        yield pa.RecordBatch.from_arrays([pa.array([codec.encode(done.document())], pa.binary())], schema=ROWS)

    try:
        table = frame.mapInArrow(task, "row binary").toArrow()
    except Exception as error:  # py4j and Spark Connect each have their own
        raise SparkFailed(f"load: a task failed for good ({reason(error)})") from error
    return [Staged.parse(json.loads(row), key="load") for row in table.column(0).to_pylist()]
