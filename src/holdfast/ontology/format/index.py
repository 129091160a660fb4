"""Index objects: which files have a type's rows. The chain decides; an index only saves reading it.

An index may lag, be missing, be ahead, name wrong files, or come from another life of the store or of the type. A list
of files is used if it folds to the digest that the chain's ``type_heads`` has for the type. Otherwise the chain itself
is read, so the rows do not depend on the index. The files under a snapshot cannot be folded one by one: its entry has
the type's head as of its last commit (``type_head``), and its key is derived from that head and the one before its
first commit (``sealed_attempt``). A list in which the key of each snapshot fits what was folded before it is as good as
the list of all files.

The specification's rules for a writer are kept: ``max_indexed_commit`` is the head that was considered, entries do not
overlap, and a gap is repaired from the chain before the watermark moves past it.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.base.record import UNLESS_EMPTY, Record
from holdfast.objects.store import Store, Version
from holdfast.ontology.format import layout
from holdfast.ontology.format.stats import FileStats, Stats
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, TypeHead, TypeId, fold


@dataclass(frozen=True)
class Entry(Record):
    """A file of one commit, or a snapshot of several."""

    WHAT = "an entry of an index"
    first: Annotated[int, Field(alias="min_commit_id")]
    last: Annotated[int, Field(alias="max_commit_id")]
    path: str
    head: Annotated[TypeHead | None, Field(alias="type_head", exclude_if=lambda head: head is None)] = None
    """Of a snapshot of ours: the type's head as of ``last``."""
    stats: Annotated[Stats, UNLESS_EMPTY] = field(default=None, compare=False)

    @property
    def snapshot(self) -> bool:
        return self.first < self.last

    def may_hold(self, ref: FileRef) -> bool:
        """Whether the rows of this file of a commit could be here."""
        return self.first <= ref.commit_id <= self.last and (self.snapshot or self.path == ref.path)


def _in_order(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.first))


@dataclass(frozen=True)
class Index(Record):
    WHAT = "an index"
    type_id: Annotated[TypeId, Field(exclude=True)]
    watermark: Annotated[int, Field(alias="max_indexed_commit")] = 0
    entries: Annotated[tuple[Entry, ...], AfterValidator(_in_order)] = ()
    version: Annotated[Version | None, Field(exclude=True)] = None

    def body(self, write_id: str) -> bytes:
        if (fault := well_formed(self)) is not None:
            raise Corrupt(f"{layout.index_key(*self.type_id)}: {fault}")
        return codec.encode(self.document(type_name=self.type_id.name, write_id=write_id))


def well_formed(index: Index) -> str | None:
    """The name of the invariant that is broken, or None."""
    for rule in (entries_ordered, entries_do_not_overlap, nothing_past_the_watermark):
        if not rule(index):
            return rule.__name__.replace("_", " ") + ": no"
    return None


def entries_ordered(index: Index) -> bool:
    """A file of one commit has equal bounds, a snapshot rising ones."""
    return all(1 <= entry.first <= entry.last for entry in index.entries)


def entries_do_not_overlap(index: Index) -> bool:
    spans = sorted((entry.first, entry.last) for entry in index.entries)
    return all(before[1] < after[0] for before, after in pairwise(spans))


def nothing_past_the_watermark(index: Index) -> bool:
    return all(entry.last <= index.watermark for entry in index.entries)


async def read_index(store: Store, type_id: TypeId) -> Index:
    """The index of a type; an empty one if there is none, or if the object is not an index."""
    key = layout.index_key(*type_id)
    found = await store.find(key)
    if found is None:
        return Index(type_id)
    try:
        index = parse_index(codec.decode(found.body, key=key), type_id, found.version)
    except Corrupt:
        return Index(type_id, version=found.version)
    return index if entries_ordered(index) and entries_do_not_overlap(index) else Index(type_id, version=found.version)


def parse_index(document: Document, type_id: TypeId, version: Version) -> Index:
    """An index from its document, whether its entries are valid or not."""
    return Index.parse({**document, "type_id": type_id, "version": version}, key=layout.index_key(*type_id))


def entries_of(files: Iterable[FileRef], stats: Mapping[str, FileStats]) -> tuple[Entry, ...]:
    return tuple(
        Entry(ref.commit_id, ref.commit_id, ref.path, stats=stats.get(ref.path))
        for ref in sorted(files, key=lambda ref: ref.commit_id)
    )


def sealed_attempt(random: str, type_id: TypeId, first: int, before: TypeHead, after: TypeHead) -> str:
    """The last part of a snapshot's key. It is unique, and fits only this span of this life of this type."""
    text = f"{type_id.label} {first} {list(before)} {list(after)}"
    return random + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def proved(entry: Entry, type_id: TypeId, before: TypeHead) -> bool:
    """Whether a snapshot's key fits its span and the files before it."""
    if entry.head is None or entry.head.commit_id != entry.last or before.commit_id >= entry.first:
        return False
    attempt = layout.attempt_of_snapshot(entry.path)
    sealed = sealed_attempt(attempt[:8], type_id, entry.first, before, entry.head)
    return entry.path == layout.snapshot_key(*type_id, entry.first, entry.last, sealed)


def folded(entries: Sequence[Entry], more: Iterable[FileRef], type_id: TypeId) -> TypeHead | None:
    """The type's head if these entries, and then these files, are all of its files; None if unknown."""
    head = UNTOUCHED
    for entry in entries:
        if entry.snapshot:
            if entry.head is None or not proved(entry, type_id, head):
                return None
            head = entry.head
        else:
            head = fold(head, [FileRef(entry.last, type_id, entry.path)])
    return fold(head, more)
