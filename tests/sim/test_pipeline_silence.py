"""Collectors that die beside a reconciler that hears their marks; one that does not hear them loses batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from holdfast.pipeline import silence
from holdfast.pipeline.checkpoint import Recent
from holdfast.pipeline.discover import Discovered
from holdfast.pipeline.options import Env
from holdfast.pipeline.reconcile import Reconcile
from holdfast.pipeline.silence import AskStore
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.pipeline import FOUND, PipelineSilence
from holdfast.telemetry.accept.marks import Marks
from tests.sim.naive import first_broken, rules


class Deaf(Reconcile):
    async def _add_untold(self, found: Discovered, recent: Recent, limit: int, ask_store: AskStore) -> None:
        """Whatever is referred to is all there is."""


@dataclass(frozen=True, kw_only=True)
class Unheard(PipelineSilence):
    reconcile: ClassVar[Callable[[Env], Any]] = Deaf


@pytest.mark.timeout(600)  # it is as fast as the machine
def test_who_hears_no_marks_loses_what_a_collector_acknowledged_last() -> None:
    assert FOUND in rules(first_broken(Unheard, range(200)))


class Ageless(Marks):
    async def write(self, *, ended: bool = False) -> None:
        """It does not say when it began."""
        self._begun_ns = self._clock.wall_ns()
        await super().write(ended=ended)


@dataclass(frozen=True, kw_only=True)
class Forgotten(PipelineSilence):
    marks: ClassVar[type[Marks]] = Ageless


@pytest.mark.timeout(600)  # it is as fast as the machine
def test_who_forgets_those_it_gave_up_needs_to_know_when_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "MOST_GIVEN_UP", 0)
    broken = first_broken(Forgotten, range(200))
    assert rules(broken) == {FOUND}
    assert simulate(PipelineSilence, broken.seed).violations == []
