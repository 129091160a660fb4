"""Compaction beside writers, readers, liars and other compactors: under trouble, and in every order of events."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Self

import pytest

from holdfast.objects.store import OVERWRITE
from holdfast.ontology.chain.resolve import resolve
from holdfast.ontology.commit.commit import RACES
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.index import Entry, read_index
from holdfast.ontology.maintain.compact import Compacted, Compactor, Merge
from holdfast.ontology.types.refs import TypeId
from holdfast.sim.checkers.ontology import PLAIN_ROWS
from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.ontology_upkeep import OntologyCompact

QUIET = Limits(crashes=0, lost_responses=0)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(OntologyCompact(), marks=pytest.mark.soak), OntologyCompact(writers=0, compactors=2)],
    ids=["one committer and one compactor", "two compactors"],
)
def test_every_order_of_events(scenario: OntologyCompact) -> None:
    result = explore(scenario, QUIET)
    assert result.found is None
    assert result.paths > 20


# --- every rule is needed ---


class Overwriting(Compactor):
    """Publishes what it has seen before, over whatever is there now."""

    async def _place(self, type_id: TypeId, snapshots: Sequence[Entry]) -> set[str]:
        (entry,), seen = snapshots, self.seen
        entries = [each for each in seen if not entry.first <= each.first <= entry.last]
        index = await read_index(self._store, type_id)
        after = sorted((*entries, entry), key=lambda each: each.first)
        made = type(index)(type_id, max(index.watermark, after[-1].last), tuple(after))
        await self._store.put(layout.index_key(*type_id), made.body("naive"), OVERWRITE)
        return {entry.path}

    seen: Sequence[Entry] = ()

    async def perform(self, wanted: Merge) -> Compacted:
        resolved = await resolve(self._store, self._chain, await self._ledger(), wanted.type_id)
        self.seen = resolved.entries
        return await super().perform(wanted)


@dataclass(frozen=True, kw_only=True)
class WithOverwriting(OntologyCompact):
    compactor: ClassVar[type[Compactor]] = Overwriting

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return cls(writers=2, commits=5, compactors=3, compactions=4, idle_ms=20.0, again=3, races=RACES)


class TakingInTheHead(Compactor):
    """Merges all that there is."""

    async def _ledger(self) -> Ledger:
        found = await super()._ledger()
        return _Later(**{name: getattr(found, name) for name in found.__slots__})

    @staticmethod
    def _has_place(type_id: TypeId, entry: Entry, ledger: Ledger) -> bool:
        return True


class _Later(Ledger):
    """Says that the head is one commit later."""

    __slots__ = ()

    @property
    def commit_id(self) -> int:
        return super().commit_id + 1


@dataclass(frozen=True, kw_only=True)
class WithTheHead(OntologyCompact):
    compactor: ClassVar[type[Compactor]] = TakingInTheHead
    writers: int = 0
    marks: int = 4


def test_a_small_world_shows_the_harm() -> None:
    found = explore(WithTheHead(), QUIET).found
    assert found is not None
    assert PLAIN_ROWS in {violation.partition(": ")[0] for violation in found.violations}


def test_a_few_seeds_show_the_harm() -> None:
    runs = (simulate(WithOverwriting, seed) for seed in range(57, 130))
    found = next((run.violations for run in runs if run.violations), [])
    assert PLAIN_ROWS in {violation.partition(": ")[0] for violation in found}
