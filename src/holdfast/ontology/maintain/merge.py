"""Many files of a type into one: rows in the order of ``lifespans``, typed columns unified, all of it checked.

Keys and commits are read first: they give the order of all rows, however the inputs are sorted. Then the output's row
groups are put together from parts of the inputs. A part is a row group; small files are decoded once, and neighbours of
them are one part. A plain writer's file whose rows are in no order is one part, too. Memory is bounded by the bytes of
the inputs, which ``tiers`` bounds, by keys and commits, and by ``HELD_BYTES`` and a row group of what is decoded.

Typed columns follow the schema of now. A file of ours that was written under it has them already; for older rows, and
those of plain writers, they are made from ``fields_json``, which decides. Where no schema is known, the flat columns
that all files agree on stay, and the others are left out: a reader finds the values in ``fields_json``.

Every row gets the commit until which it was the latest of its identity among the inputs (``lifespans``).

Before the bytes are handed out they are read back, and their rows compared with those that went in. ``Corrupt`` for an
input that is not what its manifest or its index says: nothing is made of damaged files.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
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
from holdfast.ontology.format.data.rows import ROW_GROUP, repeats
from holdfast.ontology.format.data.stored_rows import mark_in
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo

HELD_BYTES = 64 << 20
"""Bytes of decoded parts that are kept, because later row groups may need their rows too."""
SMALL_BYTES = 64 << 10
"""A file up to this size is decoded once and kept until the merge is done."""


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

    ``target`` is the type as the store has it now; without a version the columns are those of the files. ``origin``
    goes into the file's metadata.
    """
    files = [_opened(source) for source in sources]
    schemas = [each.schema for each in files]
    layout = _Layout.of(target, schemas)
    sink = pa.BufferOutputStream()
    going_in, rows = RowsDigest(target.type_id.kind), sum(sum(each.groups) for each in files)
    found = _lifespans(files, target)
    inputs = _Inputs(layout, _parts(files, found.order))
    plain = [name for name in layout.schema.names if name != "fields_json"]
    groups = (inputs.take(numbers, found.until) for numbers in _row_groups(found))
    first = next(groups, layout.schema.empty_table())
    often = [name for name in plain if repeats(first.column(name))]
    with pq.ParquetWriter(
        sink, layout.schema, compression="zstd", use_dictionary=often, write_statistics=plain, store_schema=False
    ) as writer:
        for group in chain((first,) if first.num_rows else (), groups):
            going_in.add(group)
            writer.write_table(group, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata(layout.metadata(origin) | _redacted(schemas))
    body = bytes(sink.getvalue().to_pybytes())
    _check(body, going_in, rows)
    return Merged(body, rows)


def _redacted(schemas: Iterable[pa.Schema]) -> dict[bytes, bytes]:
    """The redaction mark of the result: the highest mark of the inputs."""
    mark = max((mark_in(schema.metadata) for schema in schemas), default=0)
    return {REDACTED: str(mark).encode()} if mark else {}


class _File(NamedTuple):
    """An input that has the columns and as many rows as it should have."""

    source: Source
    schema: pa.Schema
    groups: list[int]
    """How many rows each row group has."""
    table: pa.Table | None
    """All of a small file."""

    def read(self, group: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """All of it, or one row group."""
        if self.table is not None:
            return self.table.select(columns) if columns is not None else self.table
        with pq.ParquetFile(pa.BufferReader(self.source.body)) as file:
            if group is None:
                return file.read(columns=columns, use_threads=False)
            return file.read_row_group(group, columns=columns, use_threads=False)


def _opened(source: Source) -> _File:
    try:
        with pq.ParquetFile(pa.BufferReader(source.body)) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            table = file.read(use_threads=False) if len(source.body) <= SMALL_BYTES else None
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{source.path}: not a Parquet file ({error})") from error
    if source.rows not in (rows, None):
        raise Corrupt(f"{source.path}: it has {rows} rows, and {source.rows} were expected")
    kind = "entity" if names.ENTITY_KEYS[0] in schema.names else "relation"
    if missing := {"commit_id", *names.key_columns(kind), "fields_json"} - set(schema.names):
        raise Corrupt(f"{source.path}: it has no column {', '.join(sorted(missing))}")
    return _File(source, schema, groups, table)


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


def _row_groups(found: Lifespans) -> Iterator[np.ndarray]:
    """The numbers of the rows of each row group. If there are several, rows with and without an end share none."""
    order = found.order
    first = found.lasting if len(order) > ROW_GROUP else len(order)
    for part in (order[:first], order[first:]):
        for start in range(0, len(part), ROW_GROUP):
            yield part[start : start + ROW_GROUP]


class _Part(NamedTuple):
    """Rows that are decoded together: small files, all of a file, or one of its row groups."""

    files: list[_File]
    group: int | None
    rows: int


def _parts(files: Sequence[_File], order: np.ndarray) -> Iterator[_Part]:
    """All rows in the order of the files. A commit's file (a plain writer's) that has its rows in no order is one part:
    otherwise each of its row groups would be decoded again for each one that is written."""
    start = 0
    small: list[_File] = []
    for file in files:
        end, turns = start + sum(file.groups), 0
        if file.table is not None:
            small.append(file)
        else:
            if small:
                yield _Part(small, None, sum(sum(each.groups) for each in small))
                small = []
            if file.source.first == file.source.last and len(file.groups) > 1:
                own = order[(order >= start) & (order < end)]
                turns = int(np.count_nonzero(np.diff(own) < 0))
            if turns > 1:  # one: from the rows that last to those that have ended
                yield _Part([file], None, end - start)
            else:
                yield from (_Part([file], number, rows) for number, rows in enumerate(file.groups))
        start = end
    if small:
        yield _Part(small, None, sum(sum(each.groups) for each in small))


class _Inputs:
    """All input rows, by number."""

    def __init__(self, layout: "_Layout", parts: Iterable[_Part]) -> None:
        self._layout = layout
        self._parts = list(parts)
        self._starts = np.array(list(accumulate((part.rows for part in self._parts), initial=0)))
        self._held: dict[int, pa.Table] = {}
        self._held_bytes = 0

    def take(self, numbers: np.ndarray, until: pa.Array) -> pa.Table:
        """These rows, in this order, in the columns of all."""
        parts = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(parts, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(parts[order])) + 1).tolist(), len(order)]
        found: list[pa.Table] = []
        for start, end in pairwise(edges):
            part, wanted = int(parts[order[start]]), numbers[order[start:end]]
            found.append(self._part(part).take(pa.array(wanted - self._starts[part])))
        table, back = pa.concat_tables(found), np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        table = table if len(found) == 1 else table.take(pa.array(back))
        at = table.schema.get_field_index(names.UNTIL)
        return table.set_column(at, names.UNTIL, until.take(pa.array(numbers)))

    def _part(self, number: int) -> pa.Table:
        table = self._held.pop(number, None)
        if table is None:
            part = self._parts[number]
            tables: list[pa.Table] = []
            for alike in _alike(part.files):
                whole = pa.concat_tables(file.read(part.group) for file in alike)
                tables.append(self._layout.table(whole, alike[0].source))
            table = pa.concat_tables(tables).combine_chunks() if len(part.files) > 1 else tables[0]
            self._held_bytes += table.nbytes
        self._held[number] = table
        while self._held_bytes > HELD_BYTES and len(self._held) > 1:
            self._held_bytes -= self._held.pop(next(iter(self._held))).nbytes
        return table


