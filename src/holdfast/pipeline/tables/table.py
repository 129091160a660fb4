"""What every table is: a schema, a plan that is made once, and parts that are read on any executor.

``plan`` is run where the query is planned, at one pinned state of the store: what it finds out there, no part looks up
again. A part is data, small and picklable. ``read`` is run in a task, on a store of its own; it gives batches with the
columns that are wanted, in their order, and holds no more than a few of them at a time.

Conditions are those that a reader was asked for, as far as they help to leave something out. A row may be given though
a condition is false of it: the caller checks again. No row for which all are true is missing, so what is not understood
here is left out of the conditions, not guessed at.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Literal, Protocol, TypeVar

import pyarrow as pa

from holdfast.base.aio import stream_bounded
from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.tables.given import Given

T = TypeVar("T")
TIMESTAMP = pa.timestamp("us", "UTC")
LAST_NS = 253_370_764_800 * 1_000_000_000
"""The year 9999, in which hours still have names."""
ROWS_AT_ONCE = 1_000
ITEMS_AT_ONCE = 2_000
READS = 32
Operator = Literal["=", "<", "<=", ">", ">=", "in", "startswith", "null", "not null"]


@dataclass(frozen=True)
class Condition:
    """One column against one value; of ``in``, a tuple of values."""

    column: str
    operator: Operator
    value: Any = None


@dataclass(frozen=True)
class Conditions:
    """All of them hold."""

    terms: tuple[Condition, ...] = ()

    def of(self, column: str) -> list[Condition]:
        return [each for each in self.terms if each.column == column]

    def values(self, column: str) -> frozenset[Any] | None:
        """The only values that the column may have; None if that is not known."""
        found: frozenset[Any] | None = None
        for each in self.of(column):
            if each.operator in ("=", "in"):
                own = frozenset(each.value if each.operator == "in" else (each.value,))
                found = own if found is None else found & own
        return found

    def allows(self, column: str) -> Callable[[str], bool]:
        """A test for values of a column of text."""
        known = self.values(column)
        begins = [each.value for each in self.of(column) if each.operator == "startswith"]
        return lambda value: (known is None or value in known) and all(value.startswith(each) for each in begins)

    def whole(self, column: str) -> tuple[int | None, int | None]:
        """The least and the greatest whole number that the column may have."""
        return _bounds((each.operator, each.value) for each in self.of(column))

    def times(self, exact: str, rounded: str) -> tuple[int | None, int | None]:
        """The same of a time: a column of nanoseconds, and one of timestamps, whose values lost what is below a
        microsecond."""
        low, high = self.whole(exact)
        first, last = _bounds((each.operator, _nanoseconds(each.value)) for each in self.of(rounded))
        if first is not None:
            low = first if low is None else max(low, first)
        if last is not None:
            high = last + 999 if high is None else min(high, last + 999)
        return low, high


def _bounds(terms: Iterable[tuple[str, Any]]) -> tuple[int | None, int | None]:
    low: list[int] = []
    high: list[int] = []
    for operator, value in terms:
        if not isinstance(value, int | Sequence) or isinstance(value, bool | str | bytes):
            continue
        if isinstance(value, Sequence):
            numbers = [each for each in value if isinstance(each, int)]
            if operator == "in" and numbers and len(numbers) == len(value):
                low.append(min(numbers))
                high.append(max(numbers))
            continue
        if operator in ("=", ">", ">="):
            low.append(value + (operator == ">"))
        if operator in ("=", "<", "<="):
            high.append(value - (operator == "<"))
    return max(low, default=None), min(high, default=None)


def _nanoseconds(value: Any) -> Any:
    """Of a timestamp with a zone. Without one the moment is ambiguous."""
    if isinstance(value, tuple):
        return tuple(map(_nanoseconds, value))
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


@dataclass(frozen=True)
class TimeSpan:
    """From ``since`` on, before ``until``."""

    since_ns: int | None = None
    until_ns: int | None = None

    def within(self, conditions: Conditions, exact: str, rounded: str) -> "TimeSpan":
        """What conditions on a column of nanoseconds, and on one of timestamps, leave of it."""
        low, high = conditions.times(exact, rounded)
        since = [each for each in (self.since_ns, low) if each is not None]
        until = [each for each in (self.until_ns, None if high is None else high + 1) if each is not None]
        return TimeSpan(max(since, default=None), min(until, default=None))


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


def groups(
    items: Sequence[T], *, worth: int, most: int | None = None, weight: Callable[[T], int] = lambda _: 1
) -> list[tuple[T, ...]]:
    """Neighbours whose weights are about ``worth`` together; with ``most``, so that there are about as many groups."""
    limit = worth if most is None else max(1, -(-sum(map(weight, items)) // max(1, most)))
    found: list[list[T]] = []
    filled = limit
    for item in items:
        if filled + weight(item) > limit:
            found.append([])
            filled = 0
        found[-1].append(item)
        filled += weight(item)
    return list(map(tuple, found))


def batch_of(schema: pa.Schema, columns: Sequence[str], rows: Sequence[Any]) -> pa.RecordBatch:
    """Documents as a batch of these columns."""
    wanted = pa.schema([schema.field(name) for name in columns])
    arrays = [pa.array([row.get(name) for row in rows], wanted.field(name).type) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


@dataclass(frozen=True)
class RowsTable:
    """Things that are listed where the query is planned, and read one by one in tasks. Its functions are picklable."""

    name: str
    schema: pa.Schema
    listed: Callable[[Store, Wanted], Awaitable[Sequence[Any]]]
    rows: Callable[[Store, Any, Wanted], Awaitable[Sequence[dict[str, Any]]]]
    """Of one of them."""

    async def plan(self, store: Store, wanted: Wanted) -> list[tuple[Any, ...]]:
        return groups(await self.listed(store, wanted), worth=ITEMS_AT_ONCE, most=wanted.partitions)

    async def read(self, store: Store, part: tuple[Any, ...], wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        rows: list[dict[str, Any]] = []
        async for found in stream_bounded(part, lambda item: self.rows(store, item, wanted), limit=READS):
            rows += found
            if len(rows) >= ROWS_AT_ONCE:
                yield batch_of(self.schema, wanted.columns, rows)
                rows = []
        if rows:
            yield batch_of(self.schema, wanted.columns, rows)


def microseconds(time_ns: int | None) -> int | None:
    """For a column of timestamps."""
    return None if time_ns is None else time_ns // 1_000


def text_or_none(value: Any, encode: Callable[[Any], str]) -> str | None:
    return None if value is None else encode(value)
