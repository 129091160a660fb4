"""Leftovers: objects with rows that no commit and no index names.

**Staged files** of bulk loads. A load removes its staged files when it ends. A load that was killed leaves them behind;
so may a task that runs longer than its driver. They are garbage if nothing was added to the load for ``DEAD_NS`` by the
store's clock. A load that is slower than that finds its files missing and fails without a visible effect.

**Erased payload.** A redaction rewrites every file on the chain. Snapshots that no index names, commit attempts that
lost, and staged files may still hold rows from before it. The redaction removes these too, but a writer that was slow
and then killed can leave one later. ``verify`` reports it, and ``holdfast onto erase --resume`` removes it. Nothing is
removed that could still be published: an index does not take a snapshot with rows that were redacted since, and an
attempt up to the head's number cannot become a commit.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.base.aio import blocking
from holdfast.base.clock import parse_iso
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import Ordered
from holdfast.ontology.format import layout
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.format.redactions import is_erased, redaction_of
from holdfast.ontology.types import names, refs
from holdfast.ontology.types.refs import Place, TypeId

# --- erased payload ---


@dataclass(frozen=True, slots=True)
class Leftover:
    key: str
    ordered: Ordered
    """The redaction whose payload it holds."""
    remove: tuple[str, ...]
    """The key, and those of objects that are useless without it."""


Orders = Mapping[TypeId, Sequence[Ordered]]


async def leftovers(store: Store, only: Ordered | None = None) -> list[Leftover]:
    """Unreferenced objects with payload of any redaction, or of one. Reads the objects of redacted types only."""
    chain = Chain(store)
    head = (await read_head(store)).place
    orders = await _orders(chain, head) if only is None else {only.redaction.type_id: [only]}
    if head is None or not orders:
        return []
    found = [each async for each in _snapshots(store, orders)]
    found += [each async for each in _attempts(chain, orders, head)]
    return found + [each async for each in _staged(chain, orders)]


async def remove(store: Store, found: Iterable[Leftover]) -> list[str]:
    """Delete them; returns the keys."""
    keys = sorted({key for each in found for key in each.remove})
    await store.delete_many(keys)
    return keys


async def _orders(chain: Chain, head: Place | None) -> Orders:
    """Every redaction that was ever ordered."""
    found: dict[TypeId, list[Ordered]] = defaultdict(list)
    place = (await chain.ledger(head)).redacted
    while place is not None:
        redaction = redaction_of(await chain.manifest(place))
        if redaction is not None:
            found[redaction.type_id].append(Ordered(place, redaction))
        place = await chain.previous_redaction(place)
    return found


async def _snapshots(store: Store, orders: Orders) -> AsyncIterator[Leftover]:
    """Snapshots that no index names. They are listed before indexes are read, so one published meanwhile is named."""
    keys = [key async for key in store.keys(layout.SNAPSHOTS)]
    for type_id, ordered in orders.items():
        spans = {key: span for key in keys if (span := snapshot_span(key, type_id)) is not None}
        named = {entry.path for entry in (await read_index(store, type_id)).entries} if spans else set()
        for key, (first, last) in spans.items():
            overlapping = [each for each in ordered if first <= each.redaction.last and each.redaction.first <= last]
            if key not in named and (found := await _payload(store, key, overlapping, by_commit=True)) is not None:
                yield Leftover(key, found, (key,))


async def _attempts(chain: Chain, orders: Orders, head: Place) -> AsyncIterator[Leftover]:
    """Commit attempts that are not on the chain, and whose number is not above the head's."""
    on_chain = {ref.path for ref in await chain.files(0, head, checkpoints=False)}
    folders: dict[str, list[str]] = defaultdict(list)
    async for key in chain.store.keys(layout.COMMITS):
        folder = layout.folder_of(key)
        if folder is not None:
            folders[folder].append(key)
    for folder, keys in folders.items():
        commit_id, attempt = layout.attempt_of_folder(folder)
        for type_id, ordered in orders.items():
            key = layout.data_key(commit_id, attempt, *type_id)
            if key in on_chain or key not in keys or commit_id > head.commit_id:
                continue
            earlier = [each for each in ordered if commit_id <= each.place.commit_id]
            if (found := await _payload(chain.store, key, earlier)) is not None:
                yield Leftover(key, found, tuple(keys))
                break


