"""Upgraders: functions from the fields of an older version of a schema to those of a newer one.

    @upgrader(Customer, from_version=1, to_version=2)
    def split_name(fields):
        first, _, last = fields.pop("name").partition(" ")
        return {**fields, "first": first, "last": last}

The same functions migrate a type and read rows of older versions. They get and give fields as the store has them: what
JSON has, so that a datetime is a text. Between versions that no upgrader names nothing had to be changed: the schema
grew by what may be empty. An upgrader must give the same result each time: rows that were never rewritten are upgraded
whenever they are read.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.types import names
from holdfast.ontology.types.declaration import Declaration, declaration
from holdfast.ontology.types.errors import UnreadableRow
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.typespec import Node

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
U = TypeVar("U", bound=Upgrade)

_ATTRIBUTE = "__holdfast_upgraders__"


@dataclass(frozen=True, slots=True)
class Step:
    from_version: int
    to_version: int
    function: Upgrade

    @property
    def label(self) -> str:
        return f"{self.from_version} to {self.to_version} by {getattr(self.function, '__name__', 'a function')}"


def upgrader(of: type[Mixin], *, from_version: int, to_version: int) -> Callable[[U], U]:
    """Declare how rows of one version of a type's schema become rows of another."""
    declared = declaration(of)
    if not 1 <= from_version < to_version:
        raise Invalid(
            f"an upgrader of {declared.name} leads from version {from_version} to {to_version}",
            remedy="versions count from 1, and an upgrader leads forward",
        )

    def add(function: U) -> U:
        known = steps_of(of)
        for step in known:
            if step.from_version < to_version and from_version < step.to_version:
                raise Invalid(f"{declared.name} has two upgraders from version {max(from_version, step.from_version)}")
        made = sorted([*known, Step(from_version, to_version, function)], key=lambda step: step.from_version)
        setattr(of, _ATTRIBUTE, tuple(made))
        return function

    return add


def steps_of(of: type[Mixin]) -> tuple[Step, ...]:
    """Of the class itself: a class that inherits from another has other versions."""
    found: tuple[Step, ...] = of.__dict__.get(_ATTRIBUTE, ())
    return found


def fingerprint(steps: Sequence[Step]) -> str:
    """Changes when an upgrader does."""
    found = hashlib.blake2b(digest_size=8)
    for step in steps:
        code = getattr(step.function, "__code__", None)
        what = (code.co_code, code.co_names, repr(code.co_consts)) if code is not None else repr(step.function)
        found.update(repr((step.from_version, step.to_version, what)).encode())
    return found.hexdigest()


@dataclass(frozen=True, eq=False)
class Upgrades:
    """What is done to the stored rows of one type."""

    declared: Declaration
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, declared: Declaration) -> "Upgrades | None":
        steps = steps_of(declared.python)
        return cls(declared, steps) if steps else None

    def concerns(self, version_id: int) -> bool:
        return any(step.from_version >= version_id for step in self.steps)

    def row(self, row: Row, version_id: int) -> Row:
        """The row as of the newest version; the same if nothing concerns it."""
        return self.rows([row], [version_id])[0]

    def rows(self, stored: Sequence[Row], versions: Sequence[int]) -> list[Row]:
        """Blocking for many. ``UnreadableRow`` for what an upgrader cannot deal with, or makes wrong."""
        found = list(stored)
        places = [
            number
            for number, (row, version) in enumerate(zip(stored, versions, strict=True))
            if not is_erased(row.fields_json) and self.concerns(version)
        ]
        if not places:
            return found
        made = rows.read(self.declared, [self._upgraded(stored[number], versions[number]) for number in places])
        _, bodies = rows.written_columns(self.declared, made)
        for number, body in zip(places, bodies, strict=True):
            found[number] = stored[number]._replace(fields_json=body)
        return found

    def _upgraded(self, row: Row, version_id: int) -> Row:
        text = row.fields_json
        fields = json.loads(text)
        for step in self.steps:
            if step.from_version < version_id:
                continue
            try:
                fields = step.function(fields)
                text = json.dumps(fields)
            except HoldfastError:
                raise
            except Exception as error:  # whatever a user's function does; it is told with the row
                raise UnreadableRow(
                    f"{self.declared.name} {'/'.join(filter(None, row.identity))!r}: the upgrader from version "
                    f"{step.label} failed: {error!r}",
                    remedy="mend the upgrader",
                ) from error
            if not isinstance(fields, dict):
                raise UnreadableRow(
                    f"{self.declared.name}: the upgrader from version {step.label} gave a {type(fields).__name__}",
                    remedy="give back the fields, as a dict",
                )
            version_id = step.to_version
        return row._replace(fields_json=text)


def versions_in(path: Path) -> set[int]:
    """The versions of the schema that rows of a file have; 1 where it does not say."""
    with pq.ParquetFile(path) as file:
        if "schema_version_id" not in file.schema_arrow.names:
            return {1}
        found = file.read(columns=["schema_version_id"], use_threads=False).column(0).unique().to_pylist()
    return {int(each) if each is not None else 1 for each in found}


def upgraded_table(table: pa.Table, upgrades: Upgrades) -> pa.Table:
    """The same rows, with upgraded ``fields_json``; other columns as they are."""
    count = table.num_rows
    known = "schema_version_id" in table.column_names
    versions = table.column("schema_version_id").to_pylist() if known else [1] * count
    made = upgrades.rows(rows.from_table(table), [each if each is not None else 1 for each in versions])
    place = table.schema.get_field_index("fields_json")
    return table.set_column(place, "fields_json", pa.array([row.fields_json for row in made], pa.string()))


def upgrade_file(path: Path, target: Path, upgrades: Upgrades, nodes: Mapping[str, Node]) -> None:
    """Row group by row group, so that memory is bounded."""
    partial: set[str] = set()
    writer: pq.ParquetWriter | None = None
    target.parent.mkdir(exist_ok=True)
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, use_threads=False)
            kept = [name for name in group.column_names if name in names.SYSTEM_COLUMNS]
            table = upgraded_table(group.select(kept), upgrades)
            typed = typed_columns(nodes, table.column("fields_json").to_pylist())
            partial |= {name for name, made in typed.items() if made.partial}
            for name, made in typed.items():
                table = table.append_column(name, made.array)
            if writer is None:
                writer = pq.ParquetWriter(target, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.add_key_value_metadata(rows.marks(nodes, partial))
            writer.close()
