"""Every course of events of small configurations: nothing found where nothing is wrong, a planted bug found."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.store import Store
from holdfast.sim.explore import Limits, explore, follow
from holdfast.sim.history import Violation
from holdfast.sim.scenario import Scenario
from holdfast.sim.scenarios.lease import LeaseFencedWrites, LeaseTenants
from holdfast.sim.scenarios.register import RegisterCounter, RegisterHistory
from holdfast.sim.scenarios.store import Names, StoreCas, StoreListing
from holdfast.sim.world import World
from tests.sim.test_objects import ContendedMeansTaken, NoHistory, NoReadBack

ONE_OF_EACH = Limits(crashes=1, lost_responses=1)


@pytest.mark.parametrize(
    ("scenario", "limits", "at_least"),
    [
        pytest.param(RegisterCounter(turns=2), ONE_OF_EACH, 2_000, id="2 clerks x 2 additions", marks=pytest.mark.soak),
        pytest.param(RegisterCounter(turns=1), ONE_OF_EACH, 100, id="2 clerks"),
        pytest.param(RegisterHistory(clerks=2, turns=2, keep=1), Limits(0, 1), 100, id="the shortest memory"),
        pytest.param(RegisterCounter(clerks=3, turns=1), Limits(0, 1), 500, id="3 clerks"),
        pytest.param(RegisterCounter(turns=1), Limits(0, 0, timeouts=1, duplicates=1), 100, id="late and doubled"),
        pytest.param(StoreCas(turns=1), Limits(0, 1, timeouts=1), 300, id="2 writers"),
        pytest.param(StoreCas(turns=1), Limits(0, 0, contended=2), 200, id="2 writers under 409"),
        pytest.param(LeaseTenants(), Limits(0, 1), 500, id="2 tenants"),
        pytest.param(LeaseFencedWrites(), Limits(0, 1), 500, id="2 owners"),
        pytest.param(StoreListing(), ONE_OF_EACH, 100, id="a listing"),
    ],
)
def test_no_course_of_events_breaks_a_rule(scenario: Scenario, limits: Limits, at_least: int) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.states > at_least
    assert result.pruned > 0


class WithoutHistory(RegisterCounter):
    kind = NoHistory


class WithoutReadBack(StoreCas):
    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return NoReadBack(backend, ambient=ambient, retry=self.retry)


class TakenWhenContended(StoreCas):
    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return ContendedMeansTaken(backend, ambient=ambient, retry=self.retry)


class WithoutBoundary(Names):
    async def spent(self, process: Any) -> int:
        return 0


@pytest.mark.parametrize(
    ("scenario", "limits"),
    [
        (WithoutHistory(), ONE_OF_EACH),
        (WithoutReadBack(turns=1), ONE_OF_EACH),
        (WithoutReadBack(turns=1), Limits(0, 0, timeouts=1)),
        (TakenWhenContended(turns=1), Limits(0, 0, contended=1)),
        (WithoutBoundary(), Limits(0, 0)),
    ],
    ids=["no history", "no read-back, lost response", "no read-back, late write", "409 as a verdict", "no boundary"],
)
def test_a_planted_bug_is_found_and_can_be_followed_again(scenario: Scenario, limits: Limits) -> None:
    found = explore(scenario, limits).found
    assert found is not None
    again = follow(scenario, limits, found.choices)
    assert again.violations == found.violations
    assert any("serves" in line for line in again.trace.lines())


def test_a_bug_that_needs_a_fault_is_not_found_without_one() -> None:
    assert explore(WithoutReadBack(turns=1), Limits(0, 0)).found is None


@dataclass(frozen=True, kw_only=True)
class Recorded(RegisterCounter):
    """Breaks no rule; remembers how every course ended."""

    name: ClassVar[str] = "recorded"
    ends: set[object] = field(default_factory=set, compare=False)

    def check(self, world: World) -> Iterator[Violation]:
        outcomes = tuple(sorted((str(operation.argument), str(operation.outcome)) for operation in world.operations))
        landed = tuple((landing.process, landing.key) for landing in world.landings)
        self.ends.add((outcomes, landed))
        return iter(())


class Nothing(set[object]):
    """A memory that has never been anywhere."""

    def __contains__(self, point: object) -> bool:
        return False


@pytest.mark.parametrize("limits", [Limits(0, 1), Limits(1, 0), Limits(0, 0, duplicates=1)])
def test_cutting_courses_short_loses_no_end(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    short, whole = Recorded(turns=1), Recorded(turns=1)
    cut = explore(short, limits)
    monkeypatch.setattr("holdfast.sim.explore.set", Nothing, raising=False)
    uncut = explore(whole, limits)
    assert cut.pruned > 0
    assert uncut.pruned == 0
    assert cut.paths < uncut.paths
    assert short.ends == whole.ends
