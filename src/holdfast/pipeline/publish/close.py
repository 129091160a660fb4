"""Close an hour: from then on the raw bytes of its batches may be removed, and what it has counted never changes.

The order is the rule.

1. The current generation of the hour is read, then its listings are. The generation must be what the batches of all
   these listings give now, with no batch unreadable.
2. A full scan of accepted batches began after the newest of these listings was written, by the store's clock, and has
   ended. So it began after the last batch of the hour was accepted, and what was accepted before that batch is counted.
3. Of batches that share sequence numbers with others and have records in further hours, each such hour is closed, or
its
   current generation counts these batches too. So two hours never both count a number: a generation of that hour that
   lacks one of these batches can no longer be created, because its number is taken.
4. Every chunk has the bytes that were written.
5. One create makes the next generation, which says that the hour is closed and which numbers it has counted. It is a
   fence: plans from before it cannot be published. If another process got that number, the hour stays open.

Only then may bytes be removed. A batch that is listed in the hour later is too late: it is kept, counts nowhere in this
hour, and is reported.
"""

import hashlib
from dataclasses import dataclass, field

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.pipeline import due
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.units import Place, Plan, plan_hour
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.rollup import kernel, layout
from holdfast.telemetry.rollup.manifest import Generation, Kind, Ranges, UnitManifest, UnitRef, read_generation

READS = 16
NOT_DERIVED = "one of its hours is not derived"
NOT_COVERED = "one of its hours has batches that are not derived yet"
NOT_SCANNED = "no full scan began after the last batch of one of its hours was found"
DAMAGED = "a chunk of one of its hours is missing or damaged"
UNREADABLE = "a batch of one of its hours cannot be read"
LINKED = "a batch of one of its hours shares numbers with a batch that another hour does not count yet"
BROKEN = "what was derived of one of its hours cannot be read"
OVERTAKEN = "a driver published in the meantime"


@dataclass(frozen=True, slots=True)
class Closed:
    """An hour that is closed, or would be."""

    key: str
    """Of the generation that closes it."""
    inputs: frozenset[str] = frozenset()
    """Ids of the batches that it counts."""


@dataclass
class Closing:
    """Closes hours as they are asked for, each once."""

    store: Store
    ambient: Ambient
    limits: Limits
    apply: bool
    _known: dict[int, Closed | str] = field(default_factory=dict)
    _scanned_ns: int | None = None

    async def of(self, hour: int) -> Closed | str:
        """The closed hour, or why it stays open."""
        if hour not in self._known:
            try:
                self._known[hour] = await self._close(hour)
            except (Corrupt, Incompatible):
                self._known[hour] = BROKEN
        return self._known[hour]

    async def _close(self, hour: int) -> Closed | str:
        scanned_ns = await self._scanned()  # before the listings: what a scan has listed is among them
        current = await read_generation(self.store, Kind.ROLLUP, hour)
        if current is None:
            return NOT_DERIVED
        made = [await self._manifest(current, unit) for unit in current.units]
        manifests = [each for each in made if each is not None]
        if len(manifests) < len(made):
            return BROKEN
        inputs = frozenset(each.id for manifest in manifests for each in manifest.unit.inputs)
        if current.is_closed:
            return Closed(current.key, inputs)
        why = await self._unfit(hour, current, scanned_ns)
        if why == NOT_COVERED and self.apply:
            # A listing that no mark names, or another hour of its batches was closed since.
            ident = hashlib.sha256(f"close {current.key}".encode()).hexdigest()
            await due.mark(self.store, self.ambient, Kind.ROLLUP, hour, ident)
        if why is not None:
            return why
        numbers: dict[tuple[str, str], Ranges] = {}
        for manifest in manifests:
            numbers |= manifest.numbers
        closing = current.close(self.ambient.ids.write_id(), numbers)
        if self.apply and isinstance(await self.store.put(closing.key, closing.encode(), CREATE), Lost):
            return OVERTAKEN
        return Closed(closing.key, inputs)

    async def _unfit(self, hour: int, current: Generation, scanned_ns: int) -> str | None:
        """Why the hour cannot be closed; None if it can."""
        plan = await plan_hour(self.store, hour, self.limits, lambda _, size: Place.of(current))
        if not kernel.is_current(current.version) or plan.current != current or plan.changed:
            return NOT_COVERED
        if any(unit.unreadable for unit in current.units):
            return UNREADABLE
        if scanned_ns <= plan.modified_ns:
            return NOT_SCANNED
        if not await self._linked(plan):
            return LINKED
        whole = await map_bounded(current.units, self._is_whole, limit=1)
        return None if all(whole) else DAMAGED

    async def _scanned(self) -> int:
        """When the last full scan that has ended began, by the store's clock."""
        if self._scanned_ns is None:
            found = await Checkpoints(self.store, self.ambient).read()
            self._scanned_ns = 0 if found is None else found.full_at_unix_ns or 0
        return self._scanned_ns

    async def _linked(self, plan: Plan) -> bool:
        """Whether every other hour of batches that share numbers is closed, or counts these batches."""
        shared = [row for row in plan.rows if row.manifest_id in plan.other_hours.hours]
        for row in shared:
            partners = {each.manifest_id for each in shared if row.identity.overlaps(each.identity)}
            for hour in plan.other_hours.hours[row.manifest_id]:
                other = plan.other_hours.generations.get(hour)
                if other is None or not (other.is_closed or partners <= await self._inputs(other)):
                    return False
        return True

    async def _inputs(self, generation: Generation) -> set[str]:
        made = [await self._manifest(generation, unit) for unit in generation.units]
        return {each.id for manifest in made if manifest is not None for each in manifest.unit.inputs}

    async def _manifest(self, generation: Generation, unit: UnitRef) -> UnitManifest | None:
        found = await self.store.find(layout.unit_key(generation.hour, unit.unit_id))
        return None if found is None else UnitManifest.read(found)

    async def _is_whole(self, unit: UnitRef) -> bool:
        """Whether every chunk has the bytes that were written. Reads them all, once in the life of an hour."""

        async def sound(number: int) -> bool:
            try:
                unit.chunks[number].check((await self.store.get(unit.chunks[number].key)).body)
            except (NotFound, Corrupt):
                return False
            return True

        return all(await map_bounded(range(len(unit.chunks)), sound, limit=READS))
