"""A type as a session uses it: its schema, its rows from whatever users give, its objects, its files."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import pyarrow as pa

from holdfast.base.codec import Document
from holdfast.ontology.format.data import intake, rows
from holdfast.ontology.format.data.batch import LARGE, Batch
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.format.data.spill import SpilledRows
from holdfast.ontology.types.declaration import declaration
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import Drift, diff, schema_hash, schema_of

M = TypeVar("M", bound=Mixin)


class Form(Generic[M]):
    def __init__(self, python: type[M]) -> None:
        self.python = python
        self.declared = declaration(python)

    @property
    def type_id(self) -> TypeId:
        return self.declared.type_id

    @cached_property
    def schema(self) -> Document:
        return schema_of(self.declared)

    @cached_property
    def schema_hash(self) -> str:
        return schema_hash(self.schema)

    def drift(self, stored: Document) -> Drift:
        """How this class differs from a schema in the store. False if it does not, whatever the hashes say."""
        defaults = [name for name, field in self.declared.fields.items() if field.has_default]
        return diff(stored, self.schema, with_default=defaults)

    def rows(self, given: M | Iterable[M] | pa.Table | pa.RecordBatch) -> list[Row]:
        """The rows of an object, of objects, or of an Arrow table. Blocking for many."""
        if isinstance(given, self.python):
            return rows.written(self.declared, [given])
        if hasattr(given, "__arrow_c_stream__"):
            return intake.from_arrow(self.declared, given)
        objects: Any = given
        return rows.written(self.declared, objects)

    def queued(self, given: Any) -> list[Row] | Batch:
        """The same as they are queued: as columns where they are many."""
        if isinstance(given, self.python):
            return rows.written(self.declared, [given])
        typed: dict[str, pa.Array] = {}
        if hasattr(given, "__arrow_c_stream__"):
            keys, bodies, typed = intake.arrow_columns(self.declared, given)
        else:
            keys, bodies = rows.written_columns(self.declared, given)
        if len(bodies) >= LARGE:
            try:
                return rows.batched(self.declared, keys, bodies, typed)
            except (pa.ArrowException, UnicodeError):
                pass  # more than a column holds: row by row
        return rows.assembled(keys, bodies.to_pylist() if isinstance(bodies, pa.Array) else bodies)

    def objects(self, stored: Iterable[Row]) -> list[M]:
        return rows.read(self.declared, stored)

    def encode(self, written: Sequence[Row], commit_id: int, schema_version_id: int) -> bytes:
        """The rows as Parquet. Blocking."""
        if isinstance(written, SpilledRows):
            return rows.pile_to_parquet(self.declared, written, commit_id, schema_version_id)
        return rows.to_parquet(rows.to_table(self.declared, written, commit_id, schema_version_id))
