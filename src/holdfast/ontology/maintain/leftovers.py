"""Leftovers: objects with rows that no history names. Staged files of bulk loads, and payload that was ordered to be
destroyed.

**Staged files.** No manifest names one: a commit has a data file of its own. A load that ends, committed or not,
removes what it staged. A load that was killed leaves it behind, and so does a task that outlives its driver. It is
garbage when nothing was added to the load for ``DEAD_NS`` by the store's clock. A load that is slower than that finds
its parts missing and fails without having written anything visible.

**Payload.** A redaction reaches every file on the chain. Beside them lie snapshots that no index names, attempts at
commits that lost, and staged files. All of these are garbage, and any of them may hold rows from before the redaction.
A writer that was slow and then killed may leave one after the redaction has looked. So it is looked for again:
``verify`` names it, the next compaction and ``holdfast onto erase --resume`` remove it. Nothing is removed that could
still be published: a snapshot with rows that were redacted since has no place in the index, and an attempt at or below
the head cannot become a commit.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.base.aio import blocking
from holdfast.base.clock import parse_iso
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.format.redactions import Redaction, is_erased, redaction_of
from holdfast.ontology.types import names, refs
from holdfast.ontology.types.refs import Place, TypeId


@dataclass(frozen=True, slots=True)
class Ordered:
    """A redaction, and the commit that ordered it."""

    redaction: Redaction
    place: Place


@dataclass(frozen=True, slots=True)
class Leftover:
    key: str
    ordered: Ordered
    remove: tuple[str, ...]
    """Keys that are removed with it."""


Orders = Mapping[TypeId, Sequence[Ordered]]


async def orders(store: Store, head: Place | None) -> Orders:
    """Every redaction that was ever ordered, by type."""
    found: dict[TypeId, list[Ordered]] = defaultdict(list)
    chain = Chain(store)
    place = (await chain.ledger(head)).redacted
    while place is not None:
        manifest = await chain.manifest(place)
        redaction = redaction_of(manifest)
        if redaction is not None:
            found[redaction.type_id].append(Ordered(redaction, place))
        place = (await chain.ledger_of(manifest.parent)).redacted
    return found


async def leftovers(store: Store, only: Ordered | None = None) -> list[Leftover]:
    """All leftovers, or those of one redaction. Reads only the data objects in question."""
    head = (await read_head(store)).place
    wanted = await orders(store, head) if only is None else {only.redaction.type_id: [only]}
    if head is None or not wanted:
        return []
    found = [each async for each in _snapshots(store, wanted)]
    found += [each async for each in _attempts(store, wanted, head)]
    return found + [each async for each in _loads(store, wanted)]


async def remove(store: Store, found: Iterable[Leftover]) -> list[str]:
    """Their keys, and those of what goes with them."""
    keys = sorted({key for each in found for key in each.remove})
    await store.delete_many(keys)
    return keys


async def snapshots_with_payload(store: Store, type_id: TypeId, keys: Iterable[str]) -> list[str]:
    """Those of a type, which no index names, that have payload they should not have."""
    ordered = (await orders(store, (await read_head(store)).place)).get(type_id, ())
    return [key for key in keys if await _snapshot_payload(store, key, type_id, ordered) is not None]


# --- where they are ---


async def _snapshots(store: Store, wanted: Orders) -> AsyncIterator[Leftover]:
    """Which no index names. The listing comes first, so that what was published since is named."""
    keys = [key async for key in store.keys(layout.SNAPSHOTS)]
    for type_id, ordered in wanted.items():
        own = [key for key in keys if snapshot_span(key, type_id) is not None]
        named = {entry.path for entry in (await read_index(store, type_id)).entries} if own else set()
        for key in own:
            ordered_for = await _snapshot_payload(store, key, type_id, ordered) if key not in named else None
            if ordered_for is not None:
                yield Leftover(key, ordered_for, (key,))


async def _snapshot_payload(store: Store, key: str, type_id: TypeId, ordered: Sequence[Ordered]) -> Ordered | None:
    first, last = snapshot_span(key, type_id) or (1, 0)
    meant = [each for each in ordered if first <= each.redaction.last and each.redaction.first <= last]
    return await _carries(store, key, meant, by_commit=True)


async def _attempts(store: Store, wanted: Orders, head: Place) -> AsyncIterator[Leftover]:
    """Which are not on the chain, and come too late for it."""
    kept = {ref.path for ref in await Chain(store).files(0, head, checkpoints=False)}
    folders: dict[str, list[str]] = defaultdict(list)
    async for key in store.keys(layout.COMMITS):
        folder = layout.folder_of(key)
        if folder is not None:
            folders[folder].append(key)
    for folder, keys in folders.items():
        number, mark = layout.attempt_of_folder(folder)
        for type_id, ordered in wanted.items():
            key = layout.data_key(number, mark, *type_id)
            if key in kept or key not in keys or number > head.commit_id:
                continue
            meant = [each for each in ordered if number <= each.place.commit_id]
            ordered_for = await _carries(store, key, meant)
            if ordered_for is not None:
                yield Leftover(key, ordered_for, tuple(keys))
                break


async def _loads(store: Store, wanted: Orders) -> AsyncIterator[Leftover]:
    """Staged by bulk loads before the redaction, by the store's own clock. A load that goes on fails, and is repeated;
    what is staged later is written again on purpose.
    """
    chain = Chain(store)
    async for page in store.list(layout.LOADS):
        for entry in page.entries:
            found = layout.type_of_load_key(entry.key)
            ordered = wanted.get(refs.type_id(*found), ()) if found is not None else ()
            meant = [each for each in ordered if entry.modified_ns <= await _ordered_ns(chain, each)]
            ordered_for = await _carries(store, entry.key, meant)
            if ordered_for is not None:
                yield Leftover(entry.key, ordered_for, (entry.key,))


async def _ordered_ns(chain: Chain, ordered: Ordered) -> int:
    return parse_iso((await chain.manifest(ordered.place)).created_at)


def snapshot_span(key: str, type_id: TypeId) -> tuple[int, int] | None:
    """The commits that a snapshot covers, if it is one of this type, ours or a plain writer's."""
    span = layout.commits_of_snapshot(key)
    if span is None:
        return None
    ours = layout.snapshot_key(*type_id, *span, layout.attempt_of_snapshot(key))
    plain = f"{layout.snapshot_prefix(*type_id)}{span[0]}-{span[1]}.parquet"
    return span if key in (ours, plain) else None


