"""Decides what a bulk load writes: the rows of one range of keys, compared with the current state of that range. Pure.

Rows that are equal count once. Of several rows for one identity the newest counts: the one with the greatest value of
the field ``latest_by``, or of the column ``_order`` that a change feed brings. Without either, or where two of the
newest differ, the load is refused. With ``latest_by`` a row that is older than the stored one, or than its retraction,
is left out. A row may ask to retract its identity (``_retracts``). An object that is there already with other fields is
a conflict, about which the policy decides as an import does. With ``instead``, what is current and not in the load is
retracted.

Nothing is raised here: what refuses a load is returned with the counts, because other ranges have something to say too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.codec import Document
from holdfast.base.errors import Conflict
from holdfast.base.record import Record
from holdfast.ontology.format.data.batch import digest, joined
from holdfast.ontology.types.codecs import to_json
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId

SHOWN = 3
RETRACTS, ORDER = "_retracts", "_order"
"""Columns that staged rows may have: whether a row retracts its identity, and its place in a sequence of changes."""

_GIVEN = "_given"
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Policy(StrEnum):
    """What to do with objects that exist with other fields."""

    ERROR = "error"
    SKIP = "skip"
    REPLACE = "replace"


@dataclass(frozen=True)
class Rules(Record):
    """How a load is decided."""

    WHAT = "the rules of a load"
    on_conflict: Policy = Policy.ERROR
    absent: bool = False
    """Refuse the load if any of its objects exists."""
    latest_by: str | None = None
    """Of several rows for one identity, stored ones included, the one with the greatest value of this field counts."""
    instead: bool = False
    """Retract objects that are not in the load."""
    retracts: bool = False
    """Staged rows have the column ``_retracts``."""


@dataclass(slots=True)
class Tally:
    """The counts of a load; and the reasons to refuse it, with a few examples."""

    rows: int = 0
    same: int = 0
    skipped: int = 0
    older: int = 0
    """Rows left out because the stored row is newer by ``latest_by``."""
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
    """Identities to be retracted, with the ``fields_json`` of their last row."""
    tally: Tally


def decide(type_id: TypeId, rows: pa.Table, state: pa.Table | None, rules: Rules) -> Decided:
    """``rows`` have the identity, ``fields_json`` and typed columns. ``state`` may have several of one identity."""
    keys = key_columns(type_id.kind)
    tally = Tally(rows=rows.num_rows)
    rows = _once(in_order(rows, keys).combine_chunks(), keys, rules, tally)
    current = None if state is None or not state.num_rows else _latest(state.combine_chunks(), keys)
    found = _compared(rows, current, keys, rules)
    retracts = _mask(rows.column(RETRACTS)) if rules.retracts else np.zeros(rows.num_rows, np.bool_)
    writes, there = ~retracts & ~found.older, found.there & ~retracts
    same, differ = there & found.same, writes & there & ~found.same
    refused = there if rules.absent else differ if rules.on_conflict is Policy.ERROR else np.zeros(len(there), np.bool_)
    if refused.any():
        tally.refused = int(refused.sum())
        tally.examples += _names(rows.filter(pa.array(refused)), keys)
    skipped = differ if rules.on_conflict is Policy.SKIP else np.zeros(len(there), np.bool_)
    retracted = retracts & found.there & ~found.older
    older = found.older & ~same & (~retracts | found.there)
    tally.older = int(older.sum())
    tally.same = int((same | (retracts & ~found.there)).sum())
    tally.skipped = int(skipped.sum())
    tally.replaced = int(differ.sum()) - tally.skipped
    tally.added = int((writes & ~found.there).sum())
    gone = [] if current is None else [_with_own(current, rows, found.places, retracted, keys)]
    if rules.instead and current is not None:
        gone.append(_missing(rows, current, keys))
    all_gone = pa.concat_tables([_empty(keys), *gone])
    tally.retracted = all_gone.num_rows
    return Decided(rows.filter(pa.array(writes & ~same & ~skipped)), all_gone, tally)


def in_order(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Sort by identity, keeping the order of rows of one identity."""
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys])
    return table.take(order)


