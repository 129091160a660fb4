"""One hour of derived data against the listings that it was made from. Reads alone.

Requests of an hour: one LIST each for manifests, listings, the index and every window; one GET for each listing,
generation and unit. Chunks are known from the listings, with their lengths; the bytes of some, or of all, are read.

Every object is created before the objects that refer to it, so references can be followed while others derive. Objects
that were superseded meanwhile are looked up again.

Errors: whatever is wrong with the hour is a finding; only a store that does not answer fails a look.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.audit import Look, Severity, Tally, rules
from holdfast.base.errors import Corrupt, HoldfastError, NotFound
from holdfast.objects.store import Entry, Store
from holdfast.telemetry.rollup import index, layout, listing
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import (
    ChunkRef,
    Current,
    Generation,
    Kind,
    Table,
    UnitManifest,
    bucket_of,
    current,
)

_ANEW = "have the hour derived anew: docs/operate/pipeline.md says how"
_FULL = "holdfast pipeline run --full: it lists every batch again"
_AGAIN = "remove it, then holdfast pipeline run --full: it lists the batches again"

RULES = {
    **rules(
        Severity.ERROR,
        corrupt_listing=("a listing of batches cannot be read, or is not the one that its name says", _AGAIN),
        missing_listing=("a generation was made from a listing that is not there", _FULL),
        unlisted_batch=(
            "an accepted batch has records in an hour whose listings do not name it",
            "holdfast pipeline run --full",
        ),
        not_due=(
            "nothing derived covers a listing, and nothing says that it is due",
            "holdfast pipeline run --since HOUR",
        ),
        corrupt_generation=("a generation cannot be read, or is that of another hour", _ANEW),
        corrupt_unit=("the manifest of a unit cannot be read, or its inputs do not give its name", _ANEW),
        missing_unit=("the current generation names a unit whose manifest is not there", _ANEW),
        generation_differs=("the current generation says something else than the manifest of its unit", _ANEW),
        counted_twice=("a batch is counted in two units of one hour", _ANEW),
        left_out=("a unit leaves out a batch that its generation claims to cover", _ANEW),
        unlisted_input=("a unit counts a batch that no listing of its hour names", _ANEW),
        wrong_input=("a unit counts other bytes than those that were listed, or in another agent's bucket", _ANEW),
        wrong_count=("a unit has counted more or fewer records than its batches have", _ANEW),
        missing_chunk=("the current generation names a chunk that is not there", _ANEW),
        corrupt_chunk=("a chunk's bytes are not those that were written", _ANEW),
        dangling_index=("an index names batches that its unit was not made from", _ANEW),
        wrong_rows=("deriving a unit again from its batches gives other rows", _ANEW),
        corrupt_checkpoint=("the reconciler's checkpoint cannot be read", "remove it, then holdfast pipeline run"),
        checkpoint_ahead=(
            "the reconciler's checkpoint is ahead of what it can have seen: it passes batches over",
            "remove it, then holdfast pipeline run --full",
        ),
    ),
    **rules(
        Severity.WARNING,
        unreadable_input=(
            "a unit was made without batches that it could not read",
            "restore the batches, then have the hour derived anew",
        ),
        foreign_object=("an object in a prefix of ours whose name is none of ours", "find out who put it there"),
    ),
}


AT_ONCE = 16
DAY_HOURS = 24
DUE = "meta/pipeline/due/"
"""Where the pipeline marks hours that must be derived."""


@dataclass(slots=True)
class Hour:
    """The objects found in an hour."""

    hour: int
    manifests: dict[str, Entry] = field(default_factory=dict)
    listings: dict[str, Entry] = field(default_factory=dict)
    """By id."""
    rows: dict[str, Listed] = field(default_factory=dict)
    """By manifest id."""
    named_by: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By listing, the manifest ids in it."""
    chunks: dict[str, int] = field(default_factory=dict)
    """Sizes, by key."""
    named: set[str] = field(default_factory=set)
    """Chunks of current generations."""
    units: list[UnitManifest] = field(default_factory=list)
    """The units of current generations that can be read."""


