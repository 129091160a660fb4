"""What a query gives back: objects that know where they come from, tables, differences.

``meta(obj)`` is the commit and the key of an object that a query made. It is kept beside the object, not in it: two
objects with equal fields are equal wherever they come from.
"""

import json
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Generic, TypeVar

import pyarrow as pa

from holdfast.base.errors import Conflict, Invalid, NotFound
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.columns import arrow_type, typed_columns
from holdfast.ontology.format.data.intents import Identity, Row
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.readings import Reading, read
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.typespec import Node, Primitive, without_null

DIGITS = 38
_READ: dict[type, Reading] = {int: "number", Decimal: "decimal"}


def widened(node: Node, name: str, bodies: Sequence[str]) -> pa.Array | None:
    """The numbers of a field in these rows; None if it is no field of exact numbers."""
    plain = without_null(node)[0]
    reading = _READ.get(plain.python) if isinstance(plain, Primitive) else None
    if reading is None:
        return None
    found = [read(json.loads(body).get(name), reading) for body in bodies]
    kind = int if reading == "number" else Decimal
    numbers = [one if isinstance(one, kind) else None for one in found]
    sizes = [_size(Decimal(one)) for one in numbers if one is not None]
    whole, scale = (max((size[part] for size in sizes), default=0) for part in (0, 1))
    if whole + scale > DIGITS:
        return pa.array([None if one is None else str(one) for one in numbers], pa.string())
    with localcontext(prec=2 * DIGITS):
        step = Decimal(1).scaleb(-scale)
        exact = [None if one is None else Decimal(one).quantize(step) for one in numbers]
    return pa.array(exact, pa.decimal128(DIGITS, scale))


def _size(number: Decimal) -> tuple[int, int]:
    """Digits before and after the point."""
    exponent = number.as_tuple().exponent
    return max(number.adjusted() + 1, 0) if number else 0, max(-exponent, 0) if isinstance(exponent, int) else 0


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


@dataclass(frozen=True, slots=True)
class Changed(Generic[M]):
    """An object that is not the same at two commits; None where there is no such object."""

    key: Identity
    before: M | None
    after: M | None

    @property
    def action(self) -> str:
        if self.before is None:
            return "added"
        return "retracted" if self.after is None else "changed"


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
    """One column per field, of the field's Arrow type, or of a wider one where that cannot hold all of its numbers.

    What DuckDB did not give typed is read from fields_json.
    """
    lacking = [name for name in names if name in shape.payload and name not in found.column_names]
    read = from_bodies(shape, lacking, found.column("fields_json").to_pylist()) if lacking else {}
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


def from_bodies(shape: TypeInfo, names: Sequence[str], bodies: Sequence[str]) -> dict[str, pa.Array]:
    """Typed columns of these fields from the ``fields_json`` of rows; wider ones where they cannot hold all."""
    columns: dict[str, pa.Array] = {}
    for name, column in typed_columns({name: shape.nodes[name] for name in names}, bodies).items():
        wide = widened(shape.nodes[name], name, bodies) if column.partial else None
        columns[name] = column.array if wide is None else wide
    return columns


def one_of(found: Iterable[M], label: str) -> M:
    listed = list(found)
    if not listed:
        raise NoResult(f"no {label} is like that", remedy="ask for first() where there may be none")
    if len(listed) > 1:
        raise SeveralResults(f"more than one {label} is like that")
    return listed[0]
