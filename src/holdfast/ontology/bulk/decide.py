"""Decides what a bulk load or an import writes: rows compared with the current state of their identities. Pure.

Equal rows count once. Of several rows for one identity the newest counts: the one with the greatest value of the field
``latest_by``, or of the column ``_order`` that a change feed has. Without either, or where two of the newest differ,
the load is refused. With ``latest_by`` a row that is older than the stored row, or than its retraction, is left out. A
row may retract its identity (``_retracts``). An object that exists with other fields is a conflict, and the policy
decides about it. With ``instead``, current objects that are not in the load are retracted.

Reasons to refuse a load are returned with the counts and not raised, because other ranges of keys may have more.
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
"""Columns that rows may have: whether a row retracts its identity, and its place in a sequence of changes."""
_HAS_RANK = "_has_rank"

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
    """The rows have the column ``_retracts``."""


@dataclass(slots=True)
class Tally:
    """The counts of a load, and the reasons to refuse it with a few examples."""

    rows: int = 0
    same: int = 0
    skipped: int = 0
    older: int = 0
    """Rows left out because the stored row is newer by ``latest_by``."""
    replaced: int = 0
    added: int = 0
    retracted: int = 0
    ambiguous: int = 0
    """Identities with several newest rows."""
    refused: int = 0
    """Rows that the policy refuses."""
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
        if self.ambiguous:
            raise Conflict(
                f"{type_id.name}: {self.ambiguous} identities are in the load more than once: {listed}",
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
    rows = _newest(in_order(rows, keys).combine_chunks(), keys, rules, tally)
    current = None if state is None or not state.num_rows else latest_rows(state, keys)
    found = _compared(rows, current, keys, rules)
    none = np.zeros(rows.num_rows, np.bool_)
    retracts = _mask(rows.column(RETRACTS)) if rules.retracts else none
    writes, exists = ~retracts & ~found.older, found.exists & ~retracts
    same, differ = exists & found.same, writes & exists & ~found.same
    refused = exists if rules.absent else differ if rules.on_conflict is Policy.ERROR else none
    if refused.any():
        tally.refused = int(refused.sum())
        tally.examples += _names(rows.filter(pa.array(refused)), keys)
    skipped = differ if rules.on_conflict is Policy.SKIP else none
    retracted = retracts & found.exists & ~found.older
    older = found.older & ~same & (~retracts | found.exists)
    tally.older = int(older.sum())
    tally.same = int((same | (retracts & ~found.exists)).sum())
    tally.skipped = int(skipped.sum())
    tally.replaced = int(differ.sum()) - tally.skipped
    tally.added = int((writes & ~found.exists).sum())
    gone = [_no_fields(keys)]
    if current is not None:
        gone.append(_retractions(current, rows, found.places, retracted, keys))
        if rules.instead:
            gone.append(_not_in(rows, current, keys))
    all_gone = pa.concat_tables(gone)
    tally.retracted = all_gone.num_rows
    chosen = writes & ~same & ~skipped
    return Decided(rows if chosen.all() else rows.filter(pa.array(chosen)), all_gone, tally)


def in_order(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Sort by identity. Rows of one identity keep their order."""
    if _ascending(table, keys):
        return table
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys]))


def _ascending(table: pa.Table, columns: Sequence[str]) -> bool:
    """Whether rows are known to be in the order of these columns: comparing takes a tenth of the time of sorting."""
    equal = pa.scalar(True)
    for name in columns:
        column = table.column(name)
        if column.null_count or pa.types.is_floating(column.type):
            return False  # nulls and NaN have their place in sorting, and compare with nothing
        before, after = column.slice(0, max(len(column) - 1, 0)), column.slice(1)
        if pc.any(pc.and_(equal, pc.greater(before, after))).as_py():
            return False
        equal = pc.and_(equal, pc.equal(before, after))
    return True


