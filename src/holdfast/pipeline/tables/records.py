"""Samples, logs and alerts as they were sent: one row for each record of an accepted batch, each number once.

Which batches may have records in a range of time follows from the reconciler's listings and from the references by time
that came after them; without a range, or without a reconciler, all manifests are listed. Batches that share numbers go
into one part together, so that it is decided there whose a number is.

A stream gives each number out once, to the batch that it found first; in one micro-batch the lower identity has it. So
for a batch that shares numbers with others it must be known which of those were returned before: manifests around it
are listed, and of the few that overlap the reference is looked at.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.base.aio import map_bounded, stream_bounded
from holdfast.base.clock import SystemClock
from holdfast.base.errors import Corrupt, Incompatible, Invalid, NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.tables import decoded
from holdfast.pipeline.tables.batches import UNREADABLE, Unreadable, accepted_keys, read_manifest
from holdfast.pipeline.tables.decoded import Accepted
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import LAST_NS, Tables, TimeSpan, Wanted, groups
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import neighbours_after, overlapping
from holdfast.telemetry.accept.references import is_in_time
from holdfast.telemetry.batches import BatchReader
from holdfast.telemetry.discover import ListedReference, Position
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.overlaps import overlapping_groups
from holdfast.telemetry.query.question import moment_ns
from holdfast.telemetry.query.unlisted import is_reconciled, overlapping_keys, unlisted_manifests
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup import listing

BATCHES_AT_ONCE = 256
CLUSTERS_AT_ONCE = 8
NUMBERS_BACK = 1_000_000
"""How far before a batch the numbers of another may begin that overlaps it."""
REFERENCES_AT_ONCE = 32


@dataclass(frozen=True, order=True)
class BatchRef:
    """A batch that is to be read: by the key of its manifest, or at once, where it is known what that says."""

    identity: BatchIdentity
    key: str
    blob_key: str | None = None
    frame_sha256: str = ""
    accepted_at_ns: int = 0
    before: bool = False
    """A stream has given it out before: its numbers are taken."""

    @classmethod
    def of_key(cls, key: str) -> "BatchRef | None":
        identity = layout.identity_in(key)
        return None if identity is None else cls(identity, key)

    @classmethod
    def of_manifest(cls, found: AcceptedManifest) -> "BatchRef":
        return cls(found.identity, found.key, found.raw_blob_key, found.frame_sha256, found.accepted_at_unix_ns)


@dataclass(frozen=True)
class RecordsPart:
    clusters: tuple[tuple[BatchRef, ...], ...]
    """Batches that may share numbers, together."""
    span: TimeSpan
    given: frozenset[BatchIdentity] | None = None
    """The batches whose rows are wanted; None for all."""


def clusters(refs: Iterable[BatchRef]) -> list[tuple[BatchRef, ...]]:
    """Batches of one agent and boot whose ranges overlap, together; the same batch once."""
    unique = {each.identity: each for each in sorted(refs)}
    return [tuple(group) for group in overlapping_groups(unique.values(), lambda ref: ref.identity)]


def in_parts(
    together: Sequence[tuple[BatchRef, ...]],
    span: TimeSpan,
    most: int | None,
    given: frozenset[BatchIdentity] | None = None,
) -> list[RecordsPart]:
    found = groups(together, worth=BATCHES_AT_ONCE, most=most, weight=len)
    return [RecordsPart(each, span, given) for each in found]


@dataclass(frozen=True)
class RecordsTable:
    name: str
    span: TimeSpan
    unreadable: Unreadable

    @property
    def schema(self) -> pa.Schema:
        return decoded.SCHEMAS[self.name]

    async def plan(self, store: Store, wanted: Wanted) -> list[RecordsPart]:
        span = self.span.within(wanted.conditions, "time_ns", "time")
        bounded = span.since_ns is not None or span.until_ns is not None
        if bounded and await is_reconciled(store):
            found = await self._by_hour(store, span, wanted)
        else:
            found = _of_keys(await accepted_keys(store, wanted))
        return in_parts(clusters(found), span, wanted.partitions)

    async def _by_hour(self, store: Store, span: TimeSpan, wanted: Wanted) -> list[BatchRef]:
        since = max(0, span.since_ns or 0)
        until = LAST_NS if span.until_ns is None else span.until_ns
        if until <= since:
            return []
        # What is fresh first: a batch that is listed in between is met twice, and counts once.
        fresh = await self._fresh(store, since)
        agents = wanted.conditions.allows("agent")
        boots = wanted.conditions.allows("boot")
        hours = derived.hours_between(since, until)
        keys = [key async for key in _listings(store, hours)]
        listed = [
            BatchRef(row.identity, "", row.blob_key, row.frame_sha256, row.accepted_at_ns)
            for row in await listing.read(store, keys)
        ]
        return [each for each in (*listed, *fresh) if agents(each.identity.agent_id) and boots(each.identity.boot_id)]

    async def _fresh(self, store: Store, since_ns: int) -> list[BatchRef]:
        found = await unlisted_manifests(store, since_ns, self.unreadable.handle)
        others = await overlapping_keys(store, [each.identity for each in found])
        return [*map(BatchRef.of_manifest, found), *_of_keys(others)]

    async def read(self, store: Store, part: RecordsPart, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        unreadable = self.unreadable
        batches = BatchReader(store, Limits())
        metrics = wanted.conditions.allows("metric")

        async def one(cluster: tuple[BatchRef, ...]) -> list[Accepted]:
            found = [await _load(store, batches, ref, unreadable) for ref in cluster]
            return [each for each in found if each is not None]

        async for cluster in stream_bounded(part.clusters, one, limit=CLUSTERS_AT_ONCE):
            for batch in decoded.rows(self.name, cluster, part.span, metrics, part.given):
                yield batch.select(list(wanted.columns))


def _of_keys(keys: Iterable[str]) -> list[BatchRef]:
    return [ref for key in keys if (ref := BatchRef.of_key(key)) is not None]


async def _load(store: Store, batches: BatchReader, ref: BatchRef, unreadable: Unreadable) -> Accepted | None:
    before = ref.before
    if ref.blob_key is None:
        manifest = await read_manifest(store, ref.key, unreadable)
        if manifest is None:
            return None
        ref = BatchRef.of_manifest(manifest)
    blob = ref.blob_key or ""
    batch = await batches.load(ref.identity, blob, ref.frame_sha256)
    if batch is None and ref.identity.manifest_id in batches.expired:
        return None
    if batch is None:
        unreadable.handle(blob, Corrupt("missing, or not a frame that this version can read"))
        return None
    return Accepted(batch, ref.accepted_at_ns, before)


async def _listings(store: Store, hours: range) -> AsyncIterator[str]:
    begin, end = derived.batches_folder(hours.start), derived.batches_folder(hours.stop)
    async for key in store.keys(derived.BATCHES_BY_HOUR, after=begin.rstrip("/")):
        if key >= end:
            return
        if derived.listing_in(key) is not None:
            yield key


# --- streams ---


async def clusters_between(
    store: Store, start: Position, keys: Sequence[str], unreadable: Unreadable
) -> tuple[list[tuple[BatchRef, ...]], frozenset[BatchIdentity]]:
    """The batches that these references name, with all that may share numbers with them; and which are theirs."""

    async def one(key: str) -> AcceptedManifest | None:
        return await read_manifest(store, key, unreadable)

    found = [each for each in await map_bounded(keys, one, limit=REFERENCES_AT_ONCE) if each is not None]
    own = {each.identity: BatchRef.of_manifest(each) for each in found}
    before = await _given_before(store, start, own, unreadable)
    return clusters([*own.values(), *before]), frozenset(own)


async def _given_before(
    store: Store, start: Position, own: Iterable[BatchIdentity], unreadable: Unreadable
) -> list[BatchRef]:
    """Batches that share a number with one of these and were returned before ``start``."""
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

    near = set().union(*await map_bounded(boots.values(), around, limit=REFERENCES_AT_ONCE))

    async def looked(identity: BatchIdentity) -> BatchRef | None:
        name = layout.accepted_key(identity)
        try:
            found = await store.get(name)
            manifest = AcceptedManifest.read(found)
        except (Corrupt, Incompatible, NotFound) as error:
            unreadable.handle(name, error)
            return None
        key = layout.accepted_by_time_key(manifest.accepted_at_unix_ns, identity)
        try:
            reference = await store.head(key)
        except NotFound:
            return None
        listed = ListedReference(key.removeprefix(layout.ACCEPTED_BY_TIME), reference.modified_ns)
        before = start.delivered(listed) and is_in_time(reference, found.modified_ns)
        return replace(BatchRef.of_manifest(manifest), before=True) if before else None

    found = await map_bounded(sorted(near), looked, limit=REFERENCES_AT_ONCE)
    return [each for each in found if each is not None]


# --- options ---


def span_of(given: Given) -> TimeSpan:
    """The range of time that the options name."""
    now = SystemClock().wall_ns()
    since, until = given.text("since"), given.text("until")
    found = TimeSpan(
        None if since is None else moment_ns(since, now),
        None if until is None else moment_ns(until, now),
    )
    if found.since_ns is not None and found.until_ns is not None and found.until_ns <= found.since_ns:
        detail = f"option until: {until!r} is not after since, {since!r}"
        raise Invalid(detail, remedy="give an until that is later than since")
    return found


async def _records(store: Store, given: Given) -> RecordsTable:
    return RecordsTable(given.table, span_of(given), Unreadable.of(given))


_OPTIONS = ("since", "until", UNREADABLE, "start", "late", "max_batches_per_trigger")
TABLES: Tables = dict.fromkeys(decoded.SCHEMAS, (_records, _OPTIONS))
