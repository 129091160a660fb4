"""What collectors gathered, and marks of collectors that are gone: derived objects that nobody needs any more.

A gathering stands in for the references by time of its batches until the reconciler has written these. It goes once
each of its batches has its reference, or has expired, and it is older than anybody looks back who follows gatherings.
Whoever has listed it and finds it gone has listed the references too, or will: they were there long before. Its name
is its own, so one that a paused collector writes late changes nothing, and goes the next time.

A mark that was not written for as long belongs to no collector at work, and no query collector waits for it (``heard``
does not read marks so old). If its collector comes back after all, it writes it anew.
"""

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.base.ids import Ambient
from holdfast.ingest import layout
from holdfast.ingest.expired import find_expired
from holdfast.ingest.gathering import manifests_in
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.gc.options import DAY_NS, Ask
from holdfast.pipeline.gc.record import Sweep

AGE_NS = 2 * DAY_NS
"""The reconciler looks back for a day, a query collector for less, a reader for a moment."""
MARKS = "marks"
"""The shard of marks; all others are days."""
AT_ONCE = 16

REFERRED = "each of its batches has its own reference"
GONE = "its collector is gone"
YOUNG = "somebody may still look for it"
NEEDED = "not all of its batches have their own reference"
UNREADABLE = "it cannot be read"


async def shards(store: Store) -> list[str]:
    """Days of acceptance, and the marks."""
    found = [MARKS]
    async for page in store.list(layout.GATHERINGS, delimiter=True):
        found += [folder.removeprefix(layout.GATHERINGS).rstrip("/") for folder in page.folders]
    return found


async def sweep(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    prefix = layout.MARKS if ask.shard == MARKS else f"{layout.GATHERINGS}{ask.shard}/"
    hours: dict[str, list[Entry]] = {}
    async for page in store.list(prefix):
        for entry in page.entries:
            out.tally.looked += 1
            if entry.modified_ns > ask.now_ns - AGE_NS:
                out.keep(YOUNG, entry.key)
            elif ask.shard == MARKS:
                if layout.session_in(entry.key) is not None and not await out.remove(entry.key, entry.size, GONE):
                    return
            elif layout.gathering_in(entry.key) is not None:
                hours.setdefault(entry.key.rpartition("/")[0], []).append(entry)
    for folder, entries in sorted(hours.items()):
        if not await _sweep_hour(store, folder, entries, out):
            return


async def _sweep_hour(store: Store, folder: str, entries: list[Entry], out: Sweep) -> bool:
    """False if no more may be removed."""
    references = f"{layout.ACCEPTED_BY_TIME}{folder.removeprefix(layout.GATHERINGS)}/"
    referred = {key.rpartition("/")[2].removesuffix(".json")[:24] async for key in store.keys(references)}

    async def why_kept(entry: Entry) -> str | None:
        try:
            manifests = manifests_in(await store.get(entry.key))
        except NotFound:
            return UNREADABLE  # somebody else has removed it
        except (Corrupt, Incompatible):
            return UNREADABLE
        missing = [each for each in manifests if each.identity.manifest_id[:24] not in referred]
        expired = await map_bounded(missing, lambda each: _is_expired(store, each), limit=AT_ONCE)
        return None if all(expired) else NEEDED

    for entry, kept in zip(entries, await map_bounded(entries, why_kept, limit=AT_ONCE), strict=True):
        if kept is not None:
            out.keep(kept, entry.key)
        elif not await out.remove(entry.key, entry.size, REFERRED):
            return False
    return True


async def _is_expired(store: Store, manifest: AcceptedManifest) -> bool:
    return await find_expired(store, manifest.identity) is not None
