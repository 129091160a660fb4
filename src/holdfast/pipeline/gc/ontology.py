"""Garbage of the ontology: superseded snapshots, attempts at commits that lost, and staged files of dead loads
(corrections 20 and 21).

A file that a manifest on the chain refers to is never touched, nor is an attempt at a future commit: its writer may
only be slow. The listing comes first, then the head: an attempt that was listed and is not on the chain of a head that
has reached its number never will be. A number with one attempt needs no check, because that one is on the chain. So the
cost is the listing, and a few manifests for each number with several attempts.
"""

from collections.abc import AsyncIterator

from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.maintain.compact import superseded
from holdfast.ontology.maintain.leftovers import DEAD_NS, staged_loads
from holdfast.ontology.types.refs import Place, TypeId, type_id
from holdfast.pipeline.gc.sweep import Sweep

SNAPSHOT = "other snapshots have taken its place, or it was never published"
LOST = "an attempt at a commit that another made"
LOAD = "staged by a load to which nothing was added for a day"
ALIVE = "staged by a load that may be under way"
UNKNOWN = "the chain cannot be followed there"
EVERYTHING = "all"
_SINGULAR = {"entities": "entity", "relations": "relation"}


async def shards(store: Store) -> list[str]:
    """One part, because listing is most of the work."""
    for prefix in (layout.COMMITS, layout.LOADS):
        async for page in store.list(prefix, delimiter=True):
            if page.folders or page.entries:
                return [EVERYTHING]
            break
    return []


async def sweep(_: str, out: Sweep) -> None:
    await _snapshots(out.store, out)
    await _attempts(out.store, out)
    await _loads(out.store, out)


async def _snapshots(store: Store, out: Sweep) -> None:
    modified: dict[str, int] = {}
    sizes: dict[str, int] = {}
    async for page in store.list(layout.SNAPSHOTS):
        modified |= {entry.key: entry.modified_ns for entry in page.entries}
        sizes |= {entry.key: entry.size for entry in page.entries}
    out.looked(len(modified))
    if not modified:
        return
    async for found in _types(store):
        entries = (await read_index(store, found)).entries  # after the listing, so nothing is missed
        for key in superseded(found, entries, modified, out.ask.now_ns):
            if not await out.remove(key, sizes[key], SNAPSHOT):
                return


async def _types(store: Store) -> AsyncIterator[TypeId]:
    async for key in store.keys(layout.INDICES):
        folder, _, name = key.removeprefix(layout.INDICES).partition("/")
        if folder in _SINGULAR and name.endswith(".json"):
            yield type_id(_SINGULAR[folder], name.removesuffix(".json"))


async def _attempts(store: Store, out: Sweep) -> None:
    rivals = [group async for group in _rivals(store, out)]
    if not rivals:
        return
    head = (await read_head(store)).place
    chain = Chain(store)
    for number, folders in rivals:
        if head is None or number > head.commit_id:
            continue
        try:
            places = {folder: Place(number, f"{folder}manifest.json") for folder in folders}
            on_chain = {folder for folder, place in places.items() if await chain.contains(head, place)}
        except (Corrupt, Incompatible, NotFound):
            out.keep(UNKNOWN, folders[0])
            continue
        if not on_chain:
            out.keep(UNKNOWN, folders[0])
            continue
        for folder in folders:
            if folder not in on_chain and not await _remove_folder(store, folder, out):
                return


async def _rivals(store: Store, out: Sweep) -> AsyncIterator[tuple[int, list[str]]]:
    """Numbers with more than one attempt. All attempts at one number are adjacent in a listing."""
    number, folders = 0, list[str]()
    async for page in store.list(layout.COMMITS, delimiter=True):
        for folder in page.folders:
            out.looked()
            found = layout.commit_of_folder(folder)
            if found is None:
                continue
            if found != number and len(folders) > 1:
                yield number, folders
            number, folders = found, [*(folders if found == number else ()), folder]
    if len(folders) > 1:
        yield number, folders


async def _remove_folder(store: Store, folder: str, out: Sweep) -> bool:
    async for page in store.list(folder):
        for entry in page.entries:
            if not await out.remove(entry.key, entry.size, LOST):
                return False
    return True


async def _loads(store: Store, out: Sweep) -> None:
    """No chain refers to staged files of a load. A load that is still running has added a file recently."""
    staged = await staged_loads(store)
    out.looked(sum(len(each.keys) for each in staged))
    for each in staged:
        if out.ask.now_ns - each.modified_ns < DEAD_NS:
            out.keep(ALIVE, layout.load_prefix(each.load))
            continue
        for key, size in each.sizes.items():
            if not await out.remove(key, size, LOAD):
                return
