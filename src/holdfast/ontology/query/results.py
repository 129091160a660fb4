"""What a query returns: objects that know where they come from, and tables.

``meta(obj)`` is the commit and the key of an object that a query made. It is kept beside the object, not in it: two
objects with equal fields are equal wherever they come from.
"""

import json
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from holdfast.base.errors import Conflict, Invalid, NotFound
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.batch import Identity, Row
from holdfast.ontology.format.data.columns import arrow_type, typed_columns
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.typeinfo import TypeInfo

M = TypeVar("M", bound=Mixin)


@dataclass(frozen=True, slots=True)
class Meta:
    """Where an object comes from."""

    commit_id: int
    """The commit that wrote this state of it."""
    key: Identity
    """The key of an entity; left, right and instance key of a relation."""
    retracted: bool = False
    """It is the last state of an object that this commit retracted. Only queries for history give such objects."""
    erased: bool = False
    """Its payload was erased: all fields but the key are None, whatever their types say."""


@dataclass(frozen=True, slots=True)
class Linked(Generic[M]):
    """A relation and the entities at its ends; None where there is none (yet)."""

    relation: M
    left: Any
    right: Any


class NoResult(NotFound):
    """One object was asked for, and there is none."""


class SeveralResults(Conflict):
    """One object was asked for, and there are several."""

    default_remedy = "ask for first(), or say in where() which one is meant"


_metas: dict[int, tuple["weakref.ref[Any]", Meta]] = {}
"""By the identity of objects that live: they have no hash, so that no weak dictionary can hold them."""


def meta(obj: Mixin) -> Meta:
    """The commit and the key of an object that a query has made."""
    found = _metas.get(id(obj))
    if found is None or found[0]() is not obj:
        raise Invalid(f"this {type(obj).__name__} was not made by a query", remedy="read it with onto.query(...)")
    return found[1]


def attach(obj: Any, known: Meta) -> None:
    number = id(obj)
    _metas[number] = (weakref.ref(obj, lambda _: _metas.pop(number, None)), known)


def objects(info: TypeInfo, found: pa.Table | pa.RecordBatch) -> list[Any]:
    """The objects of a result with the columns of identity, commit_id, fields_json and _retracted. Blocking."""
    stored = rows.from_table(pa.table(found) if isinstance(found, pa.RecordBatch) else found)
    made = rows.read(info, stored)
    for obj, row, commit_id in zip(made, stored, found.column("commit_id").to_pylist(), strict=True):
        attach(obj, Meta(commit_id, row.identity, row.retracted, is_erased(row.fields_json)))
    return made


def ends(info: TypeInfo, keys: Sequence[str], bodies: Sequence[str | None], commits: Sequence[Any]) -> list[Any]:
    """The entities at one end of relations, by their keys; None where there is no body. Each is made once."""
    made: dict[str, Any] = {}
    wanted = {key: (body, commit) for key, body, commit in zip(keys, bodies, commits, strict=True) if body is not None}
    stored = [Row((key,), body) for key, (body, _) in wanted.items()]
    for row, obj in zip(stored, rows.read(info, stored), strict=True):
        attach(obj, Meta(wanted[row.identity[0]][1], row.identity, erased=is_erased(row.fields_json)))
        made[row.identity[0]] = obj
    return [made.get(key) for key in keys]


def typed_table(shape: TypeInfo, found: pa.Table, names: Sequence[str], *, history: bool) -> pa.Table:
    """One column per field, of the field's Arrow type.

    What DuckDB did not give typed is read from fields_json. ``Invalid`` if a column cannot hold one of its values.
    """
    lacking = [name for name in names if name in shape.payload and name not in found.column_names]
    read = _from_bodies(shape, lacking, found.column("fields_json").to_pylist()) if lacking else {}
    columns: dict[str, Any] = {}
    for name in names:
        if name in read:
            columns[name] = read[name]
        elif name in shape.payload:
            column, kind = found.column(name), arrow_type(shape.nodes[name])
            columns[name] = column if column.type == kind else column.cast(kind)
        elif name == shape.key_field:
            columns[name] = found.column("instance_key")
        else:
            columns[name] = found.column(name)
    if history:
        columns |= {"commit_id": found.column("commit_id"), "retracted": found.column("_retracted")}
    return pa.table(columns)


def _from_bodies(shape: TypeInfo, names: Sequence[str], bodies: Sequence[str]) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    for name, column in typed_columns({name: shape.nodes[name] for name in names}, bodies).items():
        if column.partial:
            values = (
                json.loads(body).get(name)
                for body, held in zip(bodies, column.array.is_valid(), strict=True)
                if not held.as_py()
            )
            value = next(value for value in values if value is not None)
            raise does_not_hold(f"{shape.name}.{name}", str(column.array.type), repr(value))
        columns[name] = column.array
    return columns


def does_not_hold(place: str, kind: str, value: str) -> Invalid:
    """A value of another writer: ours are checked before they are written."""
    return Invalid(
        f"{place}: {kind} cannot hold {value}",
        remedy="leave the column out, read the object with get(), or write it again with a value that fits",
    )


def one_of(found: Iterable[M], label: str) -> M:
    listed = list(found)
    if not listed:
        raise NoResult(f"no {label} matches", remedy="ask for first() where there may be none")
    if len(listed) > 1:
        raise SeveralResults(f"more than one {label} matches")
    return listed[0]
