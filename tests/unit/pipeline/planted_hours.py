"""Faults of what was derived from batches; see ``planted``."""

import zlib
from collections.abc import Callable, Sequence
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
    ChunkRef,
    Generation,
    Kind,
    Table,
    Unit,
    UnitManifest,
    UnitRef,
    bucket_of,
    read_generation,
)
from tests.unit.pipeline.planted import Expected, Spot, cut, fault, flipped, gone, rewrite, spoilt


async def an_hour(store: Store) -> Generation:
    """The current generation of the first hour."""
    hours = sorted({layout.hour_in(key) or 0 async for key in store.keys(layout.BATCHES_BY_HOUR)})
    found = await read_generation(store, Kind.ROLLUP, hours[0])
    assert found is not None
    return found


async def first_unit(store: Store, base: Generation) -> UnitManifest:
    return UnitManifest.read(await store.get(layout.unit_key(base.hour, base.units[0].unit_id)))


async def publish(store: Store, base: Generation, buckets: int, manifests: list[UnitManifest]) -> Generation:
    """The next generation of the hour, as a driver would publish it."""
    units = tuple(UnitRef.of_manifest(each) for each in manifests)
    made = replace(base, number=base.number + 1, buckets=buckets, units=units)
    await store.put(made.key, made.encode(), CREATE)
    await store.put(due_key(Kind.DAILY, base.hour // 24 * 24, "0" * 64), b"{}", CREATE)
    return made


async def derived(store: Store, base: Generation, parts: Sequence[Sequence[Listed]]) -> list[UnitManifest]:
    """The hour anew, from these batches in each bucket."""
    manifests: list[UnitManifest] = []
    for bucket, own in enumerate(parts):
        unit = Unit(Kind.ROLLUP, base.hour, len(parts), bucket, tuple(row.input for row in own), base.version)
        await make(store, Planned(unit, own), Windows.of(), Limits())
        manifests.append(UnitManifest.read(await store.get(unit.key)))
    await publish(store, base, len(parts), manifests)
    return manifests


async def in_two_buckets(store: Store, base: Generation) -> list[list[Listed]]:
    rows = await listing.of_hour(store, base.hour)
    parts = [[row for row in rows if bucket_of(row.agent, 2) == bucket] for bucket in (0, 1)]
    assert all(parts)
    return parts


def of_hour(key: Callable[[Generation], str]) -> Spot:
    async def spot(store: Store) -> tuple[str, str]:
        found = key(await an_hour(store))
        return found, found

    return spot


async def lying_inputs(store: Store, key: str) -> None:
    """They are not those that the name of the unit follows from."""
    document = codec.decode((await store.get(key)).body, key=key)
    document["unit"]["inputs"] = document["unit"]["inputs"][1:]
    await store.put(key, codec.encode(document), OVERWRITE)


CHUNK = of_hour(lambda base: base.units[0].chunks[0].key)
UNIT = of_hour(lambda base: layout.unit_key(base.hour, base.units[0].unit_id))
spoilt("missing_chunk", gone, CHUNK)
spoilt("corrupt_chunk", cut, CHUNK)
spoilt("corrupt_chunk", flipped, CHUNK, deep=True)
spoilt("missing_unit", gone, UNIT)
spoilt("corrupt_unit", lying_inputs, UNIT)
spoilt("corrupt_generation", cut, of_hour(lambda base: base.key))
spoilt("corrupt_checkpoint", cut, of_hour(lambda _: ingest.RECONCILED))


@fault()
async def batch_counted_twice(store: Store) -> Expected:
    """A driver that puts one batch into two buckets: real units, really derived, and one batch in both."""
    base = await an_hour(store)
    parts = await in_two_buckets(store, base)
    parts[1].append(parts[0][0])
    return {("wrong_input", (await derived(store, base, parts))[1].key)}


@fault()
async def batch_in_another_bucket(store: Store) -> Expected:
    base = await an_hour(store)
    parts = await in_two_buckets(store, base)
    parts[1].append(parts[0].pop())
    return {("wrong_input", (await derived(store, base, parts))[1].key)}


@fault()
async def batch_left_out(store: Store) -> Expected:
    base = await an_hour(store)
    await derived(store, base, [(await listing.of_hour(store, base.hour))[1:]])
    return {("left_out", replace(base, number=base.number + 1).key)}


@fault()
async def unit_that_says_it_counted_more(store: Store) -> Expected:
    manifest = await first_unit(store, await an_hour(store))
    await store.put(manifest.key, replace(manifest, records=manifest.records * 2).encode(), OVERWRITE)
    return {("wrong_count", manifest.key)}


async def replaced(store: Store, base: Generation, made: UnitManifest) -> None:
    """A unit of the hour, and the generation that says what it has."""
    units = tuple(UnitRef.of_manifest(made) if each.unit_id == made.unit.id else each for each in base.units)
    await store.put(made.key, made.encode(), OVERWRITE)
    await store.put(base.key, replace(base, units=units).encode(), OVERWRITE)


async def rewritten(store: Store, table: Table, change: Callable[[ChunkRef, pa.Table], pa.Table]) -> str:
    """A chunk of the first unit with other rows; everything else fits."""
    base = await an_hour(store)
    manifest = await first_unit(store, base)
    ref = next(each for each in manifest.chunks if each.table is table)
    body = chunk.to_parquet(change(ref, pq.read_table(pa.BufferReader((await store.get(ref.key)).body))))
    await store.put(ref.key, body, OVERWRITE)
    lying = replace(ref, size=len(body), crc32=zlib.crc32(body))
    chunks = tuple(lying if each == ref else each for each in manifest.chunks)
    await replaced(store, base, replace(manifest, chunks=chunks))
    return ref.key


@fault(deep=True)
async def rows_that_count_twice(store: Store) -> Expected:
    """Right inputs, right records, right checksums; the rows have every sample twice."""

    def doubled(ref: ChunkRef, table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("count")
        return table.set_column(place, table.schema.field(place), pc.multiply(table.column(place), 2))

    return {("wrong_rows", await rewritten(store, Table.ROLLUP, doubled))}


@fault(deep=True)
async def index_that_leads_elsewhere(store: Store) -> Expected:
    """An index, right in itself, of a unit that was made from other batches."""

    def elsewhere(ref: ChunkRef, table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index("batches")
        ghost = pa.array([["f" * 64]] * table.num_rows, table.schema.field(place).type)
        return table.set_column(place, table.schema.field(place), ghost)

    key = await rewritten(store, Table.WORDS, elsewhere)
    return {("wrong_rows", key)}


@fault()
async def unit_that_could_not_read_a_batch(store: Store) -> Expected:
    base = await an_hour(store)
    rows = await listing.of_hour(store, base.hour)
    counted = sum(row.records for row in rows[1:])
    manifest = await first_unit(store, base)
    made = replace(manifest, records=counted, repeated=0, unreadable=(rows[0].manifest_id,))
    await replaced(store, base, made)
    return {("unreadable_input", made.key)}


@fault()
async def generation_that_differs(store: Store) -> Expected:
    base = await an_hour(store)
    units = (replace(base.units[0], unreadable=("f" * 64,)), *base.units[1:])
    await store.put(base.key, replace(base, units=units).encode(), OVERWRITE)
    return {("generation_differs", base.key)}


async def without_its_listing(store: Store, rule: str) -> Expected:
    """What its batches are is not known any more, so units that count them count what is not listed."""
    base = await an_hour(store)
    key = (await listing.listings(store, base.hour))[0]
    await {"corrupt_listing": cut, "missing_listing": gone}[rule](store, key)
    return {(rule, key), *(("wrong_input", layout.unit_key(base.hour, unit.unit_id)) for unit in base.units)}


@fault()
async def truncated_listing(store: Store) -> Expected:
    return await without_its_listing(store, "corrupt_listing")


@fault()
async def missing_listing(store: Store) -> Expected:
    return await without_its_listing(store, "missing_listing")


@fault()
async def listing_that_nobody_derives_from(store: Store) -> Expected:
    """A reconciler that died between its listing and its mark, and a checkpoint that was set by hand."""
    base = await an_hour(store)
    ident = await listing.write(store, base.hour, (await listing.of_hour(store, base.hour))[:1])
    return {("not_due", layout.batches_key(base.hour, ident))}


async def seen_until(store: Store, newest_ns: int) -> Expected:
    """A checkpoint that is ahead: what comes between is passed over."""
    document = codec.decode((await store.get(ingest.RECONCILED)).body, key="")
    await rewrite(store, ingest.RECONCILED, position={**document["position"], "newest_ns": newest_ns})
    return {("checkpoint_ahead", ingest.RECONCILED)}


@fault()
async def checkpoint_ahead_of_every_reference(store: Store) -> Expected:
    listed = [entry.modified_ns async for page in store.list(ingest.ACCEPTED_BY_TIME) for entry in page.entries]
    return await seen_until(store, max(listed) + 10**9)


@fault()
async def checkpoint_ahead_of_the_clock(store: Store) -> Expected:
    return await seen_until(store, 4 * 10**18)


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
