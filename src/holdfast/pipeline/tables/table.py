"""What every table is: a schema, a plan that is made once, and parts that are read on any executor.

``plan`` is run where the query is planned, at one pinned state of the store: what it finds out there, no part looks up
again. A part is data, small and picklable. ``read`` is run in a task, on a store of its own; it gives batches with the
columns that are wanted, in their order, and holds no more than a few of them at a time.

A row may be given though a condition is false of it: the caller checks again. No row for which all are true is
missing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

import pyarrow as pa

from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.tables.conditions import Conditions
from holdfast.pipeline.tables.given import Given


@dataclass(frozen=True)
class Wanted:
    """What a reader wants of a table."""

    columns: tuple[str, ...]
    conditions: Conditions = field(default_factory=Conditions)
    partitions: int | None = None
    """About how many parts there should be; None if the table knows best."""


class Table(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema:
        """Of all columns."""
        ...

    async def plan(self, store: Store, wanted: Wanted) -> list[Any]: ...

    def read(self, store: Store, part: Any, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]: ...


Tables = dict[str, tuple[Callable[[Store, Given], Awaitable[Table]], tuple[str, ...]]]
"""Makers of tables that are always there, by name: from the store and the options; and the options that they know."""


def check_columns(table: str, schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """These columns as the table spells them; all of them, if none are named."""
    if not names:
        return tuple(schema.names)
    by_name = {name.lower(): name for name in schema.names}
    found: list[str] = []
    for name in names:
        if name not in schema.names and name.lower() not in by_name:
            near = get_close_matches(name, schema.names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its columns are: {', '.join(schema.names)}"
            raise NotFound(f"table {table} has no column {name!r}", remedy=hint)
        found.append(name if name in schema.names else by_name[name.lower()])
    return tuple(dict.fromkeys(found))


def groups(items: Sequence[Any], *, worth: int, most: int | None = None) -> list[tuple[Any, ...]]:
    """Neighbours, about ``worth`` of them together; or so that there are no more groups than ``most``."""
    if not items:
        return []
    size = max(1, worth if most is None else -(-len(items) // max(1, most)))
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)]


def batch_of(schema: pa.Schema, columns: Sequence[str], rows: Sequence[Any]) -> pa.RecordBatch:
    """Documents as a batch of these columns."""
    wanted = pa.schema([schema.field(name) for name in columns])
    arrays = [pa.array([row.get(name) for row in rows], wanted.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


TIMESTAMP = pa.timestamp("us", "UTC")


def microseconds(time_ns: int | None) -> int | None:
    """For a column of timestamps."""
    return None if time_ns is None else time_ns // 1_000


def text_or_none(value: Any, encode: Callable[[Any], str]) -> str | None:
    return None if value is None else encode(value)
