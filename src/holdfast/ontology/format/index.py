"""Index objects: which files hold a type's rows. Advice: the chain is the truth, an index only saves reading it.

An index may lag, be missing, run ahead, name wrong files, or come from another life of the store or of the type. A list
of files is believed if it folds to the digest that the chain's ``type_heads`` has for the type; a list that does not,
and one that nothing on the chain can prove, gives way to the chain itself. So the same rows come out whatever an index
says. Files under a snapshot cannot be folded one by one: its entry carries the type's head as of its last commit
(``type_head``), and its key commits to that head and to the one before its first (``sealed_attempt``). A list in which
each snapshot's key fits what was folded so far is as good as the files it stands for; any other is not believed.

The specification's rules for a writer are kept: ``max_indexed_commit`` is the head that was considered, entries do not
overlap, and a gap is repaired from the chain before the watermark moves past it.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, HoldfastError
from holdfast.objects.store import Store, Version
from holdfast.ontology.format import layout
from holdfast.ontology.format.stats import FileStats, parse_stats
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, TypeHead, TypeId, fold


@dataclass(frozen=True, slots=True)
class Entry:
    """Files of one commit, or a snapshot of several."""

    first: int
    last: int
    path: str
    head: TypeHead | None = None
    """Of a snapshot of ours: the type's head as of ``last``."""
    stats: FileStats | None = field(default=None, compare=False)
    """Statistics only save work, so they do not count in comparisons of entries."""

    @property
    def snapshot(self) -> bool:
        return self.first < self.last

    def may_hold(self, ref: FileRef) -> bool:
        """Whether the rows of this file of a commit could be here."""
        return self.first <= ref.commit_id <= self.last and (self.snapshot or self.path == ref.path)

    def document(self) -> Document:
        document: Document = {"min_commit_id": self.first, "max_commit_id": self.last, "path": self.path}
        if self.head is not None:
            document["type_head"] = list(self.head)
        if self.stats is not None:
            document["stats"] = self.stats.document()
        return document


@dataclass(frozen=True, slots=True)
class Index:
    type_id: TypeId
    watermark: int = 0
    entries: tuple[Entry, ...] = ()
    version: Version | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, write_id: str) -> bytes:
        if (fault := well_formed(self)) is not None:
            raise Corrupt(f"{layout.index_key(*self.type_id)}: {fault}")
        return codec.encode(
            {
                **self.extra,
                "type_name": self.type_id.name,
                "max_indexed_commit": self.watermark,
                "entries": [entry.document() for entry in self.entries],
                "write_id": write_id,
            }
        )


def well_formed(index: Index) -> str | None:
    """The named invariants; what is broken, or None."""
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
    """The index as it is; an empty one where there is none, or where the object is not an index."""
    key = layout.index_key(*type_id)
    found = await store.find(key)
    if found is None:
        return Index(type_id)
    try:
        index = read_entries(codec.decode(found.body, key=key), type_id, found.version)
    except (HoldfastError, *codec.MALFORMED):
        return Index(type_id, version=found.version)
    return index if entries_ordered(index) and entries_do_not_overlap(index) else Index(type_id, version=found.version)


def read_entries(document: Document, type_id: TypeId, version: Version) -> Index:
    """The contents of a document, valid or not; raises if it is not an index document."""
    entries = tuple(sorted(map(entry_of, document["entries"]), key=lambda entry: entry.first))
    known = ("type_name", "max_indexed_commit", "entries", "write_id")
    extra = {name: value for name, value in document.items() if name not in known}
    return Index(type_id, int(document["max_indexed_commit"]), entries, version, extra)


def entry_of(document: Mapping[str, Any]) -> Entry:
    head = document.get("type_head")
    return Entry(
        int(document["min_commit_id"]),
        int(document["max_commit_id"]),
        str(document["path"]),
        TypeHead(int(head[0]), int(head[1]), str(head[2])) if head is not None else None,
        parse_stats(document.get("stats")),
    )


def entries_of(files: Iterable[FileRef], stats: Mapping[str, FileStats]) -> tuple[Entry, ...]:
    return tuple(
        Entry(ref.commit_id, ref.commit_id, ref.path, stats=stats.get(ref.path))
        for ref in sorted(files, key=lambda ref: ref.commit_id)
    )


def sealed_attempt(random: str, type_id: TypeId, first: int, before: TypeHead, after: TypeHead) -> str:
    """The last part of a snapshot's key: unique, and valid only for this span of this life of this type."""
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
    """What the type's head must be if these entries, and then these files, are all there is; None if unknown."""
    head = UNTOUCHED
    for entry in entries:
        if entry.snapshot:
            if entry.head is None or not proved(entry, type_id, head):
                return None
            head = entry.head
        else:
            head = fold(head, [FileRef(entry.last, type_id, entry.path)])
    return fold(head, more)
