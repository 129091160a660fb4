"""Faults that take more than a stroke: whole records that agree with each other, and not with the rest.

See ``planted``. What is only reported (garbage) has a library of its own here.
"""

import hashlib
from dataclasses import replace

from holdfast.bus import layout as bus
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.runs import layout as runs
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept import references
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.rollup import layout, listing
from holdfast.telemetry.rollup.manifest import Current, Kind, UnitManifest, bucket_of, read_generation
from tests.unit.pipeline.planted import Expected, Fault, Plant, a_manifest, fault, first
from tests.unit.pipeline.planted_hours import an_hour, divided
from tests.unit.pipeline.planted_others import SHOP, claim_of, event_of

REMARKS: list[Fault] = []
"""What is information, and not wrong."""


def remark(plant: Plant) -> Plant:
    REMARKS.append(Fault(plant.__name__, plant))
    return plant


async def substitute(store: Store, made: AcceptedManifest) -> None:
    """Another manifest in place of the one of this identity, with references that follow from it."""
    before = AcceptedManifest.read(await store.get(made.key))
    await store.delete(ingest.accepted_by_blob_key(before.frame_sha256, before.identity))
    await store.put(made.key, made.encode(), OVERWRITE)
    for reference in references.of_accepted(made):
        await store.put(reference.key, reference.body, OVERWRITE)


@fault()
async def manifest_that_names_bytes_elsewhere(store: Store) -> Expected:
    manifest = await a_manifest(store)
    made = replace(manifest, raw_blob_key=ingest.blob_key("0" * 64))
    await substitute(store, made)
    return {("wrong_blob_key", made.key)}


@fault(deep=True)
async def bytes_of_a_newer_version(store: Store) -> Expected:
    manifest = await a_manifest(store)
    body = b"a frame of another version"
    sha256 = hashlib.sha256(body).hexdigest()
    await store.put(ingest.blob_key(sha256), body, CREATE)
    made = replace(manifest, frame_sha256=sha256, frame_bytes=len(body), raw_blob_key=ingest.blob_key(sha256))
    await substitute(store, made)
    return {("unreadable_frame", made.key)}


@fault(deep=True)
async def bytes_of_another_batch(store: Store) -> Expected:
    keys = [key async for key in store.keys(ingest.ACCEPTED)]
    manifest, other = [AcceptedManifest.read(await store.get(key)) for key in keys[:2]]
    blob = {name: getattr(other, name) for name in ("frame_sha256", "frame_bytes", "raw_blob_key")}
    await substitute(store, replace(manifest, **blob))
    return {("other_identity", manifest.key)}


@fault()
async def decision_about_nothing(store: Store) -> Expected:
    key = await first(store, ingest.RESOLUTIONS)
    ghost = f"{key.rpartition('/')[0]}/{'0' * 64}.json"
    body = (await store.get(key)).body
    final = b"existing_is_authoritative"
    assert final in body  # after such a decision garbage collection removes the conflict: that is no finding
    await store.put(f"{ghost[:-6]}1.json", body, CREATE)
    await store.put(ghost, body.replace(final, b"quarantine_identity"), CREATE)
    return {("resolution_of_nothing", ghost)}


@fault()
async def missing_listing(store: Store) -> Expected:
    base = await an_hour(store)
    key = (await listing.listings(store, base.hour))[0]
    await store.delete(key)
    units = [layout.unit_key(base.hour, unit.unit_id) for unit in base.units]
    return {("missing_listing", key), *(("unlisted_input", unit) for unit in units)}


@fault(deep=True)
async def hour_that_somebody_cleaned(store: Store) -> Expected:
    """Everything about an hour is gone: only its batches know that they have records in it."""
    base = await an_hour(store)
    rows = await listing.of_hour(store, base.hour)
    for folder in (layout.manifest_folder(base.hour), layout.batches_folder(base.hour)):
        await store.delete_many([key async for key in store.keys(folder)])
    daily = await read_generation(store, Kind.DAILY, base.hour // 24 * 24)
    assert daily is not None
    by_id = {}
    async for key in store.keys(ingest.ACCEPTED):
        identity = ingest.identity_in(key)
        assert identity is not None
        by_id[identity.manifest_id] = key
    lost = {("unlisted_batch", by_id[row.manifest_id]) for row in rows if row.records}
    return {*lost, ("not_due", daily.key)}


@fault()
async def batch_in_another_bucket(store: Store) -> Expected:
    base = await an_hour(store)
    rows = await listing.of_hour(store, base.hour)
    parts = [[row for row in rows if bucket_of(row.agent, 2) == bucket] for bucket in (0, 1)]
    parts[1].append(parts[0].pop())
    manifests = await divided(store, base, parts)
    return {("wrong_input", manifests[1].key)}


@fault()
async def unit_that_could_not_read_a_batch(store: Store) -> Expected:
    base = await an_hour(store)
    rows = await listing.of_hour(store, base.hour)
    manifest = UnitManifest.read(await store.get(layout.unit_key(base.hour, base.units[0].unit_id)))
    lost = rows[0]
    counted = sum(row.records for row in rows) - lost.records
    made = replace(manifest, records=counted, repeated=0, unreadable=(lost.manifest_id,))
    await store.put(made.key, made.encode(), OVERWRITE)
    await store.put(base.key, replace(base, units=(Current.of_manifest(made),)).encode(), OVERWRITE)
    return {("unreadable_input", made.key)}


# --- garbage: reported, and not wrong ---


@remark
async def blob_that_was_left_behind(store: Store) -> Expected:
    """Its collector died between its two writes."""
    from tests.unit.pipeline.healthy import frame  # which needs this room

    body = frame("web-9", 0, 3, 490_000 * 3_600 * 10**9, 9)
    key = ingest.blob_key(hashlib.sha256(body).hexdigest())
    await store.put(key, body, CREATE)
    return {("orphan_blob", key)}


@remark
async def objects_of_somebody_else(store: Store) -> Expected:
    for key in ("photos/2026/cat.jpg", "notes.txt"):
        await store.put(key, b"hello", CREATE)
    return {("unknown_prefix", "photos/"), ("unknown_prefix", "notes.txt")}


@remark
async def payload_of_a_deleted_run(store: Store) -> Expected:
    await store.put(runs.payload_key("gone", "0" * 32), b"large", CREATE)
    return {("deleted_leftovers", runs.journal_key("gone"))}


@remark
async def fork_that_died(store: Store) -> Expected:
    await store.put(runs.segment_key("stillborn", 0, 0, "0" * 8), b"{}\n", CREATE)
    return {("no_journal", runs.run_folder("stillborn"))}


@remark
async def cleanup_that_died(store: Store) -> Expected:
    """Its boundary is past the event, and the event is gone; the claim is still there."""
    event = await event_of(store, "audited.order", "o1")
    key = claim_of(event, "bill")
    ghost = f"2020-01-01T00-00-00.000000+00-00_{bus.event_id(bus.name_of(event))}-old"
    claim = bus.claim_key(SHOP, bus.event_id(ghost), "bill")
    document = (await store.get(key)).body.decode()
    document = document.replace(bus.name_of(event), ghost).replace(
        f'"event_id":"{bus.event_id(bus.name_of(event))}"', f'"event_id":"{bus.event_id(ghost)}"'
    )
    await store.put(claim, document.encode(), CREATE)
    return {("left_by_cleanup", claim)}
