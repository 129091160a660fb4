"""Rows of one type that do not fit into memory, spilled to a file on the local disk.

A ``SpillFile`` is written batch by batch; ``finish`` gives its ``SpilledRows``, a sequence of rows like a batch. A
selection or an order of them is a list of row numbers; rows are read in batches of bounded size, straight from the
file. So memory holds the numbers and, during a sort, the keys.

The file is unlinked once it is finished: it goes with the process, also when that is killed.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ontology.format.data.batch import Batch, Many, joined
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId

SLICE_ROWS = 65_536
SLICE_BYTES = 32 << 20
"""Rows are looked at in slices of at most so many, and about so large."""


class SpillFile:
    """Blocking. Closing it removes the file, also of one that never became a pile."""

    def __init__(self, type_id: TypeId, folder: Path | None = None) -> None:
        self.type_id = type_id
        self._names = (*key_columns(type_id.kind), "fields_json")
        self._schema = pa.schema([(name, pa.string()) for name in self._names])
        made = NamedTemporaryFile(prefix=".holdfast-", dir=folder, delete=False)  # noqa: SIM115  # see __exit__
        self._file = made
        self._writer = pa.ipc.new_file(self._file, self._schema)

    def add(self, batch: Batch) -> None:
        self._writer.write_batch(pa.record_batch([*batch.keys, batch.bodies], schema=self._schema))

    def finish(self) -> "SpilledRows":
        """What was added; nothing more can be."""
        self._writer.close()
        self._file.close()
        with pa.memory_map(self._file.name) as source:
            table = pa.ipc.open_file(source).read_all()
        self._remove()
        return SpilledRows(self.type_id, table, np.arange(table.num_rows, dtype=np.int64))

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            Path(self._file.name).unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._remove()


@dataclass(frozen=True, eq=False)
class SpilledRows(Many):
    """Rows that are all live, by their numbers in the file."""

    type_id: TypeId
    table: pa.Table
    numbers: "np.ndarray[Any, np.dtype[np.int64]]"

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return list(self._batch(self.numbers[index]))
        return self._batch(self.numbers[index : index + 1] if index >= 0 else self.numbers[index:][:1])[0]

    def __iter__(self) -> Iterator[Row]:
        for batch in self.batches():
            yield from batch

    def where(self, mask: "np.ndarray[Any, np.dtype[np.bool_]]") -> "SpilledRows":
        return replace(self, numbers=self.numbers[mask])

    def at(self, numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> "SpilledRows":
        """Other rows of the same file."""
        return replace(self, numbers=numbers)

    def ordered(self) -> "SpilledRows":
        """By identity."""
        names = self.table.column_names[:-1]
        keys = pa.table({name: self._column(name) for name in names})
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names])
        return replace(self, numbers=self.numbers[order.to_numpy()])

    def batches(self) -> Iterator[Batch]:
        """All rows, some at a time."""
        count = len(self.numbers)
        each = self.table.nbytes // max(self.table.num_rows, 1)
        size = max(1, min(SLICE_ROWS, SLICE_BYTES // max(each, 1)))
        for start in range(0, count, size):
            yield self._batch(self.numbers[start : start + size])

    @cached_property
    def joined(self) -> pa.ChunkedArray:
        """The identities as texts."""
        return joined([self._column(name) for name in self.table.column_names[:-1]])

    @cached_property
    def distinct(self) -> bool:
        return bool(pc.count_distinct(self.joined).as_py() == len(self))

    # --- rows by their numbers ---

    def _column(self, name: str) -> pa.ChunkedArray:
        column = self.table.column(name)
        return column if self._all else column.take(pa.array(self.numbers))

    @property
    def _all(self) -> bool:
        return len(self.numbers) == self.table.num_rows and bool(np.all(np.diff(self.numbers) == 1))

    @cached_property
    def _chunks(self) -> list[pa.RecordBatch]:
        return list(self.table.to_batches())

    @cached_property
    def _starts(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.cumsum([0, *(chunk.num_rows for chunk in self._chunks)], dtype=np.int64)

    def _batch(self, numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> Batch:
        """Taken from each chunk of the file that has some of them, and put in order."""
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(which, kind="stable")
        pieces = []
        for chunk in np.unique(which):
            local = numbers[order][which[order] == chunk] - self._starts[chunk]
            pieces.append(self._chunks[chunk].take(pa.array(local)))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        found = pa.Table.from_batches(pieces, schema=self.table.schema).combine_chunks().take(pa.array(place))
        *keys, bodies = (column.combine_chunks() for column in found.columns)
        return Batch(self.type_id, tuple(keys), bodies)
