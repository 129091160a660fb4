"""References by time, as streams of accepted batches see them: looks at the store, and who else has a number.

A stream gives each number out once, to whichever batch it met first; in one micro-batch the lower identity has it. So
of a batch that shares numbers with others somebody must know which of those were given out before: manifests around it
are listed, and of the few that overlap the reference is looked at.

A batch that its collector gathered with others has its reference from the reconciler: a stream has it after that.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

from holdfast.base.aio import map_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.tables.batches import Unreadable, read_manifest
from holdfast.pipeline.tables.position import Look, Position, Rule, Seen, between
from holdfast.pipeline.tables.records import BatchRef, clusters
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import neighbours_after, overlapping
from holdfast.telemetry.identity import BatchIdentity

READS = 32
NUMBERS_BACK = 1_000_000
"""How far before a batch the numbers of another may begin that overlaps it."""


async def listed(store: Store, begin: str) -> AsyncIterator[Seen]:
    """References from this key on, which is one below the prefix; foreign objects are none."""
    after = f"{layout.ACCEPTED_BY_TIME}{begin[:-1]}" if begin else None
    async for page in store.list(layout.ACCEPTED_BY_TIME, after=after):
        for entry in page.entries:
            key = entry.key.removeprefix(layout.ACCEPTED_BY_TIME)
            name = key.rpartition("/")[2].removesuffix(".json")
            if len(name) == 64 and not set(name) - set("0123456789abcdef") and key.count("/") == 2:
                yield Seen(key, entry.modified_ns)


async def look(
    store: Store,
    clock: Clock,
    rule: Rule,
    start: Position,
    *,
    deep: bool,
    limit: int | None = None,
    within: Position | None = None,
) -> tuple[Position, int]:
    """Where a look from ``start`` leads, and how many references are fresh."""
    found = Look(rule, start, deep, limit, within)
    began_ns = clock.monotonic_ns()
    async for each in listed(store, found.begin):
        if not found.take(each):
            break
    return found.end(clock.monotonic_ns() - began_ns), len(found.fresh)


async def keys_between(store: Store, start: Position, end: Position) -> list[str]:
    """The references that were given out between two positions."""
    found = [each async for each in listed(store, end.begin)]
    return [f"{layout.ACCEPTED_BY_TIME}{each.key}" for each in between(start, end, found)]


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
        manifest = await read_manifest(store, layout.accepted_key(identity), unreadable)
        if manifest is None:
            return None
        key = layout.accepted_by_time_key(manifest.accepted_at_unix_ns, identity)
        try:
            written_ns = (await store.head(key)).modified_ns
        except NotFound:
            return None
        seen = Seen(key.removeprefix(layout.ACCEPTED_BY_TIME), written_ns)
        return replace(BatchRef.of_manifest(manifest), before=True) if start.has(seen) else None

    found = await map_bounded(sorted(near), looked, limit=READS)
    return [each for each in found if each is not None]