def _alike(files: Iterable[_File]) -> Iterator[list[_File]]:
    """Neighbours with the same columns and metadata, which are brought into the columns of all together."""
    run: list[_File] = []
    for file in files:
        if run and not (
            file.source.ours == run[0].source.ours and file.schema.equals(run[0].schema, check_metadata=True)
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
    typed: Mapping[str, pa.DataType]
    partial: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, target: TypeInfo, schemas: Sequence[pa.Schema]) -> "_Layout":
        if target.version_id is not None:
            typed = {name: arrow_type(node) for name, node in target.columns.items()}
        else:
            typed = _agreed(schemas)
        kind = target.type_id.kind
        columns: dict[str, pa.DataType] = {"commit_id": pa.int64(), f"{kind}_type": pa.string()}
        columns |= dict.fromkeys(names.key_columns(kind), pa.string())
        columns["schema_version_id"] = pa.int64()
        if any(names.RETRACTED in schema.names for schema in schemas):
            columns[names.RETRACTED] = pa.bool_()
        columns |= {names.UNTIL: pa.int64(), **typed, "fields_json": pa.string()}
        return cls(target, pa.schema(columns), typed)

    def table(self, file: pa.Table, source: Source) -> pa.Table:
        """The rows of one file in the columns of all."""
        found: dict[str, pa.ChunkedArray | pa.Array] = {}
        for column in self.schema:
            if column.name not in self.typed:
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
        if self.target.version_id is None:
            return {name: self._fitted(file, name, kind) for name, kind in self.typed.items()}
        if source.ours and self._of_now(file):
            self.partial |= self.typed.keys() - (complete_forms(file.schema.metadata) or {}).keys()
            return {name: file.column(name) for name in self.typed}
        made = typed_columns(self.target.columns, file.column("fields_json").to_pylist())
        self.partial |= {name for name, column in made.items() if column.partial}
        return {name: column.array for name, column in made.items()}

    def _of_now(self, file: pa.Table) -> bool:
        """Whether every row was written under the current schema."""
        schema = file.schema
        if any(name not in schema.names or schema.field(name).type != kind for name, kind in self.typed.items()):
            return False
        return set(file.column("schema_version_id").unique().to_pylist()) <= {self.target.version_id}

    def _fitted(self, file: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
        if name in file.column_names:
            try:
                return file.column(name).cast(kind)
            except pa.ArrowException:
                pass  # a whole number that a float cannot hold: fields_json has it
        self.partial.add(name)
        return pa.nulls(file.num_rows, kind)

    def metadata(self, origin: Document) -> dict[bytes, bytes]:
        document = {**origin, "schema_version_id": self.target.version_id}
        return {
            ORIGIN: json.dumps(document, sort_keys=True).encode(),
            **forms_metadata(self.target.columns, self.partial),
        }


def _agreed(schemas: Sequence[pa.Schema]) -> dict[str, pa.DataType]:
    """The flat columns whose types the files agree on, by name; numbers of both sorts become floats."""
    found: dict[str, set[pa.DataType]] = {}
    for schema in schemas:
        for column in schema:
            if column.name.lower() not in names.SYSTEM_COLUMNS:
                kinds = found.setdefault(column.name, set())
                kinds |= {column.type} - {pa.null()}
    agreed: dict[str, pa.DataType] = {}
    for name, kinds in sorted(found.items()):
        if len(kinds) == 1 and not pa.types.is_nested(kind := next(iter(kinds))):
            agreed[name] = kind
        elif kinds and all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds):
            agreed[name] = pa.float64()
    return agreed


