"""Accepted batches that no listing has yet: what came after the reconciler's latest checkpoint.

They are found by time of acceptance. A record may be dated up to a day after its batch was accepted, so a question
about times from ``since`` on reads batches accepted from a day before. Without a reconciler every batch is fresh:
answers are complete, and every batch of that time is read.

A batch whose numbers overlap those of another matters wherever the other has records. Overlaps among fresh batches and
with batches in the hours of the question are seen when they are put together; for others, ``neighbours`` asks what the
reconciler has covered, and looks close where a number was known.

Errors: a batch that cannot be read is counted in ``unreadable``, and the rest goes on.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import FUTURE_NS, Coverage, neighbours_after, overlapping, shares
from holdfast.telemetry.discover import not_given, reconciled, resolved
from holdfast.telemetry.frame import Batch, FrameInvalid, Limits, decode
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.live.state import size_of
from holdfast.telemetry.rollup.counted import identity_of_row
from holdfast.telemetry.rollup.layout import coverage_key
from holdfast.telemetry.rollup.listing import Listed

AT_ONCE = 16
DECODERS = 2

_log = logger("metrics")


@dataclass(slots=True)
class Known:
    """A batch that was read, and what it has in each hour."""

    manifest: AcceptedManifest
    rows: dict[int, Listed]


@dataclass(slots=True)
class Memory:
    """A cache of recently decoded batches, limited in bytes."""

    most_bytes: int = 64 << 20
    _kept: dict[str, Batch] = field(default_factory=dict)
    _bytes: int = 0

    def get(self, manifest_id: str) -> Batch | None:
        return self._kept.get(manifest_id)

    def keep(self, manifest_id: str, batch: Batch) -> None:
        """The oldest go first."""
        size = size_of(batch)
        if manifest_id in self._kept or size > self.most_bytes:
            return
        self._kept[manifest_id] = batch
        self._bytes += size
        while self._bytes > self.most_bytes:
            self._bytes -= size_of(self._kept.pop(next(iter(self._kept))))


@dataclass(slots=True)
class Batches:
    """The batches that one answer reads, and which of them could not be read."""

    store: Store
    limits: Limits
    memory: Memory = field(default_factory=Memory)
    unreadable: set[str] = field(default_factory=set)
    """Manifest ids; of a reference that cannot be read, its key."""
    expired: set[str] = field(default_factory=set)
    """Manifest ids of expired batches."""
    _decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS))

    async def load(self, identity: BatchIdentity, blob_key: str, sha256: str) -> Batch | None:
        """None if it cannot be read, or was expired."""
        manifest_id = identity.manifest_id
        kept = self.memory.get(manifest_id)
        if kept is not None:
            return kept
        try:
            body = (await self.store.get(blob_key)).body
            async with self._decoders:
                batch = await blocking(_decode, body, sha256, blob_key, self.limits)
        except NotFound as error:
            if await find_expired(self.store, identity) is not None:
                self.expired.add(manifest_id)
            else:
                self.lost(manifest_id, blob_key, error)
            return None
        except (FrameInvalid, Corrupt, Invalid) as error:
            self.lost(manifest_id, blob_key, error)
            return None
        self.memory.keep(manifest_id, batch)
        return batch

    async def all(self, rows: Iterable[Listed]) -> list[Batch]:
        """Those of these batches that can be read."""
        found = await map_bounded(rows, self.of_row, limit=AT_ONCE)
        return [each for each in found if each is not None]

    async def of_row(self, row: Listed) -> Batch | None:
        return await self.load(identity_of_row(row), row.blob_key, row.frame_sha256)

    def lost(self, what: str, key: str, error: HoldfastError) -> None:
        _log.warning("%s: left out of an answer: %s", key, error)
        self.unreadable.add(what)


def _decode(body: bytes, sha256: str, key: str, limits: Limits) -> Batch:
    if hashlib.sha256(body).hexdigest() != sha256:
        raise Corrupt(f"{key}: its bytes are not those that were accepted")
    return decode(body, limits)


async def fresh(store: Store, batches: Batches, since_ns: int, wants_agent: Callable[[str], bool]) -> list[Known]:
    """Batches that are in no known listing and may have records from ``since`` on."""

    def lost(key: str, error: HoldfastError) -> None:
        batches.lost(key, key, error)

    found = await fresh_manifests(store, since_ns, lost)
    known = await map_bounded(found, lambda each: _looked_into(batches, each, wants_agent), limit=AT_ONCE)
    return [each for each in known if each is not None]


async def is_reconciled(store: Store) -> bool:
    """Whether a reconciler has ever run, so that there are listings."""
    return await store.find(layout.RECONCILED) is not None


async def fresh_manifests(
    store: Store, since_ns: int, lost: Callable[[str, HoldfastError], None]
) -> list[AcceptedManifest]:
    """Their manifests; nothing is read of the batches. ``lost`` is called for what cannot be read."""
    seen = await not_given(store, await reconciled(store), since_ns - FUTURE_NS)
    batches, _, unreadable = await resolved(store, seen)
    for key, error in unreadable:
        lost(key, error)
    return [manifest for _, manifest in batches]


async def neighbours(store: Store, batches: Batches, found: Iterable[Known]) -> list[Known]:
    """Accepted batches, wherever they are, that share a number with one of these."""
    keys = await neighbour_keys(store, [each.manifest.identity for each in found])
    others = await map_bounded(keys, lambda key: _known(store, batches, key), limit=AT_ONCE)
    return [each for each in others if each is not None]


async def neighbour_keys(store: Store, found: Iterable[BatchIdentity]) -> list[str]:
    """The manifests of those whose numbers a reconciler has covered."""
    groups: dict[str, list[BatchIdentity]] = {}
    own: set[str] = set()
    for identity in found:
        own.add(layout.accepted_key(identity))
        groups.setdefault(coverage_key(identity.agent_id), []).append(identity)

    async def one(key: str) -> set[str]:
        document = await store.find(key)
        if document is None:
            return set()
        coverage = Coverage.of(codec.decode(document.body, key=key), key)
        keys: set[str] = set()
        for identity in sorted(coverage.add_all(groups[key])):
            keys |= await _around(store, identity, coverage.longest(identity))
        return keys

    parts = await map_bounded(sorted(groups), one, limit=AT_ONCE)
    return sorted(set().union(*parts) - own)


async def _around(store: Store, identity: BatchIdentity, longest: int) -> set[str]:
    folder = f"{layout.ACCEPTED}{layout.boot_path(identity.agent_id, identity.boot_id)}"
    found: list[BatchIdentity] = []
    async for key in store.keys(folder, after=neighbours_after(identity, longest)):
        other = layout.identity_in(key)
        if other is None or key != layout.accepted_key(other):
            continue
        if other.seq_start > identity.seq_end:
            break
        found.append(other)
    return {layout.accepted_key(each) for each in overlapping(identity, found)}


async def _known(store: Store, batches: Batches, key: str) -> Known | None:
    """By the key of its manifest."""
    try:
        manifest = AcceptedManifest.read(await store.get(key))
    except (NotFound, Corrupt, Incompatible, Invalid) as error:
        batches.lost(key, key, error)
        return None
    return await _looked_into(batches, manifest, lambda _: True)


async def _looked_into(
    batches: Batches, manifest: AcceptedManifest, wants_agent: Callable[[str], bool]
) -> Known | None:
    identity = manifest.identity
    if not wants_agent(identity.agent_id):
        return None
    batch = await batches.load(identity, manifest.raw_blob_key, manifest.frame_sha256)
    if batch is None:  # an expired one has no records to be read, but keeps its numbers
        return Known(manifest, {}) if identity.manifest_id in batches.expired else None
    own, _ = shares(batch, manifest.limits)
    rows = {each.hour: listed(manifest, each.records, each.first_ns, each.last_ns) for each in own}
    return Known(manifest, rows)


def row_of(known: Known) -> Listed:
    """The batch in an hour in which it has no records of its own, but may take numbers away."""
    return listed(known.manifest, 0, None, None)


def listed(manifest: AcceptedManifest, records: int, first_ns: int | None, last_ns: int | None) -> Listed:
    """An accepted batch, as an hour lists it."""
    identity = manifest.identity
    return Listed(
        identity.manifest_id,
        identity.agent_id,
        identity.boot_id,
        identity.seq_start,
        identity.seq_end,
        manifest.frame_sha256,
        manifest.raw_blob_key,
        manifest.frame_bytes,
        manifest.accepted_at_unix_ns,
        records,
        first_ns,
        last_ns,
    )
