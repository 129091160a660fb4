"""The audit of derived data, a day at a time; and whether accepted batches are listed in the hours of their records."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.aio import blocking
from holdfast.base.audit import Look, Tally
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, NotFound
from holdfast.objects.store import Store
from holdfast.pipeline.units import Made, Planned, derive
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.reconcile import shares
from holdfast.telemetry.frame import Batch, Limits
from holdfast.telemetry.rollup import chunk, index, layout, listing
from holdfast.telemetry.rollup.audit import RULES, Hour, HourCheck
from holdfast.telemetry.rollup.kernel import Chunk, version_of
from holdfast.telemetry.rollup.layout import Windows, hour_name
from holdfast.telemetry.rollup.manifest import ChunkRef, Kind, Table, UnitManifest, read_generation

HOURS_KEPT = 16
SHORT = 12
"""Bytes of a manifest id that are compared."""


@dataclass(slots=True)
class Desk:
    """The arguments of every check."""

    store: Store
    look: Look
    limits: Limits
    windows: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)

    async def sure(self, look: Callable[[Tally], Awaitable[object]]) -> None:
        """Run a check twice, and keep the findings that both runs report: a writer may have been active during the
        first."""
        tally = Tally()
        await look(tally)
        if tally.findings:
            again = Tally()
            await look(again)
            again.keep(tally.findings)
            tally = again
        self.tally.take(tally)


async def days(store: Store) -> list[str]:
    """Days with derived data or listings, as written in keys."""
    found: set[str] = set()
    for prefix in (layout.BATCHES_BY_HOUR, layout.MANIFESTS):
        async for page in store.list(prefix, delimiter=True):
            found |= {folder.removeprefix(prefix) for folder in page.folders}
    return sorted(found)


async def check_day(desk: Desk, day: str) -> None:
    windows = Windows.of(desk.windows)
    sizes = set(windows.all) | {size async for size in _windows(desk.store)}
    check = HourCheck(desk.store, desk.look, sizes)
    for hour in [hour async for hour in _hours(desk.store, day)]:

        async def one(tally: Tally, hour: int = hour) -> None:
            found = await check.check(hour, tally)
            if desk.look.deep:
                for manifest in found.units:
                    await _again(desk, found, manifest, windows, tally)

        await desk.sure(one)


async def _hours(store: Store, day: str) -> AsyncIterator[int]:
    found: set[int] = set()
    for prefix in (layout.BATCHES_BY_HOUR, layout.MANIFESTS):
        async for page in store.list(f"{prefix}{day}", delimiter=True):
            found |= {hour for hour in map(layout.hour_in, page.folders) if hour is not None}
    for hour in sorted(found):
        yield hour


async def _windows(store: Store) -> AsyncIterator[int]:
    """Windows that rollups exist in: those that are set now, and earlier ones."""
    async for page in store.list(layout.ROLLUP, delimiter=True):
        for folder in page.folders:
            try:
                yield layout.window_of(folder.removeprefix(f"{layout.ROLLUP}window=").rstrip("/"))
            except HoldfastError:
                continue  # a foreign folder


# --- deep: derived again ---


async def _again(desk: Desk, found: Hour, manifest: UnitManifest, windows: Windows, tally: Tally) -> None:
    """The same batches give the same rows; only the Parquet encoding may differ."""
    unit = manifest.unit
    rows = [found.rows.get(each.id) for each in unit.inputs]
    if unit.kind is Kind.DAILY or unit.closed or unit.version != version_of(unit.kind, windows) or None in rows:
        tally.checked["units not derived again"] += 1
        return
    planned = Planned(unit, [row for row in rows if row is not None])
    found_again, unreadable = await derive(desk.store, planned, windows, desk.limits, Made(manifest))
    tally.checked["units derived again"] += 1
    if tuple(sorted(unreadable)) != manifest.unreadable:
        return  # the batches are not what they were, which is a finding of their own
    if (found_again.records, found_again.repeated) != (manifest.records, manifest.repeated):
        detail = f"its batches have {found_again.records} records, and it counted {manifest.records}"
        tally.find(RULES["wrong_count"], manifest.key, detail)
    made = {each.ref.key: each for each in found_again.chunks()}
    for ref in manifest.chunks:
        detail = await _differs(desk.store, ref, made.pop(ref.key, None))
        if detail:
            tally.find(RULES["wrong_rows"], ref.key, detail)
    for key in made:
        tally.find(RULES["wrong_rows"], key, f"{manifest.key} ought to name it")


async def _differs(store: Store, ref: ChunkRef, made: Chunk | None) -> str:
    if made is None:
        return "deriving its batches gives no such chunk"
    if ref.crc32 == made.ref.crc32 and ref.size == made.ref.size:
        return ""
    try:
        there = (await store.get(ref.key)).body
        same = await blocking(_table, ref, there) == await blocking(_table, ref, made.body)
    except (NotFound, Corrupt, Incompatible):
        return ""  # a finding of the chunk itself
    return "" if same else "its rows are not those that its batches give"


def _table(ref: ChunkRef, body: bytes) -> Any:
    if ref.table is Table.ROLLUP:
        return chunk.table_of(chunk.decode(body, key=ref.key))
    return index.decode(ref.table, body, key=ref.key)


# --- batches against listings ---


class Hours:
    """Which batches are known to matter to an hour; the latest few hours are kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[int, frozenset[bytes]] = OrderedDict()

    async def knows(self, hour: int, manifest_id: str) -> bool:
        """What the current generation counts is known from its units, one GET for each; else all listings are read."""
        short = bytes.fromhex(manifest_id)[:SHORT]
        for read in (self._kept_of, self._counted, self._listed):
            known = await read(hour)
            if known is not None and short in known:
                self._kept[hour] = known
                self._kept.move_to_end(hour)
                while len(self._kept) > HOURS_KEPT:
                    self._kept.popitem(last=False)
                return True
        return False

    async def _kept_of(self, hour: int) -> frozenset[bytes] | None:
        return self._kept.get(hour)

    async def _counted(self, hour: int) -> frozenset[bytes] | None:
        found: set[str] = set()
        try:
            generation = await read_generation(self._store, Kind.ROLLUP, hour)
            for unit in generation.units if generation is not None else ():
                manifest = UnitManifest.read(await self._store.get(layout.unit_key(hour, unit.unit_id)))
                found |= {each.id for each in manifest.unit.inputs}
        except (NotFound, Corrupt, Incompatible):
            return None  # a finding of the hour
        return _short(found)

    async def _listed(self, hour: int) -> frozenset[bytes] | None:
        found: set[str] = set()
        for ident in listing.ids(await listing.listings(self._store, hour)):
            try:
                found |= {row.manifest_id for row in await listing.read(self._store, [layout.batches_key(hour, ident)])}
            except (NotFound, Corrupt):
                continue  # a finding of the hour
        return _short(found)


def _short(manifest_ids: Iterable[str]) -> frozenset[bytes]:
    return frozenset(bytes.fromhex(each)[:SHORT] for each in manifest_ids)


async def check_listed(hours: Hours, manifest: AcceptedManifest, batch: Batch, tally: Tally) -> None:
    """Check that every hour in which a reconciled batch has records lists it."""
    own, _ = shares(batch, manifest.limits)
    for share in own:
        tally.checked["batches in hours"] += 1
        if not await hours.knows(share.hour, manifest.identity.manifest_id):
            detail = f"it has {share.records} records in {hour_name(share.hour)}, which does not list it"
            tally.find(RULES["unlisted_batch"], manifest.key, detail)