async def _staged(chain: Chain, orders: Orders) -> AsyncIterator[Leftover]:
    """Files that bulk loads staged before the redaction, by the store's clock. Their loads fail and can be repeated."""
    async for page in chain.store.list(layout.LOADS):
        for entry in page.entries:
            staged = layout.type_of_load_key(entry.key)
            ordered = orders.get(refs.type_id(*staged), ()) if staged is not None else ()
            later = [each for each in ordered if entry.modified_ns <= await _created_ns(chain, each.place)]
            if (found := await _payload(chain.store, entry.key, later)) is not None:
                yield Leftover(entry.key, found, (entry.key,))


async def _created_ns(chain: Chain, place: Place) -> int:
    return parse_iso((await chain.manifest(place)).created_at)


def snapshot_span(key: str, type_id: TypeId) -> tuple[int, int] | None:
    """The first and last commit of a snapshot, if it is one of this type, ours or a plain writer's."""
    span = layout.commits_of_snapshot(key)
    if span is None:
        return None
    ours = layout.snapshot_key(*type_id, *span, layout.attempt_of_snapshot(key))
    plain = f"{layout.snapshot_prefix(*type_id)}{span[0]}-{span[1]}.parquet"
    return span if key in (ours, plain) else None


async def _payload(store: Store, key: str, ordered: Sequence[Ordered], *, by_commit: bool = False) -> Ordered | None:
    """The redaction whose payload a file holds, if any. A file that cannot be read may hold any.

    With ``by_commit`` rows of commits after a redaction's span do not count: they were written again on purpose.
    """
    if not ordered:
        return None
    try:
        body = (await store.get(key)).body
    except NotFound:
        return None
    return await blocking(_payload_in, body, key, ordered, by_commit)


def _payload_in(body: bytes, key: str, ordered: Sequence[Ordered], by_commit: bool) -> Ordered | None:
    keys = names.key_columns(ordered[0].redaction.type_id.kind)
    try:
        table = rows.from_parquet(body, key=key, columns=("commit_id", *keys, "fields_json"))
        commits = table.column("commit_id").to_pylist() if by_commit else [0] * table.num_rows
        identities = zip(*(table.column(name).to_pylist() for name in keys), strict=True)
        texts = table.column("fields_json").to_pylist()
    except (Corrupt, KeyError):
        return ordered[0]
    latest = {each.redaction.identity: each for each in sorted(ordered, key=lambda each: each.redaction.last)}
    of_type = latest.get(None)
    for commit_id, identity, text in zip(commits, identities, texts, strict=True):
        for each in (of_type, latest.get(identity)):
            if each is not None and commit_id <= each.redaction.last and not is_erased(text):
                return each
    return None


# --- staged files ---

DEAD_NS = 24 * 3600 * 10**9
"""A load is dead if nothing was added to it for so long."""


@dataclass
class StagedLoad:
    load: str
    sizes: dict[str, int] = field(default_factory=dict)
    """Of its objects, by key."""
    modified_ns: int = 0
    """When the latest object was written, by the store's clock."""

    @property
    def keys(self) -> list[str]:
        return list(self.sizes)

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


async def staged_loads(store: Store) -> list[StagedLoad]:
    """Every load that has staged files, by name."""
    found: dict[str, StagedLoad] = {}
    async for page in store.list(layout.LOADS):
        for entry in page.entries:
            load = layout.load_of_key(entry.key) or ""
            each = found.setdefault(load, StagedLoad(load))
            each.sizes[entry.key] = entry.size
            each.modified_ns = max(each.modified_ns, entry.modified_ns)
    return [found[load] for load in sorted(found)]


async def forget(store: Store, load: str) -> list[str]:
    """Delete the staged files of a load that has ended; returns their keys."""
    keys = [key async for key in store.keys(layout.load_prefix(load))]
    await store.delete_many(keys)
    return keys


async def dead_loads(store: Store, *, age_ns: int = DEAD_NS) -> list[StagedLoad]:
    """Loads to which nothing was added for ``age_ns``. The current time is that of the head, by the store's clock."""
    try:
        now_ns = (await store.head(layout.HEAD)).modified_ns
    except NotFound:
        return []
    return [each for each in await staged_loads(store) if now_ns - each.modified_ns >= age_ns]


async def sweep(store: Store, *, age_ns: int = DEAD_NS) -> list[str]:
    """Delete the staged files of dead loads; returns their keys."""
    keys = [key for each in await dead_loads(store, age_ns=age_ns) for key in each.keys]
    await store.delete_many(keys)
    return keys
