"""Results of queries: objects with their commit and key.

``meta(obj)`` is the commit and the key of an object that a query has made. It is kept outside of the object, so objects
with equal fields are equal wherever they come from.
"""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from holdfast.base.errors import Conflict, Invalid, NotFound
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.batch import Identity, Row
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


def one_of(found: Iterable[M], label: str) -> M:
    listed = list(found)
    if not listed:
        raise NoResult(f"no {label} matches", remedy="use first() if there may be none")
    if len(listed) > 1:
        raise SeveralResults(f"more than one {label} matches")
    return listed[0]
