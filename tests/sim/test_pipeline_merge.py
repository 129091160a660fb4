"""Merging beside drivers, late batches, garbage collection and retention; a merger that overrules others does harm."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from holdfast.base.codec import Document
from holdfast.objects.store import CREATE
from holdfast.pipeline.merge import HourMerge, Merge
from holdfast.pipeline.options import Env
from holdfast.pipeline.plan import read_generation
from holdfast.sim.checkers.gc import KEPT
from holdfast.sim.scenarios.gc import PipelineMerge
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup import merge as pieces
from holdfast.telemetry.rollup.manifest import Generation, Kind, UnitManifest
from tests.sim.naive import first_broken, rules


class Stubborn(Merge):
    """Publishes what it has put together after whatever is current by then."""

    async def _publish(self, plan: Document, made: dict[str, list[str | None]]) -> Document:
        for each in map(HourMerge.of, plan["hours"]):
            current = await read_generation(self._store, Kind.ROLLUP, each.hour)
            base = await self._store.find(layout.generation_key(each.hour, Kind.ROLLUP, each.base or 1))
            names = [name for name in made.get(str(each.hour), ()) if name is not None]
            found = [await self._store.find(layout.unit_key(each.hour, name)) for name in names]
            if each.groups and current is not None and base is not None and None not in found:
                units = [UnitManifest.read(stored) for stored in found if stored is not None]
                generation = pieces.generation(Generation.read(base), each.division, units)
                generation = replace(generation, number=current.number + 1)
                await self._store.put(generation.key, generation.encode(), CREATE)
        return await super()._publish({**plan, "hours": []}, {})


@dataclass(frozen=True, kw_only=True)
class Overruling(PipelineMerge):
    merge: ClassVar[Callable[[Env], Merge]] = Stubborn


@pytest.mark.timeout(600)  # it is as fast as the machine
def test_who_publishes_after_whatever_is_current_takes_batches_away() -> None:
    assert KEPT in rules(first_broken(Overruling, range(48, 200)))
