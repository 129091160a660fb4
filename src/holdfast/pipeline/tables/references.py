"""Batches of a stream that share sequence numbers.

A stream gives each number out once, to the batch that it found first; in one micro-batch the lower identity has it. So
for a batch that shares numbers with others it must be known which of those were given out before: manifests around it
are listed, and of the few that overlap the reference is looked at.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.tables.batches import Unreadable, read_manifest
from holdfast.pipeline.tables.records import BatchRef, clusters
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import neighbours_after, overlapping
from holdfast.telemetry.accept.references import is_in_time
from holdfast.telemetry.discover import Position, Seen
from holdfast.telemetry.identity import BatchIdentity

READS = 32
NUMBERS_BACK = 1_000_000
"""How far before a batch the numbers of another may begin that overlaps it."""


async def clusters_between(
    store: Store, start: Position, keys: Sequence[str], unreadable: Unreadable
) -> tuple[list[tuple[BatchRef, ...]], frozenset[tuple[str, str, int, int]]]:
    """The batches that these references name, with all that may share numbers with them; and which are theirs."""

    async def one(key: str) -> AcceptedManifest | None:
        return await read_manifest(store, key, unreadable)

    found = [each for each in await map_bounded(keys, one, limit=READS) if each is not None]
    own = {each.identity: BatchRef.of_manifest(each) for each in found}
    before = await _given_before(store, start, own, unreadable)
    given = frozenset(each.identity for each in own.values())
    return clusters([*own.values(), *before]), given


async def _given_before(
    store: Store, start: Position, own: Iterable[BatchIdentity], unreadable: Unreadable
) -> list[BatchRef]:
    """Batches that share a number with one of these and were given out before ``start``."""
    boots: dict[tuple[str, str], list[BatchIdentity]] = defaultdict(list)
    for identity in own:
        boots[identity.agent_id, identity.boot_id].append(identity)
    mine = set(own)

    async def around(identities: list[BatchIdentity]) -> set[BatchIdentity]:
        ordered = sorted(identities)
        last = max(each.seq_end for each in ordered)
        longest = max(NUMBERS_BACK, *(each.seq_end - each.seq_start + 1 for each in ordered))
        folder = f"{layout.ACCEPTED}{layout.boot_path(ordered[0].agent_id, ordered[0].boot_id)}"
        others: list[BatchIdentity] = []
        async for key in store.keys(folder, after=neighbours_after(ordered[0], longest)):
            other = layout.identity_in(key)
            if other is None or key != layout.accepted_key(other):
                continue
            if other.seq_start > last:
                break
            if other not in mine:
                others.append(other)
        return {other for each in ordered for other in overlapping(each, others)} if others else set()

    near = set().union(*await map_bounded(boots.values(), around, limit=READS))

    async def looked(identity: BatchIdentity) -> BatchRef | None:
        name = layout.accepted_key(identity)
        try:
            found = await store.get(name)
            manifest = AcceptedManifest.read(found)
        except (Corrupt, Incompatible, NotFound) as error:
            unreadable.met(name, error)
            return None
        key = layout.accepted_by_time_key(manifest.accepted_at_unix_ns, identity)
        try:
            reference = await store.head(key)
        except NotFound:
            return None
        seen = Seen(key.removeprefix(layout.ACCEPTED_BY_TIME), reference.modified_ns)
        before = start.has(seen) and is_in_time(reference, found.modified_ns)
        return replace(BatchRef.of_manifest(manifest), before=True) if before else None

    found = await map_bounded(sorted(near), looked, limit=READS)
    return [each for each in found if each is not None]
