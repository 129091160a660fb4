"""Accepted batches that no listing names yet: those that came after the reconciler's latest checkpoint.

They are found by time of acceptance. A record may be dated up to a day after its batch was accepted, so a question
about times from ``since`` on reads batches accepted from a day before. Without a reconciler no batch is listed: answers
are complete, and every batch of that time is read.

A batch whose numbers overlap those of another one matters wherever the other one has records. Overlaps among unlisted
batches, and with batches in the hours of the question, show when they are put together. For others, the reconciler's
coverage says whether a number was known before; if so, the manifests around it are listed.

Errors: a batch that cannot be read is recorded in ``BatchReader.unreadable``, and the rest continues.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.objects.store import Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import FUTURE_NS, Coverage, neighbours_after, overlapping, shares
from holdfast.telemetry.batches import BatchReader
from holdfast.telemetry.discover import reconciled_position, resolve_all, undelivered
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.rollup.layout import coverage_key
from holdfast.telemetry.rollup.listing import Listed

READS = 16


@dataclass(slots=True)
class UnlistedBatch:
    manifest: AcceptedManifest
    rows: dict[int, Listed]
    """By hour in which it has records, as a listing would name it. None for a batch that has expired, or was listed
    before: it only takes numbers away from others."""


async def unlisted_batches(
    store: Store, reader: BatchReader, since_ns: int, wants_agent: Callable[[str], bool]
) -> list[UnlistedBatch]:
    """Batches that no listing names and that may have records from ``since`` on; and all accepted batches that share a
    number with one of these.
    """

    async def read(manifest: AcceptedManifest) -> UnlistedBatch | None:
        identity = manifest.identity
        if not wants_agent(identity.agent_id):
            return None
        batch = await reader.load(identity, manifest.raw_blob_key, manifest.frame_sha256)
        if batch is None:  # an expired one has no records to be read, but keeps its numbers
            return UnlistedBatch(manifest, {}) if identity.manifest_id in reader.expired else None
        own, _ = shares(batch, manifest.limits)
        return UnlistedBatch(manifest, {each.hour: Listed.of(manifest, each) for each in own})

    async def read_key(key: str) -> UnlistedBatch | None:
        try:
            manifest = AcceptedManifest.read(await store.get(key))
        except (NotFound, Corrupt, Incompatible, Invalid) as error:
            reader.failed(key, key, error)
            return None
        return await read(manifest)

    manifests = await unlisted_manifests(store, since_ns, lambda key, error: reader.failed(key, key, error))
    found = [each for each in await map_bounded(manifests, read, limit=READS) if each is not None]
    keys = await overlapping_keys(store, [each.manifest.identity for each in found])
    return found + [each for each in await map_bounded(keys, read_key, limit=READS) if each is not None]


async def is_reconciled(store: Store) -> bool:
    """Whether a reconciler has ever run, so that there are listings."""
    return await store.find(layout.RECONCILED) is not None


async def unlisted_manifests(
    store: Store, since_ns: int, on_error: Callable[[str, HoldfastError], None]
) -> list[AcceptedManifest]:
    """The manifests of batches that no listing names. ``on_error`` is called for references that cannot be read."""
    references = await undelivered(store, await reconciled_position(store), since_ns - FUTURE_NS)
    found = await resolve_all(store, references)
    for key, error in found.unreadable:
        on_error(key, error)
    return [manifest for _, manifest in found.batches]


async def overlapping_keys(store: Store, identities: Iterable[BatchIdentity]) -> list[str]:
    """The manifests of other batches that share a number with one of these, as far as a reconciler has covered them."""
    shards: dict[str, list[BatchIdentity]] = {}
    own: set[str] = set()
    for identity in identities:
        own.add(layout.accepted_key(identity))
        shards.setdefault(coverage_key(identity.agent_id), []).append(identity)

    async def one(key: str) -> set[str]:
        document = await store.find(key)
        if document is None:
            return set()
        coverage = Coverage.of(codec.decode(document.body, key=key), key)
        keys: set[str] = set()
        for identity in sorted(coverage.add_all(shards[key])):
            keys |= await _around(store, identity, coverage.longest(identity))
        return keys

    parts = await map_bounded(sorted(shards), one, limit=READS)
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
