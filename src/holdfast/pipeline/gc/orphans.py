"""Raw blobs that no manifest names. ``accept.orphans`` has the rule: the identity is closed before a blob may go.

A blob that no reference by blob leads to is a candidate, and is judged by its own bytes and its manifest: references
only save work. It is touched only if its retry horizon had passed when the last completed audit began; otherwise it
is kept, and counted with the reason. An audit is valid up to the moment at which it began to list, by the store's own
clock; a batch that an agent resent in time was accepted before that.
"""

from collections.abc import Iterable

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.gc.sweep import Doomed, Sweep
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
        elif entry.modified_ns + out.options.horizon_ns > out.ask.proof_ns:
            out.keep(YOUNG, entry.key)
        else:
            await _judge(keeper, entry.key, out)
        if out.exhausted():
            return


async def _judge(keeper: Keeper, key: str, out: Sweep) -> None:
    try:
        judged = await keeper.look(key)
    except (Corrupt, Incompatible):
        out.keep(UNREADABLE, key)
        return
    if judged.fate in GOES:
        first = [named for each in judged.records for named in record_of(each)]
        await out.remove(key, judged.size, judged.fate.value, first=first)
    elif judged.fate in (Fate.ADOPT, Fate.RECORD):
        out.did("adopted" if judged.fate is Fate.ADOPT else "recorded as a conflict", key)
        if out.ask.apply:
            await _settle(keeper, judged, out.store)
    elif judged.fate is not Fate.GONE:
        out.keep(judged.fate.value, key)


def record_of(conflict: ConflictManifest) -> list[Doomed]:
    """The record of a conflict that is resolved for good, and its reference: they go before the bytes that they
    name."""
    return [(name, 0, RESOLVED) for name in (conflict.key, references.of_conflict(conflict).key)]


async def _settle(keeper: Keeper, judged: Judged, store: Store) -> None:
    """Write the references of an adopted batch, so that it is found by time like any other."""
    accepted = await keeper.settle(judged)
    if judged.fate is Fate.ADOPT and accepted is not None:
        await references.refer(store, accepted, (await store.head(accepted.key)).modified_ns)
