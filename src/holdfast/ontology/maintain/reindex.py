"""Computes an index as it should be: proved entries stay, the rest comes from the chain. Also repairs all types at
once.

Used by upkeep, by repair and by compaction, so that there is one answer to the question. Writes are if-match on the
version that was read. ``Corrupt`` where the chain itself cannot say which files a type has: nothing is guessed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast.base.errors import Conflict, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, IfMatch, Lost, Store
from holdfast.ontology.chain.catalog import Catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.resolve import believable, resolve_by_chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Entry, Index, entries_of, folded, read_index
from holdfast.ontology.types.refs import TypeId

TRIES = 8


async def brought_forward(chain: Chain, ledger: Ledger, index: Index) -> Index:
    """The index as it should be at ``ledger``; the same if it is so already."""
    type_id, head = index.type_id, ledger.head_of(index.type_id)
    entries = believable(index, ledger, type_id)
    covered = entries[-1].last if entries else max(ledger.generation_of(type_id) - 1, 0)
    files = await chain.files(covered, ledger.place) if covered < head.commit_id else []
    more = [ref for ref in files if ref.type_id == type_id]
    if folded(entries, more, type_id) == head:
        return replace(index, watermark=ledger.commit_id, entries=(*entries, *entries_of(more, chain.stats)))
    resolved = await resolve_by_chain(chain, ledger, type_id)
    return replace(index, watermark=ledger.commit_id, entries=resolved.entries)


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
    """Every index that is not as it should be; with ``apply``, it is afterwards. ``Corrupt`` for a broken chain.

    With ``apply`` and for all types, the schema objects are as they should be afterwards, too.
    """
    chain = Chain(store)
    ledger = await chain.ledger((await read_head(store)).place)
    if apply and types is None and ledger.schemas:
        await Catalog(store, ambient, "repair").sync(chain, ledger, repair=True)
    wanted = sorted({*ledger.heads, *ledger.schemas}) if types is None else types
    found = [await _repair(store, ambient, chain, type_id, apply=apply) for type_id in wanted]
    return [repair for repair in found if repair is not None]


async def _repair(store: Store, ambient: Ambient, chain: Chain, type_id: TypeId, *, apply: bool) -> Repair | None:
    for _ in range(TRIES):
        index = await read_index(store, type_id)
        ledger = await chain.ledger((await read_head(store)).place)  # after the index, so that it knows no less
        after = await brought_forward(chain, ledger, await without_missing(store, index))
        if after == index and index.version is not None:
            return None
        repair = Repair(
            type_id,
            (index.watermark, after.watermark),
            _without(after.entries, index.entries),
            _without(index.entries, after.entries),
            applied=apply,
        )
        if not apply or await write_index(store, ambient, after):
            return repair
    raise Conflict(f"{layout.index_key(*type_id)}: others keep writing it")


def _without(entries: Sequence[Entry], others: Sequence[Entry]) -> list[Entry]:
    """Those that name another file than the others do; statistics do not count."""
    named = {(entry.first, entry.last, entry.path) for entry in others}
    return [entry for entry in entries if (entry.first, entry.last, entry.path) not in named]


async def write_index(store: Store, ambient: Ambient, index: Index) -> bool:
    """Over the version that it was read with; False if another writer was faster."""
    mode = CREATE if index.version is None else IfMatch(index.version)
    body = index.body(ambient.ids.write_id())
    return not isinstance(await store.put(layout.index_key(*index.type_id), body, mode), Lost)


async def without_missing(store: Store, index: Index) -> Index:
    """The index up to its first snapshot that is not there. What follows is proved only together with it."""
    kept: list[Entry] = []
    for entry in index.entries:
        if entry.snapshot:
            try:
                await store.head(entry.path)
            except NotFound:
                break
        kept.append(entry)
    return replace(index, entries=tuple(kept))