@dataclass(frozen=True, slots=True)
class HourCheck:
    store: Store
    look: Look
    windows: Collection[int]
    """The windows that may exist, in nanoseconds."""

    async def check(self, hour: int, tally: Tally) -> Hour:
        found = Hour(hour)
        tally.checked["hours"] += 1
        await self._list(found, tally)
        await self._read_listings(found, tally)
        newest = {kind: current(found.manifests, kind).get(hour) for kind in Kind}
        for kind in Kind:
            key = newest[kind]
            generation = None if key is None else await self._generation(key, tally)
            if kind is not Kind.DAILY:
                if key is None or generation is not None:
                    await self._covered(found, kind, generation, tally)
            elif generation is not None:
                await self._day(found, generation, tally)
            if generation is not None:
                await self._units(found, generation, tally)
        tally.checked["chunks that nothing current names"] += len(found.chunks.keys() - found.named)
        return found

    # --- what is there ---

    async def _list(self, found: Hour, tally: Tally) -> None:
        hour = found.hour
        for entry in await self._entries(layout.manifest_folder(hour)):
            made = layout.generation_in(entry.key)
            known = layout.unit_in(entry.key) is not None or (made is not None and made[0] in {*Kind})
            if known:
                found.manifests[entry.key] = entry
            else:
                self._foreign(entry, tally)
        for entry in await self._entries(layout.batches_folder(hour)):
            ident = layout.listing_in(entry.key)
            if ident is not None:
                found.listings[ident] = entry
            else:
                self._foreign(entry, tally)
        folders = [layout.rollup_folder(window, hour) for window in sorted(self.windows)]
        for folder in (*folders, f"{layout.INDEX}{layout.hour_path(hour)}"):
            for entry in await self._entries(folder):
                if entry.key.endswith((".lmrollup.zst", ".lmindex.zst")):
                    found.chunks[entry.key] = entry.size
                else:
                    self._foreign(entry, tally)

    async def _entries(self, folder: str) -> list[Entry]:
        return [entry async for page in self.store.list(folder) for entry in page.entries]

    def _foreign(self, entry: Entry, tally: Tally) -> None:
        if self.look.judges(entry.modified_ns):
            tally.find(RULES["foreign_object"], entry.key, "its name is none of ours")

    async def _read_listings(self, found: Hour, tally: Tally) -> None:
        async def one(entry: Entry) -> tuple[str, list[Listed]]:
            ident = listing.id_in(entry.key)
            try:
                rows = listing.decode((await self.store.get(entry.key)).body, entry.key)
            except NotFound:
                return ident, []
            except Corrupt as error:
                tally.find(RULES["corrupt_listing"], entry.key, str(error))
                return ident, []
            if listing.listing_id(found.hour, rows) != ident:
                tally.find(RULES["corrupt_listing"], entry.key, "its rows are not those that its name follows from")
            return ident, rows

        said = dict(await map_bounded(found.listings.values(), one, limit=AT_ONCE))
        for ident, rows in said.items():
            found.named_by[ident] |= {row.manifest_id for row in rows}
        found.rows = {row.manifest_id: row for row in listing.union(said.values())}
        tally.checked["listings"] += len(found.listings)

    async def _generation(self, key: str, tally: Tally) -> Generation | None:
        tally.checked["generations"] += 1
        try:
            return Generation.read(await self.store.get(key))
        except HoldfastError as error:
            if isinstance(error, NotFound):
                return None
            _raise_unless_told(error)
            tally.find(RULES["corrupt_generation"], key, str(error))
            return None

    # --- covered, or due ---

    async def _covered(self, found: Hour, kind: Kind, generation: Generation | None, tally: Tally) -> None:
        covered = set(() if generation is None else generation.listings)
        for ident in sorted(covered - found.listings.keys()):
            key = layout.batches_key(found.hour, ident)
            tally.find(RULES["missing_listing"], key, f"{generation.key if generation else ''} was made from it")
        if generation is not None and generation.is_closed:
            return  # what came later is reported as too late
        for ident in sorted(found.listings.keys() - covered):
            entry = found.listings[ident]
            if self.look.judges(entry.modified_ns) and not await self._is_due(kind, found.hour, ident):
                tally.find(RULES["not_due"], entry.key, f"no {kind} covers it, and it is not marked as due")

    async def _is_due(self, kind: Kind, hour: int, ident: str | None = None) -> bool:
        folder = f"{DUE}{kind}/{_word(hour)}/"
        async for key in self.store.keys(folder):
            if ident is None or key == f"{folder}{ident}.json":
                return True
        return False

    async def _day(self, found: Hour, generation: Generation, tally: Tally) -> None:
        """Check that a day was made from the current units of its hours, or is due."""
        date = layout.hour_path(found.hour).partition("/")[0]
        keys = [entry.key for entry in await self._entries(f"{layout.MANIFESTS}{date}/")]
        wanted: set[str] = set()
        for key in current(keys, Kind.ROLLUP).values():
            try:
                wanted |= {unit.unit_id for unit in Generation.read(await self.store.get(key)).units}
            except NotFound:
                return
            except HoldfastError as error:
                _raise_unless_told(error)
                return  # reported of the hour
        made: set[str] = set()
        for unit in generation.units:
            manifest = await self._unit(generation, unit, Tally())
            if manifest is None:
                return  # reported of the unit
            made |= {each.id for each in manifest.unit.inputs}
        hours = range(found.hour, found.hour + DAY_HOURS)
        if made == wanted or await self._is_due(Kind.DAILY, found.hour):
            return
        for hour in hours:
            if await self._is_due(Kind.ROLLUP, hour):
                return  # its derivation marks the day
        detail = f"{len(wanted - made)} units of its hours are not in it, {len(made - wanted)} in it are not current"
        tally.find(RULES["not_due"], generation.key, f"{detail}, and the day is not marked as due")

    # --- units and chunks ---

    async def _units(self, found: Hour, generation: Generation, tally: Tally) -> None:
        async def one(unit: Current) -> UnitManifest | None:
            return await self._unit(generation, unit, tally)

        manifests = [each for each in await map_bounded(generation.units, one, limit=AT_ONCE) if each is not None]
        found.units += manifests
        if generation.kind is not Kind.DAILY:
            self._inputs(found, generation, manifests, tally)
            for manifest in manifests:
                _count(found, manifest, tally)
        made = {manifest.unit.id: manifest for manifest in manifests}
        refs = [(made[unit.unit_id], ref) for unit in generation.units if unit.unit_id in made for ref in unit.chunks]
        found.named |= {ref.key for _, ref in refs}
        await map_bounded(refs, lambda each: self._chunk(found, *each, tally), limit=AT_ONCE)

    async def _unit(self, generation: Generation, unit: Current, tally: Tally) -> UnitManifest | None:
        tally.checked["units"] += 1
        key = layout.unit_key(generation.hour, unit.unit_id)
        try:
            manifest = UnitManifest.read(await self.store.get(key))
        except NotFound:
            tally.find(RULES["missing_unit"], key, f"{generation.key} names it")
            return None
        except HoldfastError as error:
            _raise_unless_told(error)
            tally.find(RULES["corrupt_unit"], key, str(error))
            return None
        own = manifest.unit
        placed = (own.kind, own.hour, own.buckets) == (generation.kind, generation.hour, generation.buckets)
        if not placed or not generation.says(unit, manifest):
            tally.find(RULES["generation_differs"], generation.key, f"it does not say what {key} says")
        for ident in manifest.unreadable:
            tally.find(RULES["unreadable_input"], key, f"batch {ident} is in none of its chunks")
        return manifest

    def _inputs(self, found: Hour, generation: Generation, units: Iterable[UnitManifest], tally: Tally) -> None:
        counted: dict[str, str] = {}
        for manifest in units:
            unit = manifest.unit
            for each in unit.inputs:
                if each.id in counted:
                    tally.find(
                        RULES["counted_twice"], manifest.key, f"batch {each.id} counts in {counted[each.id]} too"
                    )
                    continue
                counted[each.id] = manifest.key
                row = found.rows.get(each.id)
                if row is None:
                    tally.find(RULES["unlisted_input"], manifest.key, f"batch {each.id} is in no listing")
                elif row.frame_sha256 != each.sha256 or bucket_of(row.agent, unit.buckets) != unit.bucket:
                    tally.find(RULES["wrong_input"], manifest.key, f"batch {each.id} is listed as other bytes or agent")
        if len(list(generation.units)) != len({manifest.key for manifest in units}):
            return  # what the others count is not known
        claimed = {ident for each in generation.listings for ident in found.named_by.get(each, ())}
        for ident in sorted(claimed - counted.keys()):
            tally.find(RULES["left_out"], generation.key, f"batch {ident} is listed, and no unit counts it")
        tally.checked["inputs"] += len(counted)

    async def _chunk(self, found: Hour, manifest: UnitManifest, ref: ChunkRef, tally: Tally) -> None:
        tally.checked["chunks"] += 1
        size = found.chunks.get(ref.key)
        closely = self.look.closely(ref.key)
        try:
            if size is None and not closely:
                size = (await self.store.head(ref.key)).size
            body = (await self.store.get(ref.key)).body if closely else None
        except NotFound:
            tally.find(RULES["missing_chunk"], ref.key, f"{manifest.key} names it")
            return
        if body is None:
            if size != ref.bytes:
                tally.find(RULES["corrupt_chunk"], ref.key, f"it has {size} bytes, and {ref.bytes} were written")
            return
        tally.checked["chunks read"] += 1
        try:
            ref.check(body)
            batches = await blocking(_batches_in, body, ref)
        except HoldfastError as error:
            _raise_unless_told(error)
            tally.find(RULES["corrupt_chunk"], ref.key, str(error))
            return
        strange = batches - {each.id for each in manifest.unit.inputs}
        if strange:
            tally.find(RULES["dangling_index"], ref.key, f"it leads to batch {min(strange)}")


