"""Windows of rollups past their retention: the next generation of an hour no longer names their chunks.

That generation is the record of it (``expired``), and a fence: a later generation of the hour leaves these windows out
too. The chunks are garbage from then on, and ``derived`` removes them after its grace period. The largest window of an
hour always stays: days are made from it.
"""

from dataclasses import replace

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.pipeline.gc.derived import OVERTAKEN, UNREADABLE
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import Sweep
from holdfast.pipeline.units import DAY_HOURS
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import ChunkRef, Generation, Kind, Table, read_generation

NEEDED = "days are made from the largest window of an hour"


async def expire(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    hours = sorted(
        {
            hour
            async for key in store.keys(f"{layout.MANIFESTS}{ask.shard}/")
            if (hour := layout.hour_in(key)) is not None
        }
    )
    for hour in hours:
        for kind in (Kind.ROLLUP, Kind.DAILY):
            length = DAY_HOURS if kind is Kind.DAILY else 1
            end_ns = layout.hour_start_ns(hour + length)
            due = {name for name, age_ns in ask.options.rollups_ns.items() if end_ns + age_ns <= ask.now_ns}
            try:
                current = await read_generation(store, kind, hour) if due else None
            except (Corrupt, Incompatible):
                out.keep(UNREADABLE, layout.manifest_folder(hour))
                continue
            if current is not None:
                await _expire(store, ambient, current, due, ask, out)
            if out.spent:
                out.tally.more = True
                return


async def _expire(store: Store, ambient: Ambient, current: Generation, due: set[str], ask: Ask, out: Sweep) -> None:
    out.tally.looked += 1
    there = {ref.window_ns for unit in current.units for ref in unit.chunks if ref.table is Table.ROLLUP}
    windows = {layout.window_name(window) for window in there} & due
    if current.kind is Kind.ROLLUP and there and (largest := layout.window_name(max(there))) in windows:
        windows.discard(largest)
        out.keep(NEEDED, current.key)
    if not windows:
        return
    units = [
        replace(unit, chunks=tuple(ref for ref in unit.chunks if not _is_of(ref, windows))) for unit in current.units
    ]
    made = replace(
        current.fence(ambient.ids.write_id()),
        units=tuple(units),
        expired=tuple(sorted({*current.expired, *windows})),
    )
    if ask.apply and isinstance(await store.put(made.key, made.encode(), CREATE), Lost):
        out.keep(OVERTAKEN, current.key)
        return
    for window in sorted(windows):
        out.did(f"window {window} let go", made.key)


def _is_of(ref: ChunkRef, windows: set[str]) -> bool:
    return ref.table is Table.ROLLUP and layout.window_name(ref.window_ns) in windows
