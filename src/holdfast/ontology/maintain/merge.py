"""Many files of a type into one: rows in the order of ``lifespans``, typed columns unified, all of it checked.

Keys and commits are read first: they give the order of all rows. Then the files are decoded one after the other, for
the rows that last and again for the rows that have ended: in each part the rows of a file come after those of the files
before it. Memory is bounded by the bytes of the inputs, which ``tiers`` bounds, by keys and commits, and by one decoded
file and a row group.

Typed columns follow the schema of now. A file of ours that was written under it has them already; for older rows, and
those of plain writers, they are made from ``fields_json``, which decides. Where no schema is known there are none.

Every row gets the commit until which it was the latest of its identity among the inputs (``lifespans``).

Before the bytes are handed out they are read back, and their rows compared with those that went in. ``Corrupt`` for an
input that is not what its manifest or its index says: nothing is made of damaged files.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, check
from holdfast.ontology.format.data.columns import arrow_type, complete_forms, forms_metadata, typed_columns
from holdfast.ontology.format.data.footer import REDACTED
from holdfast.ontology.format.data.lifespans import ORIGIN, Lifespans, in_order, lifespans
from holdfast.ontology.format.data.rows import ROW_GROUP, writer_for
from holdfast.ontology.format.data.stored_rows import mark_in
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo

RUN_BYTES = 1 << 20
"""Small files that are decoded together."""


@dataclass(frozen=True, slots=True)
class Source:
    """One input: the bytes of a file, and what is known of it."""

    path: str
    body: bytes
    first: int
    last: int
    rows: int | None
    """None where it is unknown."""
    ours: bool
    """Its typed columns were made by this code."""


@dataclass(frozen=True, slots=True)
class Merged:
    body: bytes
    rows: int


def merge(sources: Sequence[Source], target: TypeInfo, origin: Document) -> Merged:
    """Blocking.

    ``target`` is the type as the store has it now. ``origin`` goes into the file's metadata.
    """
    files = [_opened(source) for source in sources]
    schemas = [each.schema for each in files]
    layout, kind = _Layout.of(target, schemas), target.type_id.kind
    sink = pa.BufferOutputStream()
    found = _lifespans(files, target)
    groups = _row_groups(files, layout, found)
    first = next(groups, layout.schema.empty_table())
    going_in: list[bytes] = []
    with writer_for(sink, first) as writer:
        for group in chain((first,) if first.num_rows else (), groups):
            going_in.append(_digest(group, kind))
            writer.write_table(group, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata(layout.metadata(origin) | _redacted(schemas))
    body = bytes(sink.getvalue().to_pybytes())
    _check(body, kind, going_in)
    return Merged(body, len(found.order))


def _redacted(schemas: Iterable[pa.Schema]) -> dict[bytes, bytes]:
    """The redaction mark of the result: the highest mark of the inputs."""
    mark = max((mark_in(schema.metadata) for schema in schemas), default=0)
    return {REDACTED: str(mark).encode()} if mark else {}


class _File(NamedTuple):
    """An input that has the columns and as many rows as it should have."""

    source: Source
    schema: pa.Schema
    rows: int

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        with pq.ParquetFile(pa.BufferReader(self.source.body)) as file:
            return file.read(columns=columns, use_threads=False)


def _opened(source: Source) -> _File:
    try:
        with pq.ParquetFile(pa.BufferReader(source.body)) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{source.path}: not a Parquet file ({error})") from error
    if source.rows not in (rows, None):
        raise Corrupt(f"{source.path}: it has {rows} rows, and {source.rows} were expected")
    kind = "entity" if names.ENTITY_KEYS[0] in schema.names else "relation"
    if missing := {"commit_id", *names.key_columns(kind), "fields_json"} - set(schema.names):
        raise Corrupt(f"{source.path}: it has no column {', '.join(sorted(missing))}")
    return _File(source, schema, rows)


def _lifespans(files: Iterable[_File], target: TypeInfo) -> Lifespans:
    """From keys and commits alone."""
    keys = names.key_columns(target.type_id.kind)
    return lifespans(pa.concat_tables(_identities(file, keys) for file in files), keys)


def _identities(file: _File, keys: Sequence[str]) -> pa.Table:
    source, table = file.source, file.read(columns=["commit_id", *keys])
    bounds = pc.min_max(table.column("commit_id")).as_py()
    if table.num_rows and (bounds["min"] < source.first or bounds["max"] > source.last):
        raise Corrupt(f"{source.path}: it has rows of other commits than {source.first} to {source.last}")
    return table


def _row_groups(files: Sequence[_File], layout: "_Layout", found: Lifespans) -> Iterator[pa.Table]:
    """All rows in their order. If there are several row groups, rows with and without an end share none."""
    several = len(found.order) > ROW_GROUP
    held: list[pa.Table] = []
    for part in (found.order[: found.lasting], found.order[found.lasting :]):
        for table in _rows(files, layout, part, found.until):
            held.append(table)
            while sum(each.num_rows for each in held) >= ROW_GROUP:
                whole = pa.concat_tables(held)
                yield whole.slice(0, ROW_GROUP)
                held = [whole.slice(ROW_GROUP)]
        if several and sum(each.num_rows for each in held):
            yield pa.concat_tables(held)
            held = []
    if sum(each.num_rows for each in held):
        yield pa.concat_tables(held)


def _rows(files: Sequence[_File], layout: "_Layout", numbers: np.ndarray, until: pa.Array) -> Iterator[pa.Table]:
    """These rows, in this order, which is that of the files: their commits rise."""
    runs = list(_runs(files))
    starts = np.array(list(accumulate((sum(file.rows for file in run) for run in runs), initial=0)))
    of_run = np.searchsorted(starts, numbers, side="right") - 1
    for number, run in enumerate(runs):
        wanted = numbers[of_run == number]
        if len(wanted):
            table = layout.table(pa.concat_tables(file.read() for file in run), run[0].source)
            table = table.take(pa.array(wanted - starts[number]))
            at = table.schema.get_field_index(names.UNTIL)
            yield table.set_column(at, names.UNTIL, until.take(pa.array(wanted)))


def _runs(files: Iterable[_File]) -> Iterator[list[_File]]:
    """Neighbours that are decoded together: small files with the same columns and metadata, or one large file."""
    run: list[_File] = []
    for file in files:
        small = sum(len(each.source.body) for each in (*run, file)) <= RUN_BYTES
        if run and not (
            small and file.source.ours == run[0].source.ours and file.schema.equals(run[0].schema, check_metadata=True)
        ):
            yield run
            run = []
        run.append(file)
    if run:
        yield run


# --- columns ---


@dataclass
class _Layout:
    target: TypeInfo
    schema: pa.Schema
    partial: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, target: TypeInfo, schemas: Sequence[pa.Schema]) -> "_Layout":
        typed = {name: arrow_type(node) for name, node in target.columns.items()}
        kind = target.type_id.kind
        columns: dict[str, pa.DataType] = {"commit_id": pa.int64(), f"{kind}_type": pa.string()}
        columns |= dict.fromkeys(names.key_columns(kind), pa.string())
        columns["schema_version_id"] = pa.int64()
        if any(names.RETRACTED in schema.names for schema in schemas):
            columns[names.RETRACTED] = pa.bool_()
        columns |= {names.UNTIL: pa.int64(), **typed, "fields_json": pa.string()}
        return cls(target, pa.schema(columns))

    def table(self, file: pa.Table, source: Source) -> pa.Table:
        """The rows of one file in the columns of all."""
        found: dict[str, pa.ChunkedArray | pa.Array] = {}
        for column in self.schema:
            if column.name not in self.target.columns:
                found[column.name] = self._system(file, column)
        found |= self._typed(file, source)
        return pa.table({name: found[name] for name in self.schema.names}, schema=self.schema)

    def _system(self, file: pa.Table, column: pa.Field) -> pa.ChunkedArray | pa.Array:
        if column.name == names.UNTIL:  # of an input it says less than it will
            return pa.nulls(file.num_rows, column.type)
        if column.name in file.column_names:
            array = file.column(column.name).cast(column.type)
            return pc.fill_null(array, False) if column.name == names.RETRACTED else array
        filler = {names.RETRACTED: False, "schema_version_id": 1}.get(column.name, self.target.type_id.name)
        return pa.repeat(pa.scalar(filler, column.type), file.num_rows)

    def _typed(self, file: pa.Table, source: Source) -> Mapping[str, pa.ChunkedArray | pa.Array]:
        if source.ours and self._of_now(file):
            self.partial |= self.target.columns.keys() - (complete_forms(file.schema.metadata) or {}).keys()
            return {name: file.column(name) for name in self.target.columns}
        made = typed_columns(self.target.columns, file.column("fields_json").to_pylist())
        self.partial |= {name for name, column in made.items() if column.partial}
        return {name: column.array for name, column in made.items()}

    def _of_now(self, file: pa.Table) -> bool:
        """Whether every row was written under the current schema."""
        for name in self.target.columns:
            if name not in file.column_names or file.column(name).type != self.schema.field(name).type:
                return False
        return set(file.column("schema_version_id").unique().to_pylist()) <= {self.target.version_id}

    def metadata(self, origin: Document) -> dict[bytes, bytes]:
        document = {**origin, "schema_version_id": self.target.version_id}
        return {
            ORIGIN: json.dumps(document, sort_keys=True).encode(),
            **forms_metadata(self.target.columns, self.partial),
        }


# --- checks ---


def _digest(table: pa.Table, kind: str) -> bytes:
    """Of the rows of a row group in their order: commits, identities, versions, fields, tombstones."""
    found = hashlib.blake2b(digest_size=16)
    for name in ("commit_id", "schema_version_id"):
        found.update(table.column(name).to_numpy().tobytes())
    for name in (f"{kind}_type", *names.key_columns(kind), "fields_json"):
        texts = table.column(name).to_pylist()
        found.update(np.fromiter(map(len, texts), np.int64, len(texts)).tobytes())
        found.update("".join(texts).encode())
    if names.RETRACTED in table.column_names:
        found.update(bytes(table.column(names.RETRACTED).to_pylist()))
    return found.digest()


def _check(body: bytes, kind: str, going_in: Sequence[bytes]) -> None:
    """Read the result back and compare it with the input."""
    coming_out: list[bytes] = []
    commits, until = [np.zeros(0, np.int64)], [pa.array([], pa.int64())]
    with pq.ParquetFile(pa.BufferReader(body)) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False)
            commits.append(table.column("commit_id").to_numpy())
            until.append(table.column(names.UNTIL).combine_chunks())
            coming_out.append(_digest(table, kind))
    check(in_order(np.concatenate(commits), pa.concat_arrays(until)), "a snapshot is not in order")
    check(coming_out == list(going_in), "a snapshot does not have the rows that went into it")
