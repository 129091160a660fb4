"""Chunks, units and generations of derived data that later generations have superseded.

Names of derived objects follow from their inputs, and creation is conditional on names: whoever deletes one must know
that nobody comes to name it again. A driver may have planned before, and publish after; a task may find a unit that is
there, call it done, and lose it. So nothing is removed on what was read alone.

The rule: *list, fence, remove*. Everything of the hour is listed. Then the next generation is created with the units of
the current one and an epoch of its own (see ``metrics.manifest.Generation``): a **fence**. If somebody else gets that
number, the hour is left alone. Once the fence stands, plans from before it cannot be published, and plans from after it
give their new units other names. So what was listed before the fence, and is not named by it, is named by nobody ever
again, and may go at any time, by anybody, twice.

Readers may hold an older generation: what they use is left for ``grace_ns`` after it was superseded, by the store's
clock, and who comes later still finds it missing and begins anew (``telemetry.query.known.resolved``).

A unit or chunk of a kind that has no generation in its hour is never touched: nothing could fence its driver. Listings
of batches are never deleted: plans rest on that.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Entry, Lost, Store
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import Sweep
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Generation, Kind, UnitManifest, current

SUPERSEDED = "a later generation has taken its place"
UNNAMED = "no generation names it"
YOUNG = "superseded a short time ago"
OVERTAKEN = "a driver published in the meantime"
UNFENCED = "its kind has no generation in this hour"
UNREADABLE = "it cannot be read"


@dataclass
class HourFound:
    """What lies in one hour."""

    generations: dict[str, Entry] = field(default_factory=dict)
    units: dict[str, Entry] = field(default_factory=dict)
    chunks: dict[str, Entry] = field(default_factory=dict)


async def shards(store: Store) -> list[str]:
    """Days, as they stand in keys."""
    found: list[str] = []
    async for page in store.list(layout.MANIFESTS, delimiter=True):
        found += [folder.removeprefix(layout.MANIFESTS).rstrip("/") for folder in page.folders]
    return found


async def sweep(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    for hour, found in sorted((await listed(store, ask.shard)).items()):
        out.tally.looked += len(found.generations) + len(found.units) + len(found.chunks)
        try:
            await _sweep_hour(store, ambient, hour, found, ask, out)
        except (Corrupt, Incompatible):  # what is current is not known, so nothing of the hour goes
            out.keep(UNREADABLE, layout.manifest_folder(hour))
        if out.spent:
            out.tally.more = True
            return


async def listed(store: Store, day: str) -> dict[int, HourFound]:
    """Everything derived of one day, by hour."""
    hours: dict[int, HourFound] = defaultdict(HourFound)
    async for entry in _entries(store, [f"{layout.MANIFESTS}{day}/"]):
        hour = layout.hour_in(entry.key)
        if hour is not None and layout.generation_in(entry.key) is not None:
            hours[hour].generations[entry.key] = entry
        elif hour is not None and layout.unit_in(entry.key) is not None:
            hours[hour].units[entry.key] = entry
    windows: list[str] = []
    async for page in store.list(layout.ROLLUP, delimiter=True):
        windows += [f"{folder}{day}/" for folder in page.folders]
    async for entry in _entries(store, [*windows, f"{layout.INDEX}{day}/"]):
        hour = layout.hour_in(entry.key)
        if hour is not None and kind_of_chunk(entry.key) is not None:
            hours[hour].chunks[entry.key] = entry
    return dict(hours)


async def _sweep_hour(store: Store, ambient: Ambient, hour: int, found: HourFound, ask: Ask, out: Sweep) -> None:
    standing = await _currents(store, hour, found.generations)
    settled_ns = ask.now_ns - ask.options.grace_ns
    garbage: dict[Kind, list[tuple[Entry, str]]] = defaultdict(list)
    for entry, kind, why in await _candidates(store, hour, found, standing):
        if kind is None or kind not in standing:
            out.keep(UNREADABLE if kind is None else UNFENCED, entry.key)
        elif entry.modified_ns > settled_ns or standing[kind][1] > settled_ns:
            out.keep(YOUNG, entry.key)
        else:
            garbage[kind].append((entry, why))
    for kind, doomed in garbage.items():
        # A superseded generation needs none: what counts is the highest. A fence supersedes one, which would have the
        # next run make another, for ever.
        fenced = any(why != SUPERSEDED for _, why in doomed)
        if ask.apply and fenced and not await fence(store, ambient, standing[kind][0]):
            for entry, _ in doomed:
                out.keep(OVERTAKEN, entry.key)
            continue
        for entry, why in doomed:
            if not await out.remove(entry.key, entry.size, why):
                return


async def _currents(store: Store, hour: int, keys: Iterable[str]) -> dict[Kind, tuple[Generation, int]]:
    """The current generation of each kind, and when it became that."""
    found: dict[Kind, tuple[Generation, int]] = {}
    for kind in Kind:
        key = current(keys, kind).get(hour)
        stored = await store.find(key) if key is not None else None
        if stored is not None:
            found[kind] = (Generation.read(stored), stored.modified_ns)
    return found


async def _candidates(
    store: Store, hour: int, found: HourFound, standing: dict[Kind, tuple[Generation, int]]
) -> list[tuple[Entry, Kind | None, str]]:
    """What no current generation names, with its kind; None if that cannot be told."""
    named_units = {each.unit_id for generation, _ in standing.values() for each in generation.units}
    named_chunks = {ref.key for generation, _ in standing.values() for each in generation.units for ref in each.chunks}
    candidates: list[tuple[Entry, Kind | None, str]] = []
    for key, entry in found.generations.items():
        name, number = layout.generation_in(key) or ("", 0)
        kind = Kind(name) if name in list(Kind) else None
        if kind is not None and kind in standing and number < standing[kind][0].number:
            candidates.append((entry, kind, SUPERSEDED))
    for key, entry in found.units.items():
        if layout.unit_in(key) not in named_units:
            candidates.append((entry, await _kind_of_unit(store, key), UNNAMED))
    for key, entry in found.chunks.items():
        if key not in named_chunks:
            candidates.append((entry, kind_of_chunk(key), UNNAMED))
    return candidates


async def fence(store: Store, ambient: Ambient, generation: Generation) -> bool:
    """Create the fence after this generation. False if the number is taken: then nothing is known."""
    made = generation.fence(ambient.ids.write_id())
    return not isinstance(await store.put(made.key, made.encode(), CREATE), Lost)


def kind_of_chunk(key: str) -> Kind | None:
    """Which kind of generation names such a chunk; None if it is none of ours."""
    if key.startswith(layout.INDEX):
        return Kind.INDEX
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


async def _entries(store: Store, prefixes: Iterable[str]) -> AsyncIterator[Entry]:
    for prefix in prefixes:
        async for page in store.list(prefix):
            for entry in page.entries:
                yield entry
