"""Indexes as they should be: entries that are proved stay, the rest comes from the chain.

Upkeep, repair, compaction and redactions write indexes through ``update_index``, over the version that was read.
``Corrupt`` where the chain itself cannot tell which files a type has: nothing is guessed.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.base.errors import Conflict, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Store, Written
from holdfast.ontology.chain.catalog import Catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.edits import TRIES
from holdfast.ontology.chain.resolve import believable, resolve_by_chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Entry, Index, entries_of, folded, read_index
from holdfast.ontology.types.refs import TypeId


async def brought_forward(chain: Chain, ledger: Ledger, index: Index) -> Index:
    """The index as it should be at the ledger's commit; an equal one if it is so already."""
    type_id, head = index.type_id, ledger.head_of(index.type_id)
    entries = believable(index, ledger, type_id)
    covered = entries[-1].last if entries else max(ledger.generation_of(type_id) - 1, 0)
    files = await chain.files(covered, ledger.place) if covered < head.commit_id else []
    more = [ref for ref in files if ref.type_id == type_id]
    if folded(entries, more, type_id) == head:
        return replace(index, watermark=ledger.commit_id, entries=(*entries, *entries_of(more, chain.stats)))
    resolved = await resolve_by_chain(chain, ledger, type_id)
    return replace(index, watermark=ledger.commit_id, entries=resolved.entries)


async def update_index(
    store: Store,
    ambient: Ambient,
    type_id: TypeId,
    change: Callable[[Index], Awaitable[Index | None]],
    known: Index | None = None,
) -> Index:
    """Write the index that ``change`` returns, or leave it if that is None. Returns the index as it is then.

    ``known`` is an index that was read before and need not be read again. ``Ambiguous`` if the write may still land.
    """
    for _ in range(TRIES):
        index = known if known is not None else await read_index(store, type_id)
        known = None
        after = await change(index)
        if after is None:
            return index
        mode = CREATE if index.version is None else IfMatch(index.version)
        outcome = await store.put(layout.index_key(*type_id), after.body(ambient.ids.write_id()), mode)
        if isinstance(outcome, Written):
            return replace(after, version=outcome.version)
    raise Conflict(f"{layout.index_key(*type_id)}: other writers keep changing it", remedy="try again")


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of one index, made or planned."""

    type_id: TypeId
    watermark: tuple[int, int]
    """Before and after."""
    added: Sequence[Entry]
    removed: Sequence[Entry]
    applied: bool

    @property
    def key(self) -> str:
        return layout.index_key(*self.type_id)


async def repair_indexes(
    store: Store, ambient: Ambient, *, apply: bool, types: Iterable[TypeId] | None = None
) -> list[Repair]:
    """Repair, or plan to repair, every index that is not as it should be. ``Corrupt`` for a broken chain.

    With ``apply`` and for all types, the schema objects are derived again too.
    """
    chain = Chain(store)
    ledger = await chain.ledger((await read_head(store)).place)
    if apply and types is None and ledger.schemas:
        await Catalog(store, ambient, "repair").sync(chain, ledger, repair=True)
    wanted = sorted({*ledger.heads, *ledger.schemas}) if types is None else types
    found = [await _repair(store, ambient, chain, type_id, apply=apply) for type_id in wanted]
    return [repair for repair in found if repair is not None]


async def _repair(store: Store, ambient: Ambient, chain: Chain, type_id: TypeId, *, apply: bool) -> Repair | None:
    repair: Repair | None = None

    async def change(index: Index) -> Index | None:
        nonlocal repair
        ledger = await chain.ledger((await read_head(store)).place)  # read after the index, so it is not older
        after = await brought_forward(chain, ledger, await _without_missing(store, index))
        if after == index and index.version is not None:
            repair = None
            return None
        added, removed = _difference(after.entries, index.entries), _difference(index.entries, after.entries)
        repair = Repair(type_id, (index.watermark, after.watermark), added, removed, applied=apply)
        return after if apply else None

    await update_index(store, ambient, type_id, change)
    return repair


def _difference(entries: Sequence[Entry], others: Sequence[Entry]) -> list[Entry]:
    """Entries for files that the others do not name. Statistics do not count."""
    named = {(entry.first, entry.last, entry.path) for entry in others}
    return [entry for entry in entries if (entry.first, entry.last, entry.path) not in named]


async def _without_missing(store: Store, index: Index) -> Index:
    """The index up to its first missing snapshot: what follows is proved only together with that snapshot."""
    kept: list[Entry] = []
    for entry in index.entries:
        if entry.snapshot:
            try:
                await store.head(entry.path)
            except NotFound:
                break
        kept.append(entry)
    return replace(index, entries=tuple(kept))
