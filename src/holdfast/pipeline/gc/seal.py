"""Hours whose units are sealed: what they count stays counted, though the bytes that it was counted from go.

The next generation is created with the same units, marked as sealed, and as a fence (see ``metrics.manifest``): plans
that would have made these units anew from their inputs can no longer be published, and plans from then on leave them as
they are. Only then may bytes of inputs go.

An hour is sealed only if its generation covers every listing that there is, every chunk has the bytes that were
written, and no input was unreadable. Otherwise the reason is given, and everything stays.
"""

from dataclasses import dataclass, field, replace

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, NotFound
from holdfast.base.ids import Ambient
from holdfast.metrics import layout, listing
from holdfast.metrics.manifest import Generation, Kind
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.pipeline.plan import read_generation
from holdfast.platform.taken import sealed_inputs

READS = 16
NOT_DERIVED = "one of its hours is not rolled up and indexed"
NOT_COVERED = "one of its hours has batches that are not rolled up yet"
DAMAGED = "a chunk of one of its hours is missing or damaged"
OVERTAKEN = "a driver published in the meantime"


@dataclass(frozen=True, slots=True)
class Sealed:
    """A generation all of whose units are sealed, or would be."""

    key: str
    inputs: frozenset[str]
    """Ids of the batches that it counts."""


@dataclass
class Seals:
    """Seals hours as they are asked for, each once."""

    store: Store
    ambient: Ambient
    apply: bool
    _known: dict[tuple[Kind, int], Sealed | str] = field(default_factory=dict)

    async def of(self, kind: Kind, hour: int) -> Sealed | str:
        """The seal of an hour, or why there is none."""
        if (kind, hour) not in self._known:
            self._known[kind, hour] = await self._seal(kind, hour)
        return self._known[kind, hour]

    async def _seal(self, kind: Kind, hour: int) -> Sealed | str:
        current = await read_generation(self.store, kind, hour)
        if current is None:
            return NOT_DERIVED
        if {listing.id_in(key) for key in await listing.listings(self.store, hour)} - set(current.listings):
            return NOT_COVERED
        if all(unit.sealed for unit in current.units):
            return await self._sealed(current)
        if not await _is_whole(self.store, current):
            return DAMAGED
        made = replace(
            current.fence(self.ambient.ids.write_id()),
            units=tuple(replace(unit, sealed=True) for unit in current.units),
        )
        if self.apply and isinstance(await self.store.put(made.key, made.encode(), CREATE), Lost):
            return OVERTAKEN
        return await self._sealed(made)

    async def _sealed(self, generation: Generation) -> Sealed:
        lost = {ident for unit in generation.units for ident in unit.unreadable}
        return Sealed(generation.key, frozenset(await sealed_inputs(self.store, generation) - lost))


async def _is_whole(store: Store, generation: Generation) -> bool:
    """Whether every chunk has the bytes that were written. Reads them all, once in the life of an hour."""
    refs = [ref for unit in generation.units for ref in unit.chunks]
    keys = [layout.unit_key(generation.hour, unit.unit_id) for unit in generation.units]

    async def sound(number: int) -> bool:
        try:
            refs[number].check((await store.get(refs[number].key)).body)
        except (NotFound, Corrupt):
            return False
        return True

    there = await map_bounded(keys, store.find, limit=READS)
    return None not in there and all(await map_bounded(range(len(refs)), sound, limit=READS))
