"""Staged files: sorted rows that the tasks of a bulk load leave in the store for each other. Pure.

A staged file is a Parquet file of rows in the order of identities, in row groups whose first and last identities are
known. A task that decides about a range of keys reads, of every staged file, only the row groups that overlap it: the
store takes the place of a shuffle. ``key_ranges`` divides all keys so that each range has about the same number of
rows, however they were distributed among the tasks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.codec import Document
from holdfast.ontology.format.data.intents import Identity

GROUP_ROWS = 4_096
"""Of a staged file: a range of keys that ends within a row group reads it for a part."""


@dataclass(frozen=True, slots=True)
class Part:
    """One row group: its identities from the first to the last, both included."""

    first: Identity
    last: Identity
    rows: int


@dataclass(frozen=True, slots=True)
class StagedFile:
    key: str
    size: int
    parts: tuple[Part, ...]
    partial: tuple[str, ...] = ()
    """Typed columns that lack values which ``fields_json`` has."""
    skipped: int = 0
    """Row groups of the file before the first part."""

    def within(self, reach: "KeyRange") -> "StagedFile | None":
        """The parts that reach into a range of keys; None if there are none."""
        wanted = [number for number, part in enumerate(self.parts) if reach.reaches(part)]
        if not wanted:
            return None
        return replace(self, parts=self.parts[wanted[0] : wanted[-1] + 1], skipped=self.skipped + wanted[0])

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def document(self) -> Document:
        return {
            "key": self.key,
            "size": self.size,
            "parts": [[list(part.first), list(part.last), part.rows] for part in self.parts],
            "partial": list(self.partial),
            "skipped": self.skipped,
        }

    @classmethod
    def parse(cls, document: Document) -> "StagedFile":
        parts = tuple(Part(tuple(first), tuple(last), rows) for first, last, rows in document["parts"])
        return cls(document["key"], document["size"], parts, tuple(document["partial"]), document["skipped"])


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Identities from ``low`` on, before ``high``; None: without an end."""

    low: Identity | None = None
    high: Identity | None = None

    def document(self) -> list[Any]:
        return [None if end is None else list(end) for end in (self.low, self.high)]

    @classmethod
    def parse(cls, ends: Sequence[Any]) -> "KeyRange":
        low, high = (None if end is None else tuple(end) for end in ends)
        return cls(low, high)

    def reaches(self, part: Part) -> bool:
        return (self.low is None or self.low <= part.last) and (self.high is None or part.first < self.high)

    def holds(self, part: Part) -> bool:
        """Whether all of it is inside."""
        return (self.low is None or self.low <= part.first) and (self.high is None or part.last < self.high)

    def cut(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of a table, in the order of identities, that are inside."""
        first = 0 if self.low is None else _place(table, keys, self.low)
        end = table.num_rows if self.high is None else _place(table, keys, self.high)
        return table.slice(first, max(end - first, 0))


def _place(table: pa.Table, keys: Sequence[str], identity: Identity) -> int:
    """How many rows of a sorted table come before an identity."""
    low, high = 0, table.num_rows
    columns = [table.column(name) for name in keys]
    while low < high:
        middle = (low + high) // 2
        if tuple(column[middle].as_py() for column in columns) < identity:
            low = middle + 1
        else:
            high = middle
    return low


def in_order(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """By identity, and of one identity as they were."""
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys])
    return table.take(order)


def bound(table: pa.Table, keys: Sequence[str], group_rows: int = GROUP_ROWS) -> tuple[bytes, tuple[Part, ...]]:
    """A sorted table as the bytes of a staged file, and its parts. Blocking."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", use_dictionary=False, write_statistics=False) as out:
        out.write_table(table, row_group_size=group_rows)
    columns = [table.column(name) for name in keys]
    parts = []
    for start in range(0, table.num_rows, group_rows):
        last = min(start + group_rows, table.num_rows) - 1
        ends = [tuple(column[at].as_py() for column in columns) for at in (start, last)]
        parts.append(Part(ends[0], ends[1], last + 1 - start))
    return sink.getvalue().to_pybytes(), tuple(parts)


def key_ranges(sheaves: Iterable[StagedFile], rows: int) -> list[KeyRange]:
    """All keys, divided where about so many rows have begun."""
    begun = sorted((part.first, part.rows) for sheaf in sheaves for part in sheaf.parts)
    cuts: list[Identity] = []
    filled = 0
    for first, count in begun:
        if filled >= rows and (not cuts or first > cuts[-1]):
            cuts.append(first)
            filled = 0
        filled += count
    ends: list[Identity | None] = [None, *cuts, None]
    return [KeyRange(low, high) for low, high in pairwise(ends)]
