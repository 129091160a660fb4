"""Hours that are closed beside drivers, late and overlapping batches: each rule of closing is needed."""

import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pyarrow as pa
import pytest

from holdfast.pipeline.gc import batches
from holdfast.pipeline.jobs.derive import Derive
from holdfast.pipeline.publish.close import Closed, Closing
from holdfast.sim.checkers.gc import CLOSED, FINAL, SCANNED, TOTAL
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.gc import GcDerived
from tests.sim.naive import first_broken, rules


@dataclass(frozen=True, kw_only=True)
class Expiring(GcDerived):
    """The scenario with retention in every world."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(super().drawn(rng), expires=True)


def test_hours_are_closed_and_batches_come_too_late() -> None:
    found = simulate(Expiring, 2_010)
    assert found.violations == []
    assert min(found.tally["closed"], found.tally["too late"]) > 0


SEEDS = (18, *range(60))
"""The first is known to show what a full scan is for."""


class Unscanned(Closing):
    """Closes an hour as soon as all that is listed is derived."""

    async def _scanned(self) -> int:
        return 1 << 62


@dataclass(frozen=True, kw_only=True)
class Unreferred(Expiring):
    """Only a full scan finds some of the batches, and there are few."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return replace(super().drawn(rng), unreferred=True, full=0.1)


class Uncreated(Closing):
    """Removes bytes before the hour is closed."""

    async def _close(self, hour: int) -> Closed | str:
        self.apply = False
        return await super()._close(hour)


@pytest.mark.parametrize(
    ("naive", "scenario", "harm"), [(Unscanned, Unreferred, SCANNED), (Uncreated, Expiring, CLOSED)]
)
def test_who_closes_an_hour_otherwise_does_harm(
    naive: type[Closing], scenario: type[GcDerived], harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "Closing", naive)
    assert harm in rules(first_broken(scenario, SEEDS))


class Relentless(Derive):
    """Derives a closed hour again when a batch is listed in it."""

    async def _current(self, hours: Any) -> Any:
        async for batch in super()._current(hours):
            column = batch.schema.get_field_index("closed")
            yield batch.set_column(column, "closed", pa.array([0] * batch.num_rows, pa.int64()))


@dataclass(frozen=True, kw_only=True)
class Reopened(Expiring):
    derive: ClassVar[Any] = Relentless


def test_who_counts_a_late_batch_changes_a_closed_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.telemetry.rollup.manifest.Generation.is_closed", False)
    seeds = (27, 19, *range(60))  # the first two are known to show it
    assert rules(first_broken(Reopened, seeds)) & {FINAL, TOTAL}
