"""Checks the derived data of one hour against the listings that it was made from. Reads only.

Requests of an hour: one LIST each for manifests, listings, the index and every window; one GET for each listing,
generation and unit. Chunks are known from the LISTs, with their lengths; the bytes of a sample, or of all, are read.

Every object is created before the objects that refer to it, so references can be followed while others derive. An
object that seems to be missing may have been superseded meanwhile; the caller checks such findings once more.

Errors: whatever is wrong with the hour is a finding; only a store that does not answer fails a check.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from holdfast.base.aio import map_bounded
from holdfast.base.audit import Look, Severity, Tally, rules
from holdfast.base.errors import Corrupt, HoldfastError, NotFound
from holdfast.objects.store import Entry, Store
from holdfast.telemetry.rollup import layout, listing
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import (
    ChunkRef,
    Generation,
    Kind,
    UnitManifest,
    UnitRef,
    bucket_of,
    current_generations,
)

_DERIVE = "derive the hour again: docs/operate/pipeline.md says how"
_FULL = "holdfast pipeline run --full: it lists every batch again"
_REMOVE = "remove it, then holdfast pipeline run --full: it lists the batches again"

RULES = {
    **rules(
        Severity.ERROR,
        corrupt_listing=("a listing of batches cannot be read, or its rows are not those that its name says", _REMOVE),
        missing_listing=("a generation was made from a listing that does not exist", _FULL),
        unlisted_batch=("an accepted batch has records in an hour, and no listing of the hour names it", _FULL),
        not_due=(
            "a listing is not covered by what was derived, and is not marked as due",
            "holdfast pipeline run --since HOUR",
        ),
        corrupt_generation=("a generation cannot be read, or is that of another hour", _DERIVE),
        corrupt_unit=("the manifest of a unit cannot be read, or its inputs do not give its name", _DERIVE),
        missing_unit=("the current generation names a unit whose manifest does not exist", _DERIVE),
        generation_differs=("the current generation differs from the manifest of its unit", _DERIVE),
        left_out=("no unit counts a batch of a listing that the generation covers", _DERIVE),
        wrong_input=("a unit counts a batch that is not listed so, or not in its bucket of agents", _DERIVE),
        wrong_count=("a unit has counted more or fewer records than its batches have", _DERIVE),
        missing_chunk=("the current generation names a chunk that does not exist", _DERIVE),
        corrupt_chunk=("a chunk's bytes are not those that were written", _DERIVE),
        wrong_rows=("deriving a unit again from its batches gives other rows", _DERIVE),
        corrupt_checkpoint=("the reconciler's checkpoint cannot be read", "remove it, then holdfast pipeline run"),
        checkpoint_ahead=(
            "the reconciler's checkpoint is later than any reference or clock: batches are skipped",
            "remove it, then holdfast pipeline run --full",
        ),
    ),
    **rules(
        Severity.WARNING,
        unreadable_input=(
            "a unit was made without batches that could not be read",
            "restore the batches, then derive the hour again",
        ),
        foreign_object=(
            "an object under a prefix of Holdfast has another name than any of its objects",
            "find its writer",
        ),
    ),
}

READS = 16
DAY_HOURS = 24
DUE = "meta/pipeline/due/"
"""Where the pipeline marks hours that must be derived."""


@dataclass(slots=True)
class Hour:
    """The objects of an hour."""

    hour: int
    manifests: dict[str, Entry] = field(default_factory=dict)
    listings: dict[str, Entry] = field(default_factory=dict)
    """By id."""
    listed: dict[str, list[Listed]] = field(default_factory=dict)
    """The rows of each listing, by id."""
    rows: dict[str, Listed] = field(default_factory=dict)
    """The rows of all listings, by manifest id."""
    chunks: dict[str, int] = field(default_factory=dict)
    """Sizes, by key."""
    current_chunks: set[str] = field(default_factory=set)
    """Chunks that current generations name."""
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
        for kind in Kind:
            key = current_generations(found.manifests, kind).get(hour)
            generation = None if key is None else await self._generation(key, tally)
            if generation is None:
                if kind is Kind.ROLLUP and key is None:
                    await self._check_listings(found, None, tally)
                continue
            if kind is Kind.ROLLUP:
                await self._check_listings(found, generation, tally)
            else:
                await self._check_day(found, generation, tally)
            await self._check_units(found, generation, tally)
        tally.checked["chunks that nothing current names"] += len(found.chunks.keys() - found.current_chunks)
        return found

    # --- which objects exist ---

    async def _list(self, found: Hour, tally: Tally) -> None:
        hour = found.hour
        for entry in await self._entries(layout.manifest_folder(hour)):
            generation = layout.generation_in(entry.key)
            if layout.unit_in(entry.key) is not None or (generation is not None and generation[0] in {*Kind}):
                found.manifests[entry.key] = entry
            else:
                self._find_foreign(entry, tally)
        for entry in await self._entries(layout.batches_folder(hour)):
            ident = layout.listing_in(entry.key)
            if ident is not None:
                found.listings[ident] = entry
            else:
                self._find_foreign(entry, tally)
        folders = [layout.rollup_folder(window, hour) for window in sorted(self.windows)]
        for folder in (*folders, f"{layout.INDEX}{layout.hour_path(hour)}"):
            for entry in await self._entries(folder):
                if entry.key.endswith((".lmrollup.zst", ".lmindex.zst")):
                    found.chunks[entry.key] = entry.size
                else:
                    self._find_foreign(entry, tally)

    async def _entries(self, folder: str) -> list[Entry]:
        return [entry async for page in self.store.list(folder) for entry in page.entries]

    def _find_foreign(self, entry: Entry, tally: Tally) -> None:
        if self.look.judges(entry.modified_ns):
            tally.find(RULES["foreign_object"], entry.key, "no object of Holdfast has such a name")

    async def _read_listings(self, found: Hour, tally: Tally) -> None:
        async def one(item: tuple[str, Entry]) -> tuple[str, list[Listed]]:
            ident, entry = item
            try:
                rows = listing.decode((await self.store.get(entry.key)).body, entry.key)
            except NotFound:
                return ident, []
            except Corrupt as error:
                tally.find(RULES["corrupt_listing"], entry.key, str(error))
                return ident, []
            if listing.listing_id(found.hour, rows) != ident:
                tally.find(RULES["corrupt_listing"], entry.key, "its name does not follow from its rows")
            return ident, rows

        found.listed = dict(await map_bounded(found.listings.items(), one, limit=READS))
        found.rows = {row.manifest_id: row for row in listing.union(found.listed.values())}
        tally.checked["listings"] += len(found.listings)

    async def _generation(self, key: str, tally: Tally) -> Generation | None:
        tally.checked["generations"] += 1
        try:
            return Generation.read(await self.store.get(key))
        except NotFound:
            return None
        except HoldfastError as error:
            _raise_unless_about_object(error)
            tally.find(RULES["corrupt_generation"], key, str(error))
            return None

    # --- covered, or due ---

    async def _check_listings(self, found: Hour, generation: Generation | None, tally: Tally) -> None:
        covered = set(() if generation is None else generation.listings)
        for ident in sorted(covered - found.listings.keys()):
            key = layout.batches_key(found.hour, ident)
            tally.find(RULES["missing_listing"], key, f"{generation.key if generation else ''} was made from it")
        if generation is not None and generation.is_closed:
            return  # batches that came later are reported as too late
        for ident in sorted(found.listings.keys() - covered):
            entry = found.listings[ident]
            if self.look.judges(entry.modified_ns) and not await self._is_due(Kind.ROLLUP, found.hour, ident):
                tally.find(RULES["not_due"], entry.key, "no rollup covers it, and it is not marked as due")

    async def _is_due(self, kind: Kind, hour: int, ident: str | None = None) -> bool:
        folder = f"{DUE}{kind}/{layout.hour_name(hour)}/"
        async for key in self.store.keys(folder):
            if ident is None or key == f"{folder}{ident}.json":
                return True
        return False

    async def _check_day(self, found: Hour, generation: Generation, tally: Tally) -> None:
        """Check that a day was made from the current units of its hours, or is due. What cannot be read is a finding of
        its hour.
        """
        date = layout.hour_path(found.hour).partition("/")[0]
        keys = [entry.key for entry in await self._entries(f"{layout.MANIFESTS}{date}/")]
        wanted: set[str] = set()
        for key in current_generations(keys, Kind.ROLLUP).values():
            current = await self._generation(key, Tally())
            if current is None:
                return
            wanted |= {unit.unit_id for unit in current.units}
        inputs: set[str] = set()
        for unit in generation.units:
            manifest = await self._unit(generation, unit, Tally())
            if manifest is None:
                return
            inputs |= {each.id for each in manifest.unit.inputs}
        if inputs == wanted or await self._is_due(Kind.DAILY, found.hour):
            return
        for hour in range(found.hour, found.hour + DAY_HOURS):
            if await self._is_due(Kind.ROLLUP, hour):
                return  # its derivation marks the day
        detail = (
            f"{len(wanted - inputs)} units of its hours are not in it, {len(inputs - wanted)} in it are not current"
        )
        tally.find(RULES["not_due"], generation.key, f"{detail}, and the day is not marked as due")

    # --- units and chunks ---

    async def _check_units(self, found: Hour, generation: Generation, tally: Tally) -> None:
        async def one(unit: UnitRef) -> UnitManifest | None:
            return await self._unit(generation, unit, tally)

        manifests = [each for each in await map_bounded(generation.units, one, limit=READS) if each is not None]
        found.units += manifests
        if generation.kind is Kind.ROLLUP:
            self._check_inputs(found, generation, manifests, tally)
            for manifest in manifests:
                _check_count(found, manifest, tally)
        by_id = {manifest.unit.id: manifest for manifest in manifests}
        refs = [(by_id[unit.unit_id], ref) for unit in generation.units if unit.unit_id in by_id for ref in unit.chunks]
        found.current_chunks |= {ref.key for _, ref in refs}
        await map_bounded(refs, lambda each: self._check_chunk(found, *each, tally), limit=READS)

    async def _unit(self, generation: Generation, unit: UnitRef, tally: Tally) -> UnitManifest | None:
        tally.checked["units"] += 1
        key = layout.unit_key(generation.hour, unit.unit_id)
        try:
            manifest = UnitManifest.read(await self.store.get(key))
        except NotFound:
            tally.find(RULES["missing_unit"], key, f"{generation.key} names it")
            return None
        except HoldfastError as error:
            _raise_unless_about_object(error)
            tally.find(RULES["corrupt_unit"], key, str(error))
            return None
        own = manifest.unit
        placed = (own.kind, own.hour, own.buckets) == (generation.kind, generation.hour, generation.buckets)
        if not placed or generation.without_expired(UnitRef.of_manifest(manifest)) != unit:
            tally.find(RULES["generation_differs"], generation.key, f"it differs from {key}")
        for ident in manifest.unreadable:
            tally.find(RULES["unreadable_input"], key, f"batch {ident} is in none of its chunks")
        return manifest

    def _check_inputs(
        self, found: Hour, generation: Generation, manifests: Iterable[UnitManifest], tally: Tally
    ) -> None:
        counted: set[str] = set()
        for manifest in manifests:
            for each in manifest.unit.inputs:
                counted.add(each.id)
                row = found.rows.get(each.id)
                if row is None:
                    detail = "is in no listing"
                elif row.input != each:
                    detail = "is listed with other bytes"
                elif bucket_of(row.agent, manifest.unit.buckets) != manifest.unit.bucket:
                    detail = "is not in its bucket of agents"
                else:
                    continue
                tally.find(RULES["wrong_input"], manifest.key, f"batch {each.id} {detail}")
        tally.checked["inputs"] += len(counted)
        if any(each.unit_id not in {manifest.unit.id for manifest in manifests} for each in generation.units):
            return  # what the other units count is not known
        covered = {row.manifest_id for ident in generation.listings for row in found.listed.get(ident, ())}
        for ident in sorted(covered - counted):
            tally.find(RULES["left_out"], generation.key, f"batch {ident} is listed, and no unit counts it")

    async def _check_chunk(self, found: Hour, manifest: UnitManifest, ref: ChunkRef, tally: Tally) -> None:
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
            if size != ref.size:
                tally.find(RULES["corrupt_chunk"], ref.key, f"it has {size} bytes, and {ref.size} were written")
            return
        tally.checked["chunks read"] += 1
        try:
            ref.check(body)
        except Corrupt as error:
            tally.find(RULES["corrupt_chunk"], ref.key, str(error))


def _check_count(found: Hour, manifest: UnitManifest, tally: Tally) -> None:
    """Check that every record of its batches counts once, except where another batch has the same number."""
    unreadable = set(manifest.unreadable)
    rows = [found.rows.get(each.id) for each in manifest.unit.inputs if each.id not in unreadable]
    if any(row is None for row in rows):
        return  # a finding of the input
    most = sum(row.records for row in rows if row is not None)
    # What closed hours have counted of its batches is not counted here.
    least = 0 if manifest.unit.closed else most - manifest.repeated
    if not least <= manifest.records <= most:
        detail = f"it counted {manifest.records} records; its batches have {most}, {manifest.repeated} of them repeated"
        tally.find(RULES["wrong_count"], manifest.key, detail)


def _raise_unless_about_object(error: HoldfastError) -> None:
    """Raise errors again that do not say that the object itself is wrong."""
    if error.kind not in ("corrupt", "incompatible", "invalid"):
        raise error