# --- what is in them ---


async def _carries(store: Store, key: str, meant: Sequence[Ordered], *, by_commit: bool = False) -> Ordered | None:
    """The first redaction whose payload the file has. One that cannot be read may have any.

    With ``by_commit`` the rows say when they were written: what was written again since may stay.
    """
    if not meant:
        return None
    try:
        body = (await store.get(key)).body
    except NotFound:
        return None
    return await blocking(_payload_in, body, key, meant, by_commit)


def _payload_in(body: bytes, key: str, meant: Sequence[Ordered], by_commit: bool) -> Ordered | None:
    keys = names.key_columns(meant[0].redaction.type_id.kind)
    try:
        table = rows.from_parquet(body, key=key, columns=("commit_id", *keys, "fields_json"))
        commits = table.column("commit_id").to_pylist() if by_commit else [0] * table.num_rows
        identities = zip(*(table.column(name).to_pylist() for name in keys), strict=True)
        texts = table.column("fields_json").to_pylist()
    except (Corrupt, KeyError):
        return meant[0]
    latest = {each.redaction.identity: each for each in sorted(meant, key=lambda each: each.redaction.last)}
    whole = latest.get(None)
    for commit_id, identity, text in zip(commits, identities, texts, strict=True):
        for each in (whole, latest.get(identity)):
            if each is not None and commit_id <= each.redaction.last and not is_erased(text):
                return each
    return None


DEAD_NS = 24 * 3600 * 10**9
"""How long after its last object a load counts as alive."""


@dataclass
class StagedLoad:
    load: str
    sizes: dict[str, int] = field(default_factory=dict)
    """Of its objects, by key."""
    modified_ns: int = 0
    """When its latest object was written, by the store's clock."""

    @property
    def keys(self) -> list[str]:
        return list(self.sizes)

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


async def staged_loads(store: Store) -> list[StagedLoad]:
    """Every load that has something staged, by name."""
    found: dict[str, StagedLoad] = {}
    async for page in store.list(layout.LOADS):
        for entry in page.entries:
            load = layout.load_of_key(entry.key) or ""
            each = found.setdefault(load, StagedLoad(load))
            each.sizes[entry.key] = entry.size
            each.modified_ns = max(each.modified_ns, entry.modified_ns)
    return [found[load] for load in sorted(found)]


async def forget(store: Store, load: str) -> list[str]:
    """Remove the staged files of a load that has ended; returns their keys."""
    keys = [key async for key in store.keys(layout.load_prefix(load))]
    await store.delete_many(keys)
    return keys


async def dead_loads(store: Store, *, age_ns: int = DEAD_NS) -> list[StagedLoad]:
    """Those to which nothing was added for so long. The time of now is that of the head, which is the store's own."""
    try:
        now_ns = (await store.head(layout.HEAD)).modified_ns
    except NotFound:
        return []
    return [each for each in await staged_loads(store) if now_ns - each.modified_ns >= age_ns]


async def sweep(store: Store, *, age_ns: int = DEAD_NS) -> list[str]:
    """Remove the staged files of dead loads; returns their keys."""
    gone = [key for each in await dead_loads(store, age_ns=age_ns) for key in each.keys]
    await store.delete_many(gone)
    return gone
