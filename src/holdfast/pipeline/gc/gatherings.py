"""What collectors gathered, and marks of collectors that are gone: derived objects that nobody needs any more.

A gathering stands in for the references by time of its batches until the reconciler has written these. It goes once
each of its batches has its reference, or has expired, and it is older than anybody looks back who follows gatherings.
Whoever has listed it and finds it gone has listed the references too, or will: they were there long before. Its name
is its own, so one that a paused collector writes late changes nothing, and goes the next time.

A mark that was not written for as long belongs to no collector at work, and no query collector waits for it (``heard``
does not read marks so old). But it alone tells a reconciler that a collector was killed, and a reconciler may stand
still for longer: so one goes that it has settled, or that says nothing. If its collector comes back after all, it
writes it anew.
"""

from collections.abc import AsyncIterator

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.gc.options import DAY_NS, Ask
from holdfast.pipeline.gc.record import Sweep
from holdfast.pipeline.silence import Memory
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.gathering import manifests_in
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.marks import Mark

AGE_NS = 2 * DAY_NS
"""The reconciler looks back for a day, a query collector for less, a reader for a moment."""
MARKS = "marks"
"""The shard of marks; all others are days."""
AT_ONCE = 16

REFERRED = "each of its batches has its own reference"
GONE = "its collector is gone"
YOUNG = "somebody may still look for it"
NEEDED = "not all of its batches have their own reference"
UNHEARD = "the reconciler has not looked for what its collector left"
UNREADABLE = "it cannot be read"


async def shards(store: Store) -> list[str]:
    """Days of acceptance, and the marks."""
    found = [MARKS]
    async for page in store.list(layout.GATHERINGS, delimiter=True):
        found += [folder.removeprefix(layout.GATHERINGS).rstrip("/") for folder in page.folders]
    return found


async def sweep(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    await (_sweep_marks(store, ambient, ask, out) if ask.shard == MARKS else _sweep_day(store, ask, out))


async def _sweep_day(store: Store, ask: Ask, out: Sweep) -> None:
    hours: dict[str, list[Entry]] = {}
    async for entry in _old(store, f"{layout.GATHERINGS}{ask.shard}/", ask, out):
        if layout.gathering_in(entry.key) is not None:
            hours.setdefault(entry.key.rpartition("/")[0], []).append(entry)
    for folder, entries in sorted(hours.items()):
        if not await _sweep_hour(store, folder, entries, out):
            return


async def _old(store: Store, prefix: str, ask: Ask, out: Sweep) -> AsyncIterator[Entry]:
    async for page in store.list(prefix):
        for entry in page.entries:
            out.tally.looked += 1
            if entry.modified_ns > ask.now_ns - AGE_NS:
                out.keep(YOUNG, entry.key)
            else:
                yield entry


async def _sweep_marks(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    checkpoint = await Checkpoints(store, ambient).read()
    memory = Memory.of(None if checkpoint is None else checkpoint.marks)
    async for entry in _old(store, layout.MARKS, ask, out):
        session = layout.session_in(entry.key)
        if session is None:
            continue
        why = None if memory.has_settled(session, entry, ask.now_ns) else await _why_unsettled(store, entry)
        if why is not None:
            out.keep(why, entry.key)
        elif not await out.remove(entry.key, entry.size, GONE):
            return


async def _why_unsettled(store: Store, entry: Entry) -> str | None:
    """Why the mark is kept for the reconciler; None if it says that nothing was left."""
    try:
        mark = Mark.read(await store.get(entry.key))
    except (NotFound, Corrupt, Incompatible):
        return UNREADABLE
    return None if mark.ended and not mark.unlisted else UNHEARD


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
