"""Rows and intents, one at a time and as columns. Pure.

A row is an identity and its ``fields_json``. An intent is how an identity should be, with an optional expectation of
what it is now. Expectations are about the committed state that the commit is based on, never about other intents.

A ``Batch`` is many rows of one type as columns, from the caller's table to the data file; it is also a sequence of
rows. A ``Segment`` is the current state of many identities as columns. Batches and segments are compared without a
Python object per row. Identities are compared as one text (``joined``), which is different for different identities.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ontology.types.refs import TypeId

Identity = tuple[str, ...]
"""``(entity_key,)``, or ``(left_key, right_key, instance_key)``."""


class Current(NamedTuple):
    """The latest row of an identity."""

    commit_id: int
    digest: bytes
    retracted: bool = False
    other: bytes | None = None
    """The digest of the same fields in our spelling, if a plain writer has spelled them otherwise."""

    def has_fields(self, digest: bytes) -> bool:
        return digest in (self.digest, self.other)


@dataclass(frozen=True, slots=True)
class Absent:
    """Expect that the identity does not exist, or was retracted."""


@dataclass(frozen=True, slots=True)
class AtCommit:
    """Expect that the identity was last written by this commit."""

    commit_id: int


@dataclass(frozen=True, slots=True)
class Equal:
    """Expect that the identity has these fields."""

    digest: bytes


Expectation = Absent | AtCommit | Equal


@dataclass(frozen=True, slots=True)
class Intent:
    type_id: TypeId
    identity: Identity
    fields_json: str | None
    """Canonical; None to retract."""
    expect: Expectation | None = None


class Row(NamedTuple):
    identity: Identity
    fields_json: str
    retracted: bool = False


class Change(NamedTuple):
    """A row to write; ``fields_json`` is None for a retraction, which keeps the current fields."""

    identity: Identity
    fields_json: str | None


class Known(Protocol):
    """The current state of one type."""

    def get(self, identity: Identity, /) -> Current | None: ...


def digest(fields_json: str) -> bytes:
    return hashlib.blake2b(fields_json.encode(), digest_size=16).digest()


LARGE = 1_000
"""The least number of rows that are kept as columns."""
LONG_BYTES = 256
"""If the average ``fields_json`` is longer than this, a segment has digests instead."""


@dataclass(frozen=True, eq=False)
class Batch(Sequence[Row]):
    """The rows in the caller's order."""

    type_id: TypeId
    keys: tuple[pa.Array, ...]
    """The columns of the identity."""
    bodies: pa.Array
    """``fields_json`` of each row."""
    typed: dict[str, pa.Array] = field(default_factory=dict)
    """Typed columns that are already known."""

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return Row(tuple(column[index].as_py() for column in self.keys), self.bodies[index].as_py())

    def __iter__(self) -> Iterator[Row]:
        identities = zip(*(column.to_pylist() for column in self.keys), strict=True)
        return map(Row, identities, self.bodies.to_pylist())

    def intents(self) -> Iterator[Intent]:
        return (Intent(self.type_id, row.identity, row.fields_json) for row in self)

    def where(self, mask: "np.ndarray[Any, np.dtype[np.bool_]]") -> "Batch":
        if mask.all():
            return self
        chosen = pa.array(mask)
        return replace(
            self,
            keys=tuple(column.filter(chosen) for column in self.keys),
            bodies=self.bodies.filter(chosen),
            typed={name: column.filter(chosen) for name, column in self.typed.items()},
        )

    @cached_property
    def joined(self) -> pa.Array:
        return joined(self.keys)

    @cached_property
    def ascending(self) -> bool:
        """Whether each identity is greater than the one before. False for identities of several columns."""
        if len(self.keys) > 1:
            return False
        (keys,) = self.keys
        return bool(pc.all(pc.less(keys.slice(0, max(len(keys) - 1, 0)), keys.slice(1)), min_count=0).as_py())

    @cached_property
    def distinct(self) -> bool:
        return self.ascending or bool(pc.count_distinct(self.joined).as_py() == len(self))

    @cached_property
    def digests(self) -> pa.Array:
        return _digests(self.bodies)