def latest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The row of the latest commit of each identity, in the order of identities; of one commit the last row."""
    rows = in_order(rows, [*keys, "commit_id"]).combine_chunks()
    return rows.filter(pa.array(np.append(~_repeats(rows, keys)[1:], True)[: rows.num_rows]))


def _newest(rows: pa.Table, keys: Sequence[str], rules: Rules, tally: Tally) -> pa.Table:
    """The newest row of each identity. Identities with several newest rows are counted."""
    if not _repeats(rows, keys).any():
        return rows
    ranks = [] if rules.latest_by is None else [rules.latest_by]
    ranks += [ORDER] if ORDER in rows.column_names else []
    if rules.latest_by is not None:  # a row without the field is the oldest
        rows = rows.append_column(_HAS_RANK, rows.column(rules.latest_by).is_valid())
        ranks.insert(0, _HAS_RANK)
    ranked = [*keys, *ranks]
    content = [*ranked, "fields_json", *([RETRACTS] if rules.retracts else [])]
    rows = in_order(rows, content).combine_chunks()
    rows = rows.filter(pa.array(~_repeats(rows, content))).combine_chunks()
    last = np.append(~_repeats(rows, keys)[1:], True)
    ambiguous = last & _repeats(rows, ranked)
    if ambiguous.any():
        tally.ambiguous = int(ambiguous.sum())
        tally.examples = _names(rows.filter(pa.array(ambiguous)), keys)
    return rows.filter(pa.array(last))


def _repeats(rows: pa.Table, columns: Sequence[str]) -> Mask:
    """Which rows have the same values in these columns as the row before."""
    changed = np.zeros(rows.num_rows, np.bool_)
    for name in columns:
        changed |= _changes(rows.column(name))
    return ~changed


def _changes(column: pa.ChunkedArray) -> Mask:
    """Where a value differs from the one before it. Nulls are equal to each other, and so are NaNs."""
    array = column.combine_chunks()
    count = len(array)
    if count == 0:
        return np.zeros(0, np.bool_)
    before, after = array.slice(0, count - 1), array.slice(1)
    equal = _mask(pc.equal(before, after).fill_null(False))
    nulls = _mask(pc.and_(before.is_null(), after.is_null()))
    return np.append(True, ~(equal | nulls | (_nan(before) & _nan(after))))


def _nan(column: pa.ChunkedArray | pa.Array) -> Mask:
    """Where a number is NaN, which counts as the greatest number and equals itself, as in sorting."""
    is_float = pa.types.is_floating(column.type)
    return _mask(pc.is_nan(column).fill_null(False)) if is_float else np.zeros(len(column), np.bool_)


@dataclass(frozen=True, slots=True)
class _Compared:
    """For each row, the current state of its identity."""

    places: pa.Array
    """The position in the current state; null if there is none."""
    exists: Mask
    same: Mask
    """Its fields are those of the current row."""
    older: Mask


def _compared(rows: pa.Table, current: pa.Table | None, keys: Sequence[str], rules: Rules) -> _Compared:
    none = np.zeros(rows.num_rows, np.bool_)
    if current is None or not rows.num_rows:
        return _Compared(pa.nulls(rows.num_rows, pa.int32()), none, none, none)
    places = pc.index_in(identities(rows, keys), value_set=identities(current, keys))
    found = _mask(places.is_valid())
    if not found.any():
        return _Compared(places, none, none, none)
    stored = current.take(places.filter(places.is_valid()))
    live = ~_mask(stored.column("retracted"))
    bodies = rows.column("fields_json").filter(pa.array(found)).to_pylist()
    digests = pa.array(map(digest, bodies), pa.binary(16), size=len(bodies))
    exists, same, older = none.copy(), none.copy(), none.copy()
    exists[found] = live
    same[found] = live & (_equal(digests, stored.column("digest")) | _equal(digests, stored.column("other")))
    if rules.latest_by is not None:
        own, theirs = rows.column(rules.latest_by).filter(pa.array(found)), stored.column("latest")
        older[found] = _mask(pc.if_else(own.is_valid(), pc.less(own, theirs).fill_null(False), theirs.is_valid()))
        older[found] |= _nan(theirs) & ~_nan(own)
    return _Compared(places, exists, same, older)


def _mask(column: pa.ChunkedArray | pa.Array) -> Mask:
    found: Mask = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return found


def _equal(digests: pa.Array, stored: pa.ChunkedArray) -> Mask:
    return _mask(pc.equal(digests, stored.combine_chunks()).fill_null(False))


def _retractions(current: pa.Table, rows: pa.Table, places: pa.Array, chosen: Mask, keys: Sequence[str]) -> pa.Table:
    """The retractions by these rows: the last fields of each object, overlaid with those of the row, so that its value
    of ``latest_by`` is kept."""
    if not chosen.any():
        return _no_fields(keys)
    picked = pa.array(chosen)
    stored = current.take(places.filter(picked))
    own = rows.column("fields_json").filter(picked).to_pylist()
    bodies = [
        before if after == "{}" else to_json({**json.loads(before), **json.loads(after)})
        for before, after in zip(stored.column("fields_json").to_pylist(), own, strict=True)
    ]
    return stored.select(list(keys)).append_column("fields_json", pa.array(bodies, pa.string()))


def _not_in(rows: pa.Table, current: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The current objects that none of the rows is about."""
    listed = pc.is_in(identities(current, keys), value_set=identities(rows, keys))
    wanted = pc.and_(pc.invert(listed), pc.invert(current.column("retracted").combine_chunks()))
    return current.filter(wanted).select([*keys, "fields_json"])


def identities(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """The identity of each row as one value."""
    return joined([table.column(name).combine_chunks() for name in keys])


def _no_fields(keys: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in (*keys, "fields_json")})


def _names(rows: pa.Table, keys: Sequence[str]) -> list[str]:
    columns = [rows.slice(0, SHOWN).column(name).to_pylist() for name in keys]
    return ["/".join(filter(None, identity)) for identity in zip(*columns, strict=True)]
