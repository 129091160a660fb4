"""What a bulk load writes, decided on what is current: rows of one range of keys against the state of the same. Pure.

An identity that is in the load twice refuses it, unless ``latest_by`` names the field whose greatest value wins. An
object that is there already with other fields is a conflict, about which the policy decides as an import does. With
``instead``, what is current and not in the load is retracted.

Nothing is raised here: what refuses a load is told with the counts, because other ranges have something to say too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Invalid
from holdfast.ontology.bulk.staged import in_order
from holdfast.ontology.format.data.batch import joined
from holdfast.ontology.format.data.intents import digest
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId

SHOWN = 3
STATE = ("commit_id", "digest", "other", "retracted")
"""Columns of what is current, besides the identity; ``fields_json`` where rows may be retracted."""

_GIVEN = "_given"


class Policy(StrEnum):
    """What becomes of objects that are there already, with other fields."""

    ERROR = "error"
    SKIP = "skip"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Rules:
    """How a load is decided."""

    on_conflict: Policy = Policy.ERROR
    absent: bool = False
    """Refuse if any of its objects is there at all."""
    latest_by: str | None = None
    """Of rows for one identity, the one with the greatest value of this field counts."""
    instead: bool = False
    """What is there and not in the load is retracted."""

    def document(self) -> Document:
        return {
            "on_conflict": self.on_conflict.value,
            "absent": self.absent,
            "latest_by": self.latest_by,
            "instead": self.instead,
        }

    @classmethod
    def parse(cls, document: Document) -> "Rules":
        return cls(**{**document, "on_conflict": Policy(document["on_conflict"])})


@dataclass(slots=True)
class Tally:
    """What a load does, in numbers; and what refuses it, with a few examples."""

    rows: int = 0
    same: int = 0
    skipped: int = 0
    replaced: int = 0
    added: int = 0
    retracted: int = 0
    twice: int = 0
    refused: int = 0
    examples: list[str] = field(default_factory=list)

    def document(self) -> Document:
        return {name: getattr(self, name) for name in self.__slots__}

    def add(self, document: Document) -> None:
        for name in self.__slots__:
            if name == "examples":
                self.examples = [*self.examples, *document[name]][:SHOWN]
            else:
                setattr(self, name, getattr(self, name) + document[name])

    @property
    def written(self) -> int:
        return self.replaced + self.added + self.retracted

    def check(self, type_id: TypeId, rules: Rules) -> None:
        """``Conflict`` if the load is refused."""
        listed = ", ".join(map(repr, self.examples))
        if self.twice:
            raise Conflict(
                f"{type_id.name}: {self.twice} identities are in the load more than once: {listed}",
                remedy="keep one row of each, or name the field whose greatest value wins (latest_by)",
            )
        if self.refused:
            what = "are there already" if rules.absent else "are there already, with other fields"
            raise Conflict(
                f"{type_id.name}: {self.refused} objects {what}: {listed}",
                remedy="leave them out, or say what to do with them: on_conflict skip or replace",
            )


@dataclass(frozen=True, slots=True)
class Decided:
    chosen: pa.Table
    """Rows to be written, in the order of identities."""
    gone: pa.Table
    """Identities to be retracted, with ``fields_json`` as it was."""
    tally: Tally


def decide(type_id: TypeId, rows: pa.Table, state: pa.Table | None, rules: Rules) -> Decided:
    """``rows`` have the identity, ``fields_json`` and typed columns. ``state`` may have several of one identity."""
    keys = key_columns(type_id.kind)
    tally = Tally(rows=rows.num_rows)
    rows = _once(in_order(rows, keys).combine_chunks(), keys, rules, tally)
    current = None if state is None or not state.num_rows else _latest(state.combine_chunks(), keys)
    there, same = _compared(rows, current, keys)
    differ = there & ~same
    refused = there if rules.absent else differ if rules.on_conflict is Policy.ERROR else np.zeros(len(there), np.bool_)
    if refused.any():
        tally.refused = int(refused.sum())
        tally.examples += _names(rows.filter(pa.array(refused)), keys)
    chosen = ~same & ~differ if rules.on_conflict is Policy.SKIP else ~same
    tally.same = int(same.sum())
    tally.skipped = int(differ.sum()) if rules.on_conflict is Policy.SKIP else 0
    tally.replaced = int(differ.sum()) - tally.skipped
    tally.added = int((~there).sum())
    gone = _missing(rows, current, keys) if rules.instead and current is not None else None
    tally.retracted = 0 if gone is None else gone.num_rows
    return Decided(rows.filter(pa.array(chosen)), _empty(keys) if gone is None else gone, tally)


def _once(rows: pa.Table, keys: Sequence[str], rules: Rules, tally: Tally) -> pa.Table:
    """Each identity once; as they are where that is not allowed, and counted."""
    if rules.latest_by is not None and rules.latest_by not in rows.column_names:
        raise Invalid(f"latest_by is {rules.latest_by!r}, which is no field of this type")
    again = _repeats(rows, keys)
    if not again.any():
        return rows
    if rules.latest_by is None:
        tally.twice = int(again.sum())
        tally.examples = _names(rows.filter(pa.array(again)), keys)
        return rows.filter(pa.array(~again))
    given = rows.append_column(_GIVEN, rows.column(rules.latest_by).is_valid())  # one without the field is the oldest
    order = pc.sort_indices(given, sort_keys=[(name, "ascending") for name in (*keys, _GIVEN, rules.latest_by)])
    rows = rows.take(order).combine_chunks()
    again = _repeats(rows, keys)
    tied = again & ~_steps(rows.column(rules.latest_by)) & _steps(rows.column("fields_json"))
    last = np.append(~again[1:], True)
    if (tied & last).any():
        tally.twice = int((tied & last).sum())
        tally.examples = _names(rows.filter(pa.array(tied & last)), keys)
    return rows.filter(pa.array(last))


def _steps(column: pa.ChunkedArray) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Where a value is another than the one before it."""
    array = column.combine_chunks()
    count = len(array)
    if count == 0:
        return np.zeros(0, np.bool_)
    before, after = array.slice(0, count - 1), array.slice(1)
    equal = pc.equal(before, after).fill_null(False).to_numpy(zero_copy_only=False)
    nulls = pc.and_(before.is_null(), after.is_null()).to_numpy(zero_copy_only=False)
    return np.append(True, ~(equal | nulls))