@dataclass(frozen=True, eq=False)
class Segment:
    """The current state of distinct identities, as columns."""

    joined: pa.Array
    fields: pa.Array
    """``fields_json`` of each, or its digest."""
    digested: bool
    commits: "np.ndarray[Any, np.dtype[np.int64]]"
    retracted: "np.ndarray[Any, np.dtype[np.bool_]]"

    @classmethod
    def of(
        cls,
        keys: pa.Array,
        bodies: pa.Array,
        commits: "np.ndarray[Any, np.dtype[np.int64]]",
        retracted: "np.ndarray[Any, np.dtype[np.bool_]] | None" = None,
    ) -> "Segment":
        digested = bodies.nbytes > LONG_BYTES * len(bodies)
        gone = np.zeros(len(keys), np.bool_) if retracted is None else retracted
        return cls(keys, _digests(bodies) if digested else bodies, digested, commits, gone)

    @classmethod
    def committed(cls, batch: Batch, commit_id: int) -> "Segment":
        return cls.of(batch.joined, batch.bodies, np.full(len(batch), commit_id, np.int64))

    def with_digests(self) -> "Segment":
        return self if self.digested else replace(self, fields=_digests(self.fields), digested=True)

    def get(self, identity: Identity) -> Current | None:
        place = self._places.get(joined_text(identity))
        if place is None:
            return None
        fields = self.fields[place].as_py()
        known = fields if self.digested else digest(fields)
        return Current(int(self.commits[place]), known, bool(self.retracted[place]))

    @cached_property
    def _places(self) -> dict[str, int]:
        """An index for lookups of single identities; comparing a batch does not need it."""
        return dict(zip(self.joined.to_pylist(), range(len(self.joined)), strict=True))


def changed_rows(batch: Batch, segments: Iterable[Segment], rows: Mapping[Identity, Current]) -> Batch:
    """The rows of a batch that differ from the current state, of which the segments and ``rows`` are parts. Of an
    identity in several parts the latest commit counts.
    """
    commits, same = np.zeros(len(batch), np.int64), np.zeros(len(batch), np.bool_)
    for segment in segments:
        places = pc.index_in(batch.joined, value_set=segment.joined)
        found = places.is_valid().to_numpy(zero_copy_only=False)
        at = places.fill_null(0).to_numpy(zero_copy_only=False)
        if not found.any():
            continue
        newer = found & (segment.commits[at] >= commits)
        ours = batch.digests if segment.digested else batch.bodies
        equal = pc.equal(ours, segment.fields.take(places)).fill_null(False).to_numpy(zero_copy_only=False)
        commits = np.where(newer, segment.commits[at], commits)
        same = np.where(newer, equal & ~segment.retracted[at], same)
    if rows:
        for number, row in enumerate(batch):
            current = rows.get(row.identity)
            if current is not None and current.commit_id >= commits[number]:
                same[number] = not current.retracted and current.has_fields(digest(row.fields_json))
    return batch.where(~same)


def joined(keys: Sequence[pa.Array]) -> pa.Array:
    if len(keys) == 1:
        return keys[0]
    *lengthy, last = keys
    parts: list[pa.Array] = []
    for column in lengthy:
        parts += [pc.utf8_length(column).cast(pa.string()), column]
    return pc.binary_join_element_wise(*parts, last, ":")


def joined_text(identity: Identity) -> str:
    """The same of one identity."""
    *lengthy, last = identity
    return ":".join([*(f"{len(part)}:{part}" for part in lengthy), last])


def concatenated(segments: Sequence[Segment]) -> Segment:
    """One segment with everything in these. All of them have digests, or none."""
    return Segment(
        pa.concat_arrays([segment.joined for segment in segments]),
        pa.concat_arrays([segment.fields for segment in segments]),
        segments[0].digested,
        np.concatenate([segment.commits for segment in segments]),
        np.concatenate([segment.retracted for segment in segments]),
    )


def merged(segments: Sequence[Segment]) -> Segment:
    """One segment with the latest state of each identity."""
    whole = concatenated(segments)
    newest = np.argsort(-whole.commits, kind="stable")
    codes = whole.joined.take(pa.array(newest)).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    chosen = newest[np.unique(codes, return_index=True)[1]]
    places = pa.array(chosen)
    return Segment(
        whole.joined.take(places),
        whole.fields.take(places),
        whole.digested,
        whole.commits[chosen],
        whole.retracted[chosen],
    )


def split_batches(items: Iterable[Intent | Batch]) -> tuple[dict[TypeId, Batch], list[Intent]]:
    """The batches that can be compared as columns, and everything else as intents.

    A batch can if it is all there is for its type: of several intents for one identity the last one counts.
    """
    queued = list(items)
    counts = Counter(item.type_id for item in queued)
    batches: dict[TypeId, Batch] = {}
    intents: list[Intent] = []
    for item in queued:
        if isinstance(item, Intent):
            intents.append(item)
        elif counts[item.type_id] == 1 and item.distinct:
            batches[item.type_id] = item
        else:
            intents += item.intents()
    return batches, intents


def size(items: Iterable[Intent | Batch]) -> int:
    return sum(1 if isinstance(item, Intent) else len(item) for item in items)


def _digests(bodies: pa.Array) -> pa.Array:
    return pa.array(map(digest, bodies.to_pylist()), pa.binary(16), size=len(bodies))