def _once(rows: pa.Table, keys: Sequence[str], rules: Rules, tally: Tally) -> pa.Table:
    """The newest row of each identity; ambiguous ones are counted."""
    ranks = [] if rules.latest_by is None else [rules.latest_by]
    ranks += [ORDER] if ORDER in rows.column_names else []
    body = ["fields_json", *([RETRACTS] if rules.retracts else [])]
    if not _repeats(rows, keys).any():
        return rows
    if rules.latest_by is not None:  # a row without the field is the oldest
        rows = rows.append_column(_GIVEN, rows.column(rules.latest_by).is_valid())
        ranks.insert(0, _GIVEN)
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (*keys, *ranks, *body)])
    rows = rows.take(order).combine_chunks()
    rows = rows.filter(pa.array(~_repeats(rows, [*keys, *ranks, *body]))).combine_chunks()
    again = _repeats(rows, keys)
    last = np.append(~again[1:], True)
    unclear = last & _repeats(rows, [*keys, *ranks])
    if unclear.any():
        tally.twice = int(unclear.sum())
        tally.examples = _names(rows.filter(pa.array(unclear)), keys)
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
    return np.append(True, ~(equal | nulls | (_nan(before) & _nan(after))))


def _nan(column: pa.ChunkedArray | pa.Array) -> Mask:
    """Where a number is NaN, which counts as the greatest and equal to itself, as when rows are sorted."""
    is_float = pa.types.is_floating(column.type)
    return _mask(pc.is_nan(column).fill_null(False)) if is_float else np.zeros(len(column), np.bool_)


def _repeats(rows: pa.Table, keys: Sequence[str]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which rows, in the order of identities, have the same identity as the row before."""
    other = np.zeros(rows.num_rows, np.bool_)
    for name in keys:
        other |= _steps(rows.column(name))
    return ~other


def _latest(state: pa.Table, keys: Sequence[str]) -> pa.Table:
    order = pc.sort_indices(state, sort_keys=[(name, "ascending") for name in (*keys, "commit_id")])
    state = state.take(order).combine_chunks()
    return state.filter(pa.array(np.append(~_repeats(state, keys)[1:], True)))


@dataclass(frozen=True, slots=True)
class _Found:
    """For each row, the current state of its identity."""

    places: pa.Array
    """The position in the current state; null if the identity is not current."""
    there: Mask
    same: Mask
    """Its fields are those of the current row."""
    older: Mask


def _compared(rows: pa.Table, current: pa.Table | None, keys: Sequence[str], rules: Rules) -> _Found:
    none = np.zeros(rows.num_rows, np.bool_)
    if current is None or not rows.num_rows:
        return _Found(pa.nulls(rows.num_rows, pa.int32()), none, none, none)
    places = pc.index_in(_texts(rows, keys), value_set=_texts(current, keys))
    found = _mask(places.is_valid())
    if not found.any():
        return _Found(places, none, none, none)
    known = current.take(places.filter(places.is_valid()))
    live = ~_mask(known.column("retracted"))
    bodies = rows.column("fields_json").filter(pa.array(found)).to_pylist()
    ours = pa.array(map(digest, bodies), pa.binary(16), size=len(bodies))
    equal = _equal(ours, known.column("digest")) | _equal(ours, known.column("other"))
    there, same, older = none.copy(), none.copy(), none.copy()
    there[found] = live
    same[found] = live & equal
    if rules.latest_by is not None:
        own, stored = rows.column(rules.latest_by).filter(pa.array(found)), known.column("latest")
        older[found] = _mask(pc.if_else(own.is_valid(), pc.less(own, stored).fill_null(False), stored.is_valid()))
        older[found] |= _nan(stored) & ~_nan(own)
    return _Found(places, there, same, older)


def _mask(column: pa.ChunkedArray | pa.Array) -> Mask:
    found: Mask = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return found


def _equal(ours: pa.Array, theirs: pa.ChunkedArray) -> Any:
    return pc.equal(ours, theirs.combine_chunks()).fill_null(False).to_numpy(zero_copy_only=False)


def _with_own(current: pa.Table, rows: pa.Table, places: pa.Array, chosen: Mask, keys: Sequence[str]) -> pa.Table:
    """The retractions of these rows: the last fields of each object, overlaid with the row's own, so that ``latest_by``
    is kept."""
    if not chosen.any():
        return _empty(keys)
    picked = pa.array(chosen)
    known = current.take(places.filter(picked))
    own = rows.column("fields_json").filter(picked).to_pylist()
    bodies = [
        before if said == "{}" else to_json({**json.loads(before), **json.loads(said)})
        for before, said in zip(known.column("fields_json").to_pylist(), own, strict=True)
    ]
    return known.select(list(keys)).append_column("fields_json", pa.array(bodies, pa.string()))


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
