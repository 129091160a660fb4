"""Raw blobs that no manifest names. ``accept.orphans`` has the rule: the identity is closed before a blob may go.

A blob that no reference by blob leads to is a candidate, and is judged by its own bytes and its manifest: references
only save work. It is touched only if its retry horizon had passed when the last completed audit began; otherwise it
is kept, and counted with the reason.
"""

from collections.abc import Iterable

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.gc.record import Sweep
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.authority import read_authority
from holdfast.telemetry.accept.conflicts import Holds, Resolutions
from holdfast.telemetry.accept.manifest import ConflictManifest
from holdfast.telemetry.accept.orphans import GOES, Fate, Judged, OrphanKeeper

Keeper = OrphanKeeper
COLLECTOR = "gc"
NO_AUDIT = "no audit has been completed"
UNREADABLE = "the manifest or the conflict of its identity cannot be read"
RESOLVED = "the record of a conflict that is resolved"
YOUNG = "younger than the retry horizon when the last audit began"


async def keeper(store: Store, ambient: Ambient) -> Keeper:
    """Two GETs, once for a task."""
    holds = Holds(store, ambient)
    await holds.refresh()
    authority = await read_authority(store, ambient)
    return OrphanKeeper(
        store,
        ambient,
        collector_id=COLLECTOR,
        authority_id=None if authority is None else authority.authority_id,
        may_go=Resolutions(store, ambient).may_go,
        held=holds.covers,
    )


async def sweep(keeper: Keeper, candidates: Iterable[Entry], out: Sweep) -> None:
    for entry in candidates:
        if layout.blob_hash(entry.key) is None:
            continue
        if out.ask.proof_ns is None:
            out.keep(NO_AUDIT, entry.key)
        elif entry.modified_ns + out.ask.options.horizon_ns > out.ask.proof_ns:
            out.keep(YOUNG, entry.key)
        else:
            await _judge(keeper, entry.key, out)
        if out.spent:
            out.tally.more = True
            return


async def _judge(keeper: Keeper, key: str, out: Sweep) -> None:
    try:
        judged = await keeper.look(key)
    except (Corrupt, Incompatible):
        out.keep(UNREADABLE, key)
        return
    if judged.fate in GOES:
        if judged.record is not None:
            await remove_record(judged.record, out)
        await out.remove(key, judged.size, judged.fate.value)
    elif judged.fate in (Fate.ADOPT, Fate.RECORD):
        out.did("adopted" if judged.fate is Fate.ADOPT else "put on record as a conflict", key)
        if out.ask.apply:
            await _settle(keeper, judged, out.store)
    elif judged.fate is not Fate.GONE:
        out.keep(judged.fate.value, key)


async def remove_record(conflict: ConflictManifest, out: Sweep) -> None:
    """The record of a conflict that is resolved for good, and its reference: before the bytes that they name."""
    for name in (conflict.key, references.of_conflict(conflict).key):
        await out.remove_derived(name, 0, RESOLVED, first=True)


async def _settle(keeper: Keeper, judged: Judged, store: Store) -> None:
    """Write the references of an adopted batch, so that it is found by time like any other."""
    accepted = await keeper.settle(judged)
    if judged.fate is Fate.ADOPT and accepted is not None:
        await references.refer(store, accepted, (await store.head(accepted.key)).modified_ns)
