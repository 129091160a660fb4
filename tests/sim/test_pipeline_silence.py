"""Collectors that die beside a reconciler that hears their marks; one that does not hear them loses batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from holdfast.pipeline.checkpoint import Recent
from holdfast.pipeline.discover import Discovered
from holdfast.pipeline.options import Env
from holdfast.pipeline.reconcile import Reconcile
from holdfast.pipeline.silence import AskStore
from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenarios.pipeline_silence import FOUND, PipelineSilence
from tests.sim.naive import first_broken, rules


@pytest.mark.timeout(600)  # it is as fast as the machine
def test_scenario_holds() -> None:
    totals = Totals()
    for seed in range(24):
        totals.include(simulate(PipelineSilence, seed))
    assert totals.broken == {}
    assert {"lost response", "lost request", "unavailable", "crashes", "pauses", "late"} <= totals.tally.keys()


class Deaf(Reconcile):
    async def _add_untold(self, found: Discovered, recent: Recent, limit: int, ask_store: AskStore) -> None:
        """Whatever is referred to is all there is."""


@dataclass(frozen=True, kw_only=True)
class Unheard(PipelineSilence):
    reconcile: ClassVar[Callable[[Env], Any]] = Deaf


@pytest.mark.timeout(600)  # it is as fast as the machine
def test_who_hears_no_marks_loses_what_a_collector_acknowledged_last() -> None:
    assert FOUND in rules(first_broken(Unheard, range(200)))
