"""Rows and intents, one at a time and as columns. Pure.

A row is an identity and its ``fields_json``; an intent is how an identity should be, with what it is expected to be
now. An expectation is about the committed state that the commit rests on, never about other intents.

A ``Batch`` is many rows of one type as columns, from the caller's table to the data file; it is also a sequence of
rows. A ``Segment`` is the current state of many identities as columns. They are compared without a Python object per
row. Identities are compared as one text; for relations it contains the lengths of the parts, so that no two identities
have the same text.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
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
    """The digest of the same fields in our spelling, where a plain writer has another."""

    def says(self, wanted: bytes) -> bool:
        return wanted in (self.digest, self.other)


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
    """A row to be written; ``fields_json`` is None where a retraction must keep what is current."""

    identity: Identity
    fields_json: str | None


class Known(Protocol):
    """The current state of one type."""

    def get(self, identity: Identity, /) -> Current | None: ...


def digest(fields_json: str) -> bytes:
    return hashlib.blake2b(fields_json.encode(), digest_size=16).digest()


LARGE = 1_000
"""From this many rows on they are kept as columns."""
LONG_BYTES = 256
"""Where rows are longer than this, a segment keeps digests in place of their fields."""


@dataclass(frozen=True, eq=False)
class Batch(Sequence[Row]):
    """The rows in the order in which they were given."""

    type_id: TypeId
    keys: tuple[pa.Array, ...]
    """The columns of the identity."""
    bodies: pa.Array
    """``fields_json`` of each."""
    typed: dict[str, pa.Array] = field(default_factory=dict)
    """Typed columns that need not be read from ``bodies``."""

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
        """Whether each identity is greater than the one before. False where it has several columns."""
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
    """The current state of many identities, each once, as columns."""

    joined: pa.Array
    marks: pa.Array
    """Their fields as text, or digests of them."""
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

    def short(self) -> "Segment":
        """With digests in any case."""
        return self if self.digested else replace(self, marks=_digests(self.marks), digested=True)

    def get(self, identity: Identity) -> Current | None:
        place = self._places.get(joined_text(identity))
        if place is None:
            return None
        mark = self.marks[place].as_py()
        return Current(int(self.commits[place]), mark if self.digested else digest(mark), bool(self.retracted[place]))

    @cached_property
    def _places(self) -> dict[str, int]:
        """An index for lookups of single identities; comparing a batch does not need it."""
        return dict(zip(self.joined.to_pylist(), range(len(self.joined)), strict=True))


class Comparison:
    """Compare a batch with the current state: which of its rows would change anything. The latest commit decides."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._commits = np.zeros(len(batch), np.int64)
        self._same = np.zeros(len(batch), np.bool_)
        self._live = np.zeros(len(batch), np.bool_)

    def with_segment(self, segment: Segment) -> None:
        places = pc.index_in(self._batch.joined, value_set=segment.joined)
        found = places.is_valid().to_numpy(zero_copy_only=False)
        if not found.any():
            return
        at = places.fill_null(0).to_numpy(zero_copy_only=False)
        ours = self._batch.digests if segment.digested else self._batch.bodies
        same = pc.equal(ours, segment.marks.take(places)).fill_null(False).to_numpy(zero_copy_only=False)
        self._take(found, segment.commits[at], same & ~segment.retracted[at], ~segment.retracted[at])

    def with_rows(self, rows: dict[Identity, Current]) -> None:
        if not rows:
            return
        count = len(self._batch)
        commits, same, live = np.zeros(count, np.int64), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        for number, row in enumerate(self._batch):
            current = rows.get(row.identity)
            if current is not None:
                commits[number] = current.commit_id
                live[number] = not current.retracted
                same[number] = not current.retracted and current.says(digest(row.fields_json))
        self._take(commits > 0, commits, same, live)

    def changed(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        return ~self._same

    def there(self) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which identities exist, with whatever fields."""
        return self._live

    def _take(
        self,
        found: "np.ndarray[Any, np.dtype[np.bool_]]",
        commits: "np.ndarray[Any, np.dtype[np.int64]]",
        same: "np.ndarray[Any, np.dtype[np.bool_]]",
        live: "np.ndarray[Any, np.dtype[np.bool_]]",
    ) -> None:
        newer = found & (commits >= self._commits)
        self._commits = np.where(newer, commits, self._commits)
        self._same = np.where(newer, same, self._same)
        self._live = np.where(newer, live, self._live)


def joined(keys: Sequence[pa.Array]) -> pa.Array:
    if len(keys) == 1:
        return keys[0]
    *lengthy, last = keys
    parts: list[pa.Array] = []
    for column in lengthy:
        parts += [pc.utf8_length(column).cast(pa.string()), column]
    return pc.binary_join_element_wise(*parts, last, ":")


def joined_text(identity: Identity) -> str:
    """As ``joined`` has it."""
    *lengthy, last = identity
    return ":".join([*(f"{len(part)}:{part}" for part in lengthy), last])


def merged(segments: Sequence[Segment]) -> Segment:
    """All of them in one, the latest of each identity; they are alike in what they keep of the fields."""
    commits = np.concatenate([segment.commits for segment in segments])
    newest = np.argsort(-commits, kind="stable")
    keys = pa.concat_arrays([segment.joined for segment in segments]).take(pa.array(newest))
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    chosen = newest[np.unique(codes, return_index=True)[1]]
    take = pa.array(chosen)
    return Segment(
        pa.concat_arrays([segment.joined for segment in segments]).take(take),
        pa.concat_arrays([segment.marks for segment in segments]).take(take),
        segments[0].digested,
        commits[chosen],
        np.concatenate([segment.retracted for segment in segments])[chosen],
    )


def sorted_out(items: Iterable[Intent | Batch], *, columns: bool) -> tuple[dict[TypeId, Batch], list[Intent]]:
    """Batches that can stay columns, and everything else as intents.

    A batch stays one if it is all there is for its type: intents for one identity are kept apart row by row.
    """
    queued = list(items)
    count: dict[TypeId, int] = {}
    for item in queued:
        count[item.type_id] = count.get(item.type_id, 0) + 1
    batches: dict[TypeId, Batch] = {}
    intents: list[Intent] = []
    for item in queued:
        if isinstance(item, Intent):
            intents.append(item)
        elif columns and count[item.type_id] == 1 and item.distinct:
            batches[item.type_id] = item
        else:
            intents += item.intents()
    return batches, intents


def size(items: Iterable[Intent | Batch]) -> int:
    return sum(1 if isinstance(item, Intent) else len(item) for item in items)


def _digests(bodies: pa.Array) -> pa.Array:
    return pa.array(map(digest, bodies.to_pylist()), pa.binary(16), size=len(bodies))
