"""Which files hold a type's rows: those of the index if the chain proves them, else those that the chain lists.

A list of files is used if it folds to the digest that the chain's ``type_heads`` has for the type. Otherwise, and where
nothing on the chain can prove it, the manifests are read. So the rows are the same whatever an index says.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.index import Entry, Index, entries_of, folded, read_index
from holdfast.ontology.types.errors import SnapshotGone
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, Place, TypeId, fold

T = TypeVar("T")

TRIES = 3
"""How often a reader reads the index, if a snapshot that it names was deleted each time."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The files that hold a type's rows up to ``upper``; a snapshot may hold more."""

    type_id: TypeId
    entries: tuple[Entry, ...]
    upper: int
    generation: int
    by_index: bool
    """Whether the index was used."""

    def files(self, lower: int = 0, upper: int | None = None) -> list[FileRef]:
        """Those with commits after ``lower``, up to ``upper``. They may have rows of other commits too."""
        top = self.upper if upper is None else min(upper, self.upper)
        return [
            FileRef(entry.last, self.type_id, entry.path)
            for entry in self.entries
            if entry.last > lower and entry.first <= top
        ]


async def resolve(store: Store, chain: Chain, ledger: Ledger, type_id: TypeId, index: Index | None = None) -> Resolved:
    """The files of a type as of ``ledger``, which is on the chain; ``index`` if it was read already."""
    head, place, generation = ledger.head_of(type_id), ledger.place, ledger.generation_of(type_id)
    if head.files == 0:
        return Resolved(type_id, (), ledger.commit_id, generation, by_index=True)
    index = index if index is not None else await read_index(store, type_id)
    entries = believable(index, ledger, type_id)
    if entries:
        covered = min(entries[-1].last, head.commit_id)
        more = await _between(chain, covered, place, type_id, checkpoints=True) if covered < head.commit_id else []
        if folded(entries, more, type_id) == head:
            entries = (*entries, *entries_of(more, chain.stats))
            return Resolved(type_id, entries, ledger.commit_id, generation, by_index=True)
    return await resolve_by_chain(chain, ledger, type_id)


async def with_files(
    store: Store,
    chain: Chain,
    ledger: Ledger,
    type_id: TypeId,
    use: Callable[[Resolved], Awaitable[T]],
    fence: RedactionFence,
) -> T:
    """Call ``use`` with a type's files, and again if a snapshot was deleted meanwhile: the rows are the same.

    ``fence`` is that of the head that is read; ``ledger`` may be of an earlier commit.
    """
    for _ in range(TRIES):
        resolved = await resolve(store, chain, ledger, type_id)
        fence.check_all(resolved.entries)
        try:
            return await use(resolved)
        except SnapshotGone:
            continue  # another one covers it by now
    resolved = await resolve_by_chain(chain, ledger, type_id)
    fence.check_all(resolved.entries)
    return await use(resolved)


async def resolve_by_chain(chain: Chain, ledger: Ledger, type_id: TypeId) -> Resolved:
    """The files of a type from the chain alone."""
    head, place, generation = ledger.head_of(type_id), ledger.place, ledger.generation_of(type_id)
    lower = max(generation - 1, 0)
    files = await _between(chain, lower, place, type_id, checkpoints=True)
    if fold(UNTOUCHED, files) != head:
        files = await _between(chain, lower, place, type_id, checkpoints=False)
    if fold(UNTOUCHED, files) != head:
        raise Corrupt(f"{type_id.label}: the manifests up to commit {ledger.commit_id} do not agree on its files")
    return Resolved(type_id, entries_of(files, chain.stats), ledger.commit_id, generation, by_index=False)


def believable(index: Index, ledger: Ledger, type_id: TypeId) -> tuple[Entry, ...]:
    """The entries of the type's present life that are not after the ledger. They are not proved yet."""
    generation = ledger.generation_of(type_id)
    return tuple(entry for entry in index.entries if entry.first >= generation and entry.last <= ledger.commit_id)


async def _between(
    chain: Chain, lower: int, upper: Place | None, type_id: TypeId, *, checkpoints: bool
) -> list[FileRef]:
    return [ref for ref in await chain.files(lower, upper, checkpoints=checkpoints) if ref.type_id == type_id]
