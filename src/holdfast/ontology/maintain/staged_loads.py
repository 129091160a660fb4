"""Objects that bulk loads have staged: listed, and removed when their load is dead.

No manifest names a staged object: a commit has a data file of its own. A load that is over, committed or not, removes
what it staged. A load that was killed leaves it behind; so does a task that outlives its driver. It is garbage when
nothing was added to the load for ``DEAD_NS`` by the store's own clock. A load that is slower than that finds its parts
missing and fails, without having written anything visible.
"""

from dataclasses import dataclass, field

from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.ontology.format import layout

DEAD_NS = 24 * 3600 * 10**9
"""How long after its last object a load is taken for alive."""


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
    """Remove what a load has staged, which is over; its keys."""
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
    """Remove what dead loads have left; its keys."""
    gone = [key for each in await dead_loads(store, age_ns=age_ns) for key in each.keys]
    await store.delete_many(gone)
    return gone
