"""Chunks, units and generations of derived data that later generations have superseded; and windows of rollups past
their retention.

Names of derived objects follow from their inputs, and creation is conditional on names: an object may be deleted only
when nothing can come to name it again. A driver may have planned before, and publish after; a task may find a unit
that is there, call it done, and lose it. So nothing is removed on what was read alone.

The rule: *list, fence, remove*. Everything of the hour was listed. Then the next generation is created with the units
of the current one and an epoch of its own (see ``rollup.manifest.Generation``): a **fence**. If another process gets
that number, the hour is left alone. Once the fence exists, plans from before it cannot be published, and plans from
after it give their new units other names. So what was listed before the fence, and is not named by it, is never named
again, and may go at any time, twice.

Readers may hold an older generation: what they use is left for ``grace_ns`` after it was superseded, by the store's
clock, and a reader that comes later still finds it missing and restarts (``query.sources.retry_superseded``).

A unit or chunk of a kind that has no generation in its hour is never touched: nothing could fence its driver. Listings
of batches are never deleted: plans rest on that.

A window past its retention is left out by the next generation of its hour. That generation is the record of it
(``expired``), and a fence: a later generation leaves the window out too. Its chunks are superseded from then on. The
largest window of an hour always stays: days are made from it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.objects.store import CREATE, Entry, Lost, Store
from holdfast.pipeline.gc.sweep import Sweep
from holdfast.pipeline.units import DAY_HOURS
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import (
    ChunkRef,
    Generation,
    Kind,
    Table,
    UnitManifest,
    current_generations,
    read_generation,
)

SUPERSEDED = "a later generation has taken its place"
UNNAMED = "no generation names it"
YOUNG = "superseded a short time ago"
OVERTAKEN = "a driver published in the meantime"
UNFENCED = "its kind has no generation in this hour"
UNREADABLE = "it cannot be read"
NEEDED = "days are made from the largest window of an hour"

Standing = dict[Kind, tuple[Generation, int]]
"""The current generation of each kind, and since when it is current."""


async def days(store: Store) -> list[str]:
    """Days of derived data, as written in keys."""
    found: list[str] = []
    async for page in store.list(layout.MANIFESTS, delimiter=True):
        found += [folder.removeprefix(layout.MANIFESTS).rstrip("/") for folder in page.folders]
    return found


async def named_by(store: Store, key: str) -> list[str]:
    """The keys that a generation refers to, and its own; nothing if it is gone or cannot be read."""
    stored = await store.find(key)
    try:
        generation = None if stored is None else Generation.read(stored)
    except (Corrupt, Incompatible):
        return []
    return [] if generation is None else [key, *_names(generation)]


def _names(generation: Generation) -> list[str]:
    units = generation.units
    return [
        *(layout.unit_key(generation.hour, unit.unit_id) for unit in units),
        *(ref.key for unit in units for ref in unit.chunks),
    ]


async def sweep(listed: Sequence[Entry], out: Sweep) -> None:
    """Remove the listed objects of one hour that no current generation refers to."""
    hour = layout.hour_in(listed[0].key)
    if hour is None:
        return
    try:
        standing = await _standing(out.store, hour)
        candidates = await _candidates(out.store, listed, standing)
    except (Corrupt, Incompatible):  # the current generation is not known, so nothing of the hour is removed
        out.keep(UNREADABLE, layout.manifest_folder(hour))
        return
    settled_ns = out.ask.now_ns - out.options.grace_ns
    garbage: dict[Kind, list[tuple[Entry, str]]] = defaultdict(list)
    for entry, kind, why in candidates:
        if kind is None or kind not in standing:
            out.keep(UNREADABLE if kind is None else UNFENCED, entry.key)
        elif entry.modified_ns > settled_ns or standing[kind][1] > settled_ns:
            out.keep(YOUNG, entry.key)
        else:
            garbage[kind].append((entry, why))
    for kind, doomed in garbage.items():
        # Superseded generations need no fence: what counts is the highest number. And a fence supersedes one, so the
        # next run would make another for its sake, again and again.
        fenced = any(why != SUPERSEDED for _, why in doomed)
        if out.ask.apply and fenced and not await fence(standing[kind][0], out):
            for entry, _ in doomed:
                out.keep(OVERTAKEN, entry.key)
            continue
        for entry, why in doomed:
            if not await out.remove(entry.key, entry.size, why):
                return


async def _standing(store: Store, hour: int) -> Standing:
    keys = [key async for key in store.keys(layout.manifest_folder(hour))]
    found: Standing = {}
    for kind in Kind:
        key = current_generations(keys, kind).get(hour)
        stored = await store.find(key) if key is not None else None
        if stored is not None:
            found[kind] = (Generation.read(stored), stored.modified_ns)
    return found


async def _candidates(
    store: Store, listed: Sequence[Entry], standing: Standing
) -> list[tuple[Entry, Kind | None, str]]:
    """The objects that no current generation refers to, with their kind (None if unknown). Foreign objects are left
    out."""
    named = {name for generation, _ in standing.values() for name in _names(generation)}
    found: list[tuple[Entry, Kind | None, str]] = []
    for entry in listed:
        key = entry.key
        if (numbered := layout.generation_in(key)) is not None:
            kind = Kind(numbered[0]) if numbered[0] in list(Kind) else None
            if kind in standing and numbered[1] < standing[kind][0].number:
                found.append((entry, kind, SUPERSEDED))
        elif key in named:
            continue
        elif layout.unit_in(key) is not None:
            found.append((entry, await _kind_of_unit(store, key), UNNAMED))
        elif (kind := kind_of_chunk(key)) is not None:
            found.append((entry, kind, UNNAMED))
    return found


async def fence(generation: Generation, out: Sweep) -> bool:
    """Create the fence after this generation. False if the number is taken: then nothing may be removed."""
    made = generation.fence(out.ambient.ids.write_id())
    return not isinstance(await out.store.put(made.key, made.encode(), CREATE), Lost)


def kind_of_chunk(key: str) -> Kind | None:
    """The kind of generation that refers to such a chunk; None for a foreign object."""
    if key.startswith(layout.INDEX):
        return Kind.ROLLUP
    window = layout.window_in(key)
    return None if window is None else Kind.DAILY if window > layout.HOUR_NS else Kind.ROLLUP


async def _kind_of_unit(store: Store, key: str) -> Kind | None:
    stored = await store.find(key)
    if stored is None:
        return None
    try:
        return UnitManifest.read(stored).unit.kind
    except (Corrupt, Incompatible):
        return None


# --- windows past their retention ---


async def expire_windows(day: str, out: Sweep) -> None:
    hours = sorted(
        {hour async for key in out.store.keys(f"{layout.MANIFESTS}{day}/") if (hour := layout.hour_in(key)) is not None}
    )
    for hour in hours:
        for kind in (Kind.ROLLUP, Kind.DAILY):
            length = DAY_HOURS if kind is Kind.DAILY else 1
            end_ns = layout.hour_start_ns(hour + length)
            due = {name for name, age_ns in out.options.rollups_ns.items() if end_ns + age_ns <= out.ask.now_ns}
            try:
                current = await read_generation(out.store, kind, hour) if due else None
            except (Corrupt, Incompatible):
                out.keep(UNREADABLE, layout.manifest_folder(hour))
                continue
            if current is not None:
                await _expire(current, due, out)
            if out.exhausted():
                return


async def _expire(current: Generation, due: set[str], out: Sweep) -> None:
    out.looked()
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
        current.fence(out.ambient.ids.write_id()),
        units=tuple(units),
        expired=tuple(sorted({*current.expired, *windows})),
    )
    if out.ask.apply and isinstance(await out.store.put(made.key, made.encode(), CREATE), Lost):
        out.keep(OVERTAKEN, current.key)
        return
    for window in sorted(windows):
        out.did(f"window {window} let go", made.key)


def _is_of(ref: ChunkRef, windows: set[str]) -> bool:
    return ref.table is Table.ROLLUP and layout.window_name(ref.window_ns) in windows