def _repeats(rows: pa.Table, keys: Sequence[str]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which rows, in the order of identities, have that of the row before."""
    other = np.zeros(rows.num_rows, np.bool_)
    for name in keys:
        other |= _steps(rows.column(name))
    return ~other


def _latest(state: pa.Table, keys: Sequence[str]) -> pa.Table:
    order = pc.sort_indices(state, sort_keys=[(name, "ascending") for name in (*keys, "commit_id")])
    state = state.take(order).combine_chunks()
    return state.filter(pa.array(np.append(~_repeats(state, keys)[1:], True)))


def _compared(rows: pa.Table, current: pa.Table | None, keys: Sequence[str]) -> tuple[Any, Any]:
    """Which rows' identities exist, and which have the same fields."""
    none = np.zeros(rows.num_rows, np.bool_)
    if current is None or not rows.num_rows:
        return none, none
    places = pc.index_in(_texts(rows, keys), value_set=_texts(current, keys))
    found = places.is_valid().to_numpy(zero_copy_only=False)
    if not found.any():
        return none, none
    at = places.filter(places.is_valid())
    known = current.take(at)
    live = ~known.column("retracted").to_numpy()
    bodies = rows.column("fields_json").filter(pa.array(found)).to_pylist()
    ours = pa.array(map(digest, bodies), pa.binary(16), size=len(bodies))
    equal = _equal(ours, known.column("digest")) | _equal(ours, known.column("other"))
    there, same = none.copy(), none.copy()
    there[found] = live
    same[found] = live & equal
    return there, same


def _equal(ours: pa.Array, theirs: pa.ChunkedArray) -> Any:
    return pc.equal(ours, theirs.combine_chunks()).fill_null(False).to_numpy(zero_copy_only=False)


def _missing(rows: pa.Table, current: pa.Table, keys: Sequence[str]) -> pa.Table:
    known = pc.is_in(_texts(current, keys), value_set=_texts(rows, keys))
    wanted = pc.and_(pc.invert(known), pc.invert(current.column("retracted").combine_chunks()))
    return current.filter(wanted).select([*keys, "fields_json"])


def _texts(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    return joined([table.column(name).combine_chunks() for name in keys])


def _empty(keys: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in (*keys, "fields_json")})


def _names(rows: pa.Table, keys: Sequence[str]) -> list[str]:
    columns = [rows.slice(0, SHOWN).column(name).to_pylist() for name in keys]
    return ["/".join(filter(None, identity)) for identity in zip(*columns, strict=True)]
