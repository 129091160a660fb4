"""Results of queries: objects with their commit and key, and tables.

``meta(obj)`` is the commit and the key of an object that a query has made. It is kept outside of the object, so objects
with equal fields are equal wherever they come from.
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
    commit_id: int
    """The commit that wrote this state of the object."""
    key: Identity
    """The key of an entity; left, right and instance key of a relation."""
    retracted: bool = False
    """This commit retracted the object; the fields are its last state. Only in history."""
    erased: bool = False
    """Its payload was erased: all fields except the key are None, whatever their types are."""


@dataclass(frozen=True, slots=True)
class Linked(Generic[M]):
    """A relation and the entities at its ends; None for an entity that does not exist."""

    relation: M
    left: Any
    right: Any


class NoResult(NotFound):
    """``one()`` found no object."""


class SeveralResults(Conflict):
    """``one()`` found several objects."""

    default_remedy = "use first(), or more conditions in where()"


_metas: dict[int, tuple["weakref.ref[Any]", Meta]] = {}
"""By ``id`` of living objects. They have no hash, so they cannot be keys of a weak dictionary."""


def meta(obj: Mixin) -> Meta:
    """The commit and the key of an object that a query has made."""
    found = _metas.get(id(obj))
    if found is None or found[0]() is not obj:
        raise Invalid(f"this {type(obj).__name__} was not made by a query", remedy="read it with onto.query(...)")
    return found[1]


def attach(obj: Any, made: Meta) -> None:
    number = id(obj)
    _metas[number] = (weakref.ref(obj, lambda _: _metas.pop(number, None)), made)


def objects(info: TypeInfo, found: pa.Table | pa.RecordBatch) -> list[Any]:
    """The objects of a result with the columns ``Rows.stored``. Blocking."""
    stored = rows.from_table(pa.table(found) if isinstance(found, pa.RecordBatch) else found)
    made = rows.read(info, stored)
    for obj, row, commit_id in zip(made, stored, found.column("commit_id").to_pylist(), strict=True):
        attach(obj, Meta(commit_id, row.identity, row.retracted, is_erased(row.fields_json)))
    return made


def ends(info: TypeInfo, keys: Sequence[str], bodies: Sequence[str | None], commits: Sequence[Any]) -> list[Any]:
    """The entity at one end of each relation; None without a body. Each entity is made once."""
    made: dict[str, Any] = {}
    wanted = {key: (body, commit) for key, body, commit in zip(keys, bodies, commits, strict=True) if body is not None}
    stored = [Row((key,), body) for key, (body, _) in wanted.items()]
    for row, obj in zip(stored, rows.read(info, stored), strict=True):
        attach(obj, Meta(wanted[row.identity[0]][1], row.identity, erased=is_erased(row.fields_json)))
        made[row.identity[0]] = obj
    return [made.get(key) for key in keys]


def typed_table(shape: TypeInfo, found: pa.Table, names: Sequence[str], *, history: bool) -> pa.Table:
    """One column per field, of the field's Arrow type. Fields without a typed column are read from ``fields_json``.

    ``Invalid`` if a column cannot hold one of its values.
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
    return Invalid(
        f"{place}: {kind} cannot hold {value}",
        remedy="leave the column out, read the object with get(), or write it again with a value that fits",
    )


def one_of(found: Iterable[M], label: str) -> M:
    listed = list(found)
    if not listed:
        raise NoResult(f"no {label} matches", remedy="use first() if there may be none")
    if len(listed) > 1:
        raise SeveralResults(f"more than one {label} matches")
    return listed[0]
