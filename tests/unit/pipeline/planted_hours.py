"""Faults of what was derived from batches; see ``planted``."""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base import codec
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.pipeline.layout import due_key
from holdfast.pipeline.units import Planned, make
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.rollup import chunk, layout, listing
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import (
    Current,
    Generation,
    Kind,
    Table,
    Unit,
    UnitManifest,
    bucket_of,
    read_generation,
)
from tests.unit.pipeline.planted import Expected, cut, fault, rewrite


async def an_hour(store: Store, kind: Kind = Kind.ROLLUP) -> Generation:
    """The current generation of the first hour."""
    hours = sorted({layout.hour_in(key) or 0 async for key in store.keys(layout.BATCHES_BY_HOUR)})
    found = await read_generation(store, kind, hours[0])
    assert found is not None
    return found


async def publish(store: Store, base: Generation, buckets: int, manifests: list[UnitManifest]) -> Generation:
    """The next generation of the hour, as a driver would publish it."""
    units = tuple(Current.of_manifest(each) for each in manifests)
    made = replace(base, number=base.number + 1, buckets=buckets, units=units)
    await store.put(made.key, made.encode(), CREATE)
    await store.put(due_key(Kind.DAILY, base.hour // 24 * 24, "0" * 64), b"{}", CREATE)
    return made


async def divided(store: Store, base: Generation, parts: Sequence[Sequence[Listed]]) -> list[UnitManifest]:
    """The hour anew, from these batches in each of two buckets."""
    manifests: list[UnitManifest] = []
    for bucket, own in enumerate(parts):
        unit = Unit(Kind.ROLLUP, base.hour, 2, bucket, tuple(row.input for row in own), base.version)
        await make(store, Planned(unit, own), Windows.of(), Limits())
        manifests.append(UnitManifest.read(await store.get(unit.key)))
    await publish(store, base, 2, manifests)
    return manifests


@fault()
async def batch_counted_twice(store: Store) -> Expected:
    """A driver that puts one batch into two buckets: real units, really derived, and one batch in both."""
    base = await an_hour(store)
    rows = await listing.of_hour(store, base.hour)
    parts = [[row for row in rows if bucket_of(row.agent, 2) == bucket] for bucket in (0, 1)]
    assert all(parts)
    parts[1].append(parts[0][0])
    manifests = await divided(store, base, parts)
    return {("counted_twice", manifests[1].key)}


@fault()
async def unit_that_says_it_counted_more(store: Store) -> Expected:
    base = await an_hour(store)
    manifest = UnitManifest.read(await store.get(layout.unit_key(base.hour, base.units[0].unit_id)))
    await store.put(manifest.key, replace(manifest, records=manifest.records * 2).encode(), OVERWRITE)
    return {("wrong_count", manifest.key)}


@fault(deep=True)
async def rows_that_count_twice(store: Store) -> Expected:
    """Right inputs, right records, right checksums; the rows have every sample twice."""
    base = await an_hour(store)
    manifest = UnitManifest.read(await store.get(layout.unit_key(base.hour, base.units[0].unit_id)))
    ref = next(each for each in manifest.chunks if each.table is Table.ROLLUP)
    table = chunk.table_of(chunk.decode((await store.get(ref.key)).body, key=ref.key))
    place = table.schema.get_field_index("count")
    doubled = table.set_column(place, table.schema.field(place), pc.multiply(table.column(place), 2))
    meta = {"holdfast.schema": chunk.SCHEMA_NAME, "holdfast.window": layout.window_name(ref.window_ns)}
    body = chunk.to_parquet(pa.table(doubled).replace_schema_metadata(meta))
    await store.put(ref.key, body, OVERWRITE)
    lying = replace(ref, bytes=len(body), crc32=zlib.crc32(body))
    answer = replace(manifest, chunks=tuple(lying if each == ref else each for each in manifest.chunks))
    await store.put(answer.key, answer.encode(), OVERWRITE)
    units = tuple(Current.of_manifest(answer) if each.unit_id == answer.unit.id else each for each in base.units)
    await store.put(base.key, replace(base, units=units).encode(), OVERWRITE)
    return {("wrong_rows", ref.key)}


@fault()
async def batch_left_out(store: Store) -> Expected:
    base = await an_hour(store)
    rows = (await listing.of_hour(store, base.hour))[1:]
    unit = Unit(Kind.ROLLUP, base.hour, 1, 0, tuple(row.input for row in rows), base.version)
    await make(store, Planned(unit, rows), Windows.of(), Limits())
    made = await publish(store, base, 1, [UnitManifest.read(await store.get(unit.key))])
    return {("left_out", made.key)}


@fault()
async def dangling_index(store: Store) -> Expected:
    base = await an_hour(store)
    key = next(each.key for each in base.units[0].chunks if each.table is Table.WORDS)
    await store.delete(key)
    return {("missing_chunk", key)}


@fault(deep=True)
async def index_that_leads_elsewhere(store: Store) -> Expected:
    """An index, right in itself, of a unit that was made from other batches."""
    base = await an_hour(store)
    manifest = UnitManifest.read(await store.get(layout.unit_key(base.hour, base.units[0].unit_id)))
    words = next(each for each in manifest.chunks if each.table is Table.WORDS)
    table = pq.read_table(pa.BufferReader((await store.get(words.key)).body))
    place = table.schema.get_field_index("batches")
    ghost = pa.array([["f" * 64]] * table.num_rows, table.schema.field(place).type)
    body = chunk.to_parquet(table.set_column(place, table.schema.field(place), ghost))
    lying = replace(words, bytes=len(body), crc32=zlib.crc32(body))
    answer = replace(manifest, chunks=tuple(lying if each == words else each for each in manifest.chunks))
    await store.put(words.key, body, OVERWRITE)
    await store.put(answer.key, answer.encode(), OVERWRITE)
    units = tuple(Current.of_manifest(answer) if each.unit_id == answer.unit.id else each for each in base.units)
    await store.put(base.key, replace(base, units=units).encode(), OVERWRITE)
    return {("dangling_index", words.key), ("wrong_rows", words.key)}


@fault()
async def missing_chunk(store: Store) -> Expected:
    base = await an_hour(store)
    key = base.units[0].chunks[0].key
    await store.delete(key)
    return {("missing_chunk", key)}


@fault()
async def truncated_chunk(store: Store) -> Expected:
    base = await an_hour(store)
    key = base.units[0].chunks[0].key
    await cut(store, key)
    return {("corrupt_chunk", key)}


@fault(deep=True)
async def flipped_bit_in_a_chunk(store: Store) -> Expected:
    base = await an_hour(store)
    key = base.units[0].chunks[0].key
    body = bytearray((await store.get(key)).body)
    body[len(body) // 2] ^= 1
    await store.put(key, bytes(body), OVERWRITE)
    return {("corrupt_chunk", key)}


@fault()
async def missing_unit(store: Store) -> Expected:
    base = await an_hour(store)
    key = layout.unit_key(base.hour, base.units[0].unit_id)
    await store.delete(key)
    return {("missing_unit", key)}


@fault()
async def lying_unit(store: Store) -> Expected:
    """Its inputs are not those that its name follows from."""
    base = await an_hour(store)
    key = layout.unit_key(base.hour, base.units[0].unit_id)
    document = codec.decode((await store.get(key)).body, key=key)
    document["unit"]["inputs"] = document["unit"]["inputs"][1:]
    await store.put(key, codec.encode(document), OVERWRITE)
    return {("corrupt_unit", key)}


@fault()
async def generation_that_differs(store: Store) -> Expected:
    base = await an_hour(store)
    units = (replace(base.units[0], inputs=base.units[0].inputs + 1), *base.units[1:])
    await store.put(base.key, replace(base, units=units).encode(), OVERWRITE)
    return {("generation_differs", base.key)}


@fault()
async def truncated_generation(store: Store) -> Expected:
    base = await an_hour(store)
    await cut(store, base.key)
    return {("corrupt_generation", base.key)}


@fault()
async def truncated_listing(store: Store) -> Expected:
    """What its batches are is not known any more, so units that count them count what is not listed."""
    base = await an_hour(store)
    key = (await listing.listings(store, base.hour))[0]
    await cut(store, key)
    units = [layout.unit_key(base.hour, unit.unit_id) for unit in base.units]
    return {("corrupt_listing", key), *(("unlisted_input", unit) for unit in units)}


@fault()
async def listing_that_nobody_derives_from(store: Store) -> Expected:
    """A reconciler that died between its listing and its mark, and a checkpoint that was set by hand."""
    base = await an_hour(store)
    rows = (await listing.of_hour(store, base.hour))[:1]
    key = await listing.write(store, base.hour, rows)
    return {("not_due", key)}


@fault()
async def checkpoint_in_the_future(store: Store) -> Expected:
    document = codec.decode((await store.get(ingest.RECONCILED)).body, key="")
    position = {**document["position"], "newest_ns": 4 * 10**18}
    await rewrite(store, ingest.RECONCILED, position=position)
    return {("checkpoint_ahead", ingest.RECONCILED)}


@fault()
async def checkpoint_that_saw_too_much(store: Store) -> Expected:
    """It is ahead of every reference, and not of the clock: what comes between is passed over."""
    latest = max([entry.modified_ns async for page in store.list(ingest.ACCEPTED_BY_TIME) for entry in page.entries])
    document = codec.decode((await store.get(ingest.RECONCILED)).body, key="")
    await rewrite(store, ingest.RECONCILED, position={**document["position"], "newest_ns": latest + 10**9})
    return {("checkpoint_ahead", ingest.RECONCILED)}


@fault()
async def truncated_checkpoint(store: Store) -> Expected:
    await cut(store, ingest.RECONCILED)
    return {("corrupt_checkpoint", ingest.RECONCILED)}
