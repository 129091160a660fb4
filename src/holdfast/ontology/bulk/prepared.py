"""The data file of a bulk load, encoded from rows that were decided on; and what a commit asks of it.

The number of the commit is a column of the file and its place decides where the file lies, so it is encoded when the
number is known, and again for another number when a race was lost. Rows are read and encoded a row group at a time, and
the file is sent in pieces, so that memory holds a few row groups.
"""

import hashlib
import io
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Conflict, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.bulk.staged import StagedFile
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.footer import of_footer, stats_of
from holdfast.ontology.format.data.remote_parquet import remote_parquet
from holdfast.ontology.format.data.rows import ROW_GROUP, marks, writer_for
from holdfast.ontology.format.manifest import FileEntry
from holdfast.ontology.format.stats import ROWS_MAX
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeHead, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo


@dataclass
class Prepared:
    """Rows that were decided on a type's head: what a commit asks of a bulk."""

    store: Store
    target: TypeInfo
    head: TypeHead
    generation: int
    parts: Sequence[pa.Table | StagedFile]
    """The rows in the order of identities, in memory or staged, with all columns but those that are the same in all."""
    partial: Sequence[str]
    source: str | None
    batch: int
    group_rows: int = ROW_GROUP
    marks: list[str] = field(default_factory=list)
    """Of the attempts that a file was written for."""

    @property
    def type_id(self) -> TypeId:
        return self.target.type_id

    def stands(self, ledger: Ledger, version_id: int) -> bool:
        same = (ledger.head_of(self.type_id), version_id) == (self.head, self.target.version_id)
        return same and (ledger.generation_of(self.type_id) == self.generation or not self.head.files)

    async def place(self, commit_id: int, mark: str) -> FileEntry:
        key = layout.data_key(commit_id, mark, *self.type_id)
        self.marks.append(mark)
        rows = sum(part.num_rows if isinstance(part, pa.Table) else part.rows for part in self.parts)
        digest, size, footers = hashlib.sha256(), 0, list[Any]()
        whole = bytearray() if rows <= ROWS_MAX else None

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal digest, size
            digest, size = hashlib.sha256(), 0
            footers.clear()
            if whole is not None:
                whole.clear()
            async for some in self._encoded(commit_id, footers):
                digest.update(some)
                size += len(some)
                if whole is not None:
                    whole.extend(some)
                yield some

        await self.store.put_stream(key, pieces)
        stats = (
            await blocking(stats_of, bytes(whole), key=key)
            if whole is not None
            else of_footer(footers[0], size, unique=True)
        )
        return FileEntry(self.type_id, key, rows, self.target.version_id or 1, digest.hexdigest(), stats)

    async def _encoded(self, commit_id: int, footers: list[Any]) -> AsyncIterator[bytes]:
        """The bytes of the file; its footer's metadata goes to ``footers``."""
        sink, writer = _Sink(), None
        async for table in self._groups():
            group = await blocking(self._whole, table, commit_id)
            if writer is None:
                writer = writer_for(sink, group, metadata_collector=footers)
            await blocking(writer.write_table, group, row_group_size=self.group_rows)
            yield sink.taken()
        if writer is None:
            raise ValueError("a bulk load without rows has no data file")
        writer.add_key_value_metadata(marks(self.target.columns, self.partial))
        await blocking(writer.close)
        yield sink.taken()

    async def _groups(self) -> AsyncIterator[pa.Table]:
        """The rows of all parts, as many at a time as a row group has."""
        waiting, count = list[pa.Table](), 0
        async for table in self._tables():
            waiting, count = [*waiting, table], count + table.num_rows
            while count >= self.group_rows:
                joined = pa.concat_tables(waiting)
                yield joined.slice(0, self.group_rows)
                waiting, count = [joined.slice(self.group_rows)], count - self.group_rows
        if count:
            yield pa.concat_tables(waiting)

    async def _tables(self) -> AsyncIterator[pa.Table]:
        for part in self.parts:
            if isinstance(part, pa.Table):
                yield part
                continue
            try:
                async with remote_parquet(self.store, part.key, part.size) as file:
                    async for table in file.tables(range(len(file.chunks))):
                        yield table
            except NotFound as error:
                raise vanished(part.key) from error

    def _whole(self, rows: pa.Table, commit_id: int) -> pa.Table:
        """In the order of ``to_table``."""
        count, kind = rows.num_rows, self.type_id.kind
        columns = {name: rows.column(name) for name in rows.column_names}
        constants = {
            "commit_id": pa.scalar(commit_id, pa.int64()),
            f"{kind}_type": pa.scalar(self.type_id.name, pa.string()),
            "schema_version_id": pa.scalar(self.target.version_id, pa.int64()),
        }
        first, second, third = ({name: pa.repeat(value, count)} for name, value in constants.items())
        keys = {name: columns.pop(name) for name in key_columns(kind)}
        return pa.table({**first, **second, **keys, **third, **columns})


class _Sink(io.RawIOBase):
    """What a writer writes, taken from it in between."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, some: Any) -> int:
        self._held += some
        self._written += len(some)
        return len(some)

    def taken(self) -> bytes:
        some, self._held = bytes(self._held), bytearray()
        return some


def vanished(key: str) -> Conflict:
    return Conflict(
        f"{key}: what was staged is gone: its load was taken for dead and its files were removed", remedy="load again"
    )