def _batches_in(body: bytes, ref: ChunkRef) -> set[str]:
    """The batches that an index leads to."""
    return index.all_batches(index.decode(ref.table, body, key=ref.key)) if ref.table is Table.WORDS else set()


def _count(found: Hour, manifest: UnitManifest, tally: Tally) -> None:
    """Check that every record of its batches counts once, except where another batch has the same number."""
    lost = set(manifest.unreadable)
    rows = [found.rows.get(each.id) for each in manifest.unit.inputs if each.id not in lost]
    if any(row is None for row in rows):
        return  # reported of the input
    most = sum(row.records for row in rows if row is not None)
    # What closed hours have counted of its batches is not counted here.
    least = 0 if manifest.unit.closed else most - manifest.repeated
    if not least <= manifest.records <= most:
        detail = f"it counted {manifest.records} records; its batches have {most}, {manifest.repeated} of them repeated"
        tally.find(RULES["wrong_count"], manifest.key, detail)


def _word(hour: int) -> str:
    date, _, rest = layout.hour_path(hour).partition("/")
    return f"{date.removeprefix('date=')}T{rest.removeprefix('hour=').rstrip('/')}"


def _raise_unless_told(error: HoldfastError) -> None:
    """Re-raise errors that are not about the object itself."""
    if error.kind not in ("corrupt", "incompatible", "invalid"):
        raise error
