"""The kernels of ``derive``: they receive rows of batches, or of chunks of a day, unit by unit and in order, and make
the units. The bytes are read here, in the task; nothing but the rows of one unit and the records of one share of its
agents is held.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from holdfast.base.codec import Document
from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.pipeline import due
from holdfast.pipeline.engine.protocol import grouped
from holdfast.pipeline.units import Known, Made, Place, Plan, make, make_day, plan_unit
from holdfast.telemetry.accept import layout
from holdfast.telemetry.batches import BatchReader
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Input, Kind, Unit, UnitManifest, read_generation
from holdfast.telemetry.rollup.shared_numbers import find_other_hours, hours_of

NUMBERS = (
    *("made", "inputs", "records", "repeated", "doubtful", "unreadable", "chunks", "rows", "read_bytes", "wrote_bytes"),
)
UNITS = pa.schema(
    [
        *(("hour", pa.int64()), ("bucket", pa.int64()), ("outcome", pa.string()), ("unit_id", pa.string())),
        ("key", pa.string()),
        *((name, pa.int64()) for name in NUMBERS),
    ]
)
"""``outcome``: ``unit``; ``lost``, for an input that cannot be read; ``stale``, for a day that is to be planned again.
"""
LATE = pa.schema([("hour", pa.int64()), ("key", pa.string()), ("records", pa.int64())])
DAY_WORK = pa.schema(
    [
        *((name, pa.int64()) for name in ("hour", "base", "buckets", "epoch", "bucket", "unit_epoch", "rows")),
        *((name, pa.string()) for name in ("version", "input_id", "key", "listing")),
    ]
)
"""A row per input of a unit and chunk of it (``key`` is empty if it has none), and one per listing of the day."""
COLUMNS = tuple(each.name for each in fields(Listed))


@dataclass(frozen=True)
class MakeUnits:
    """Units of hours, from rows of batches."""

    windows: Windows
    limits: Limits
    schema: pa.Schema = UNITS

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for own in grouped(given, ("hour", "bucket")):
            first = own[0]
            place = Place(Kind.ROLLUP, first["hour"], first["base"], first["buckets"], first["version"], first["epoch"])
            known = None
            if first["unit_id"] is not None:
                known = Known(first["unit_id"], first["unit_epoch"], first["unreadable"])
            batches = [_listed(row) for row in own]
            found = await find_other_hours(store, place.hour, batches, BatchReader(store, self.limits).load_row)
            planned = await plan_unit(store, place, first["bucket"], batches, known, found)
            made = Made(UnitManifest(planned.unit))
            if not planned.is_current:
                made = await make(store, planned, self.windows, self.limits)
            lost = set(made.manifest.unreadable) if made.made else set()
            keys = [layout.accepted_key(row.identity) for row in batches if row.manifest_id in lost]
            rows = [_row(made, skipped=planned.is_current), *(_row(made, lost=key) for key in keys)]
            yield pa.RecordBatch.from_pylist(rows, UNITS)


@dataclass(frozen=True)
class MakeDays:
    """Units of days, from rows of chunks."""

    windows: Windows
    schema: pa.Schema = UNITS

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for own in grouped(given, ("hour", "bucket")):
            first = own[0]
            inputs = tuple(Input(ident, ident) for ident in {row["input_id"] for row in own})
            numbers = (first["hour"], first["buckets"], first["bucket"])
            unit = Unit(Kind.DAILY, *numbers, inputs, first["version"], first["unit_epoch"])
            sources = [(row["input_id"], row["key"]) for row in own if row["key"]]
            made = await make_day(store, unit, sources, self.windows)
            yield pa.RecordBatch.from_pylist([_row(made)], UNITS)


@dataclass(frozen=True)
class TooLate:
    """Batches that are listed in a closed hour and not counted by it. The other hours of these batches, and of batches
    that share numbers with them, become due again, because they may have been derived before the hour was closed.
    """

    limits: Limits
    schema: pa.Schema = LATE

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for own in grouped(given, ("hour",)):
            hour = own[0]["hour"]
            batches = [_listed(row) for row in own]
            current = await read_generation(store, Kind.ROLLUP, hour)
            counted: set[str] = set()
            for unit in () if current is None else current.units:
                manifest = UnitManifest.read(await store.get(derived.unit_key(hour, unit.unit_id)))
                counted |= {each.id for each in manifest.unit.inputs}
            late = [row for row in batches if row.manifest_id not in counted]
            for row in late:
                await self._mark_others(store, hour, row, batches)
            rows = [
                {"hour": hour, "key": layout.accepted_key(row.identity), "records": row.records}
                for row in late
                if row.records
            ]
            yield pa.RecordBatch.from_pylist(rows, LATE)

    async def _mark_others(self, store: Store, hour: int, late: Listed, batches: Sequence[Listed]) -> None:
        load = BatchReader(store, self.limits).load_row
        partners = [row for row in batches if late.identity.overlaps(row.identity)]
        hours = {each for row in partners for each in await hours_of(store, row, load)} - {hour}
        ident = hashlib.sha256(f"too late {hour} {late.manifest_id}".encode()).hexdigest()
        for each in sorted(hours):
            await due.mark(store, ambient_of(store), Kind.ROLLUP, each, ident)


def day_rows(plan: Plan) -> Iterator[Document]:
    place = plan.place
    own = {"hour": place.hour, "base": place.base, "buckets": place.buckets, "epoch": place.epoch}
    for each in plan.units:
        unit = {**own, "version": place.version, "bucket": each.unit.bucket, "unit_epoch": each.unit.epoch}
        empty = {one.id for one in each.unit.inputs} - {ident for ident, _, _ in each.sources}
        for ident, key, rows in [*each.sources, *((ident, "", 0) for ident in sorted(empty))]:
            yield {**unit, "rows": 1 + rows, "input_id": ident, "key": key}
    for listing in plan.listings or [""]:
        yield {**own, "version": place.version, "bucket": -1, "listing": listing}


def _listed(row: dict[str, Any]) -> Listed:
    return Listed(**{name: row[name] for name in COLUMNS})


def _row(made: Made, *, lost: str = "", skipped: bool = False) -> Document:
    manifest = made.manifest
    unit = manifest.unit
    own = {"hour": unit.hour, "bucket": unit.bucket, "unit_id": unit.id, "key": lost, **dict.fromkeys(NUMBERS, 0)}
    if lost or skipped or made.stale:
        outcome = "lost" if lost else "stale" if made.stale else "unit"
        return {**own, "outcome": outcome}
    return {
        **own,
        "outcome": "unit",
        "made": int(made.made),
        "inputs": len(unit.inputs),
        "records": manifest.records,
        "repeated": manifest.repeated,
        "doubtful": manifest.doubtful,
        "unreadable": len(manifest.unreadable),
        "chunks": len(manifest.chunks),
        "rows": sum(ref.rows for ref in manifest.chunks),
        "read_bytes": made.read_bytes,
        "wrote_bytes": made.wrote_bytes,
    }
