"""Which table is meant by a name: one that is always there, or an entity or relation type of this store.

A type's name comes as it is spelled, or with any case if no table that is always there is called so. Names of tables
of ``holdfast sql`` (``Customer__history``, ``Customer__as_of_12``) are understood too.
"""

import re
from collections.abc import AsyncIterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.tables.given import READING, Given
from holdfast.pipeline.tables.table import Table, Tables, Wanted, check_columns

if TYPE_CHECKING:
    from holdfast.pipeline.tables.types import TypeTable

_NAME = re.compile(r"(?P<type>\w+?)(?:__(?:(?P<history>history)|as_of_(?P<commit>\d+)))?")

HOMES = {
    "changes": "changes",
    "commits": "changes",
    "samples": "records",
    "logs": "records",
    "alerts": "records",
    "rollup": "rollups",
    "accepted": "batches",
    "quarantine": "batches",
    "objects": "objects",
    "runs": "runs",
    "steps": "runs",
    "events": "events",
    "claims": "events",
    "dead_letters": "events",
}
"""The tables that are always there, and the modules that have them. Each is loaded when its table is used:
Spark plans in processes that live for one query."""


async def find(store: Store, given: Given) -> Table:
    """The table that the options name. Errors: ``NotFound`` with names like it; ``Invalid`` for an option."""
    name = given.table
    if name in HOMES:
        tables: Tables = import_module(f"holdfast.pipeline.tables.{HOMES[name]}").TABLES
        make, options = tables[name]
        given.check(f"table {name}", (*READING, *options))
        return await make(store, given)
    return await _typed(store, given, name)


async def _typed(store: Store, given: Given, name: str) -> "TypeTable":
    from holdfast.ontology.chain.history import When  # noqa: PLC0415  # as above
    from holdfast.ontology.query.sqltables import SqlTables  # noqa: PLC0415  # loads DuckDB, which takes a while
    from holdfast.pipeline.tables import types  # noqa: PLC0415  # as above

    given.check(f"table {name}", (*READING, *types.OPTIONS))
    parts = _NAME.fullmatch(name)
    when = types.when_of(given, name)
    if parts is not None and parts["commit"]:
        if when != When():
            raise Invalid(f"{name} says itself which moment is meant", remedy=f"read {parts['type']} with options")
        when = When(last=int(parts["commit"]))
    tables = SqlTables(store)
    try:
        ledger, shapes = await tables.pinned(when)
        window = await types.window_of(store, when, ledger)
    finally:
        await tables.close()
    by_case = {each.lower(): each for each in shapes}
    for wanted in (name, parts["type"] if parts is not None else name):
        known = wanted if wanted in shapes else by_case.get(wanted.lower())
        if known is not None:
            return types.TypeTable(name, shapes[known], ledger.place, window)
    raise unknown(name, shapes)


def unknown(name: str, shapes: Mapping[str, object]) -> NotFound:
    names = [*HOMES, *shapes]
    near = get_close_matches(name, names, n=1) or get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return NotFound(f"there is no table {name!r} in this store", remedy=f"{hint}the tables are: {', '.join(names)}")


async def everything(store: Store, options: Mapping[str, str], wanted: Wanted | None = None) -> pa.Table:
    """All rows of a table, read in this process: part after part, as tasks would read them."""
    given = Given.of(options)
    table = await find(store, given)
    columns = check_columns(table.name, table.schema, given.texts("columns"))
    asked = wanted if wanted is not None else Wanted(columns, partitions=given.whole("partitions", least=1))
    schema = pa.schema([table.schema.field(name) for name in asked.columns])
    found = [batch async for batch in _batches(store, table, asked)]
    return pa.Table.from_batches(found, schema)


async def _batches(store: Store, table: Table, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
    for part in await table.plan(store, wanted):
        async for batch in table.read(store, part, wanted):
            yield batch