# --- checks ---


class RowsDigest:
    """Of row groups in their order: commits, identities, versions, fields, tombstones."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._texts = (f"{kind}_type", *names.key_columns(kind), "fields_json")
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, table: pa.Table) -> None:
        for name in ("commit_id", "schema_version_id"):
            self._hash.update(table.column(name).to_numpy().tobytes())
        for name in self._texts:
            texts = table.column(name).to_pylist()
            self._hash.update(np.fromiter(map(len, texts), np.int64, len(texts)).tobytes())
            self._hash.update("".join(texts).encode())
        if names.RETRACTED in table.column_names:
            self._hash.update(bytes(table.column(names.RETRACTED).to_pylist()))

    def another(self) -> "RowsDigest":
        return RowsDigest(self._kind)

    @property
    def value(self) -> str:
        return self._hash.hexdigest()


def _check(body: bytes, going_in: RowsDigest, rows: int) -> None:
    """Read the result back and compare it with the input."""
    coming_out = going_in.another()
    commits, until = [np.zeros(0, np.int64)], [pa.array([], pa.int64())]
    with pq.ParquetFile(pa.BufferReader(body)) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False)
            commits.append(table.column("commit_id").to_numpy())
            until.append(table.column(names.UNTIL).combine_chunks())
            coming_out.add(table)
    check(in_order(np.concatenate(commits), pa.concat_arrays(until)), "a snapshot is not in order")
    count = sum(map(len, commits))
    check(count == rows and coming_out.value == going_in.value, "a snapshot does not have the rows that went into it")
